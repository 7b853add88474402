// The lessons of story.html: claims about this model, which nanostories/pages/lessons.py found to
// hold, measured again here when a lesson is opened.
"use strict";
const LESSONS = {
  dice: {
    title: "Dice",
    tab: "next",
    text: (word) =>
      `The model gives every word a chance, then throws dice. Here ${word} is nearly certain; at` +
      " another place in this story, several words are possible.",
    question:
      "Go to both places. At the other one, choose a word: the story goes on from it, with the" +
      " dice of story number 0.",
  },
  layers: {
    title: "Layers",
    tab: "layers",
    text: (word) =>
      "The model finds a word step by step, one layer after the other. Halfway, it does not have" +
      ` ${word} yet; the last layers find it.`,
    question: "Guess first: will all layers agree on a full stop? Choose one and see.",
  },
  heads: {
    title: "Looking back",
    tab: "heads",
    text: (word) =>
      "Within a story, the model has nothing but the text so far: heads look back at it. Here" +
      ` ${word} comes again, and a head looks at where it came before.`,
    question: "Choose other words: where does this head look then?",
  },
  switch: {
    title: "Switch it off",
    tab: "heads",
    text: (word) =>
      `A few heads carry ${word} here: with these two switched off, it loses at least half of its` +
      " chance. With two others off, picked at random, at most a fifth.",
    question:
      "Guess first: which word will stand here without them? Switch them off, look at the line at" +
      " the top, and tell on.",
  },
  hero: {
    title: "Change the name",
    tab: "compare",
    text: (word) =>
      `Does the model know by heart that ${word} comes here, or does it read the name in the` +
      " story? Exchange it in all that came before, and see.",
    question: "Tell story B with the other name. What else changes? Try a name of your own, too.",
  },
};

function connectLessons() {
  const kinds = Object.keys(LESSONS);
  const buttons = data.lessons.map((lesson) => {
    const title = `${1 + kinds.indexOf(lesson.kind)} ${LESSONS[lesson.kind].title}`;
    return button(title, () => openLesson(lesson));
  });
  const none = "No lessons: no place was found where what they claim holds.";
  $("lessons").replaceChildren(buttons.length ? "Lessons: " : none, ...buttons);
}

function needed({ low, high }) {
  return low > 0 ? `at least ${percent(low)}` : `at most ${percent(high)}`;
}

async function openLesson(lesson) {
  const { kind, ids, i, shows } = lesson;
  const { title, tab, text, question } = LESSONS[kind];
  const card = $("lesson");
  const hide = async () => (card.hidden = true);
  switchedOff.clear();
  const whole = { ids: [...ids], given: 0, number: null, temperature: 0.6, off: [] };
  const told = withPieces(whole);
  card.hidden = false;
  card.replaceChildren(
    element("h2", {}, `Lesson: ${title}`),
    paragraph(text(quoted(told.pieces[i]))),
    paragraph(element("b", {}, "Try: "), question),
    element("div", { class: "row pills" }, ...thingsToTry(lesson, told), button("Close", hide)),
    element("div", { id: "claims" }),
  );
  let telling = null;
  if (kind === "hero") {
    $("from").value = told.pieces[i].trim();
    $("to").value = new TextDecoder().decode(tokenizer.bytes(shows.other)).trim();
    telling = tellFrom({ ...whole, temperature: 0, ids: ids.slice(0, i), given: i });
  } else {
    keepStory();
    showAgain(told);
  }
  const mine = turn; // of this lesson's story
  await telling;
  const steps = [() => openTab(tab), () => look(story, i)];
  if (kind === "heads") steps.push(() => pressHead(shows.head));
  steps.push(() => showClaims(lesson));
  steps.push(() => card.scrollIntoView());
  for (const step of steps) {
    if (turn !== mine) return; // another story or lesson was asked for meanwhile
    await step();
  }
}

// What was measured when the page was made, and what is measured now.
async function showClaims(lesson) {
  const place = $("claims"); // of this lesson's card, which another lesson replaces
  const now = await measureAgain(lesson);
  const rows = lesson.claims.map((claim, k) => {
    const figures = [needed(claim), percent(claim.measured), percent(now[k])];
    const cells = figures.map((figure) => element("td", {}, figure));
    return element("tr", {}, rowTitle(claim.text), ...cells);
  });
  place.replaceChildren(table(["Claim", "Holds if", "When made", "Now"], rows));
}

// told: the lesson's story, to which its buttons go back
function thingsToTry({ kind, i, shows }, told) {
  const lookAt = async (place) => {
    if (story !== told) {
      keepStory();
      showAgain(told);
    }
    await look(told, place);
  };
  if (kind === "dice") {
    return [
      button("The nearly certain word", () => lookAt(i)),
      button("The other place", () => lookAt(shows.place)),
    ];
  }
  if (kind !== "switch") return [];
  return [
    button("These two off", () => switchOff(shows.few)),
    button("Two others off", () => switchOff(shows.others)),
    button("All on", () => switchOff([])),
    button("Tell on from here", () => branch(told, i)),
  ];
}

// What lessons.py measured for each claim, again.
async function measureAgain({ kind, ids, i, shows }) {
  const { share, layers, attention } = await ask("inspect", ids, i);
  const without = async (heads) => (await ask("inspect", ids, i, heads)).share;
  const inOther = async (id) => (await ask("inspect", shows.exchanged, i, [], id)).share;
  if (kind === "dice") {
    const there = await ask("inspect", ids, shows.place);
    return [share, there.layers.at(-1).top[2].share];
  }
  if (kind === "layers") {
    const early = layers.slice(0, shows.layers).map((layer) => layer.share);
    return [share, Math.max(...early)];
  }
  if (kind === "heads") {
    const [layer, head] = shows.head.split(".");
    return [share, attention[layer][head][shows.place]];
  }
  if (kind === "switch") return [share, await without(shows.few), await without(shows.others)];
  return [share, await inOther(shows.other), await inOther(ids[i])];
}
