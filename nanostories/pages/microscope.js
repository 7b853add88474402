// The microscope of story.html: how the model came to the word that the reader chose. Each tab
// shows one view of it; heads that are switched off here are off everywhere.
"use strict";
const HINT =
  "Tap or click a word of the story, or go there with Tab and the arrow keys. The model reads and" +
  " writes in pieces: words, parts of rare words, punctuation. The page calls all of them words.";

let looking = null; // { told, i }: a story and the word in it that was chosen
let selected = null; // the head whose attention is shown, as "layer.head"
let tab = "next";
let view = 0; // counts what was shown; what arrives for an earlier view is dropped
const switchedOff = new Set(); // heads, each as "layer.head"

// show: called with what the engine found about the chosen word, if one is; returns what to show
const TABS = {
  next: { title: "Next word", show: showNext, needsWord: true },
  layers: { title: "Layers", show: showLayers, needsWord: true },
  heads: { title: "Looking back", show: showHeads, needsWord: true },
  compare: { title: "Compare", show: showCompare },
  decided: { title: "Decided?", show: showDecided, needsWord: true },
  surprise: { title: "Surprise", show: showSurprise },
};

function connectMicroscope() {
  for (const [name, { title }] of Object.entries(TABS)) {
    const attributes = { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "panel" };
    const onclick = () => guarded(() => openTab(name));
    $("tabs").append(element("button", { ...attributes, onclick }, title));
  }
  withArrowKeys($("tabs"), 3);
  const changes = {
    temperature: () => tellOther({ temperature: Number($("b-temperature").value) }),
    name: () => tellOther({}, [$("from").value.trim(), $("to").value.trim()]),
    heads: () => tellOther({ off: [...switchedOff] }),
  };
  for (const [name, change] of Object.entries(changes)) {
    $(`tell-${name}`).onclick = () => guarded(change);
  }
}

async function openTab(name) {
  tab = name;
  for (const button of $("tabs").children) {
    const isOpen = button.id === `tab-${name}`;
    button.ariaSelected = isOpen;
    button.tabIndex = isOpen ? 0 : -1;
  }
  $("panel").setAttribute("aria-labelledby", `tab-${name}`);
  await showView();
}

// The reader chooses the word i of a story.
async function look(told, i) {
  if (!$("stop").disabled) stop(); // a story is being told
  looking = { told, i };
  for (const word of document.querySelectorAll(".story span")) {
    word.classList.toggle("chosen", word === told.box.children[i]);
  }
  for (const word of told.box.children) word.tabIndex = word === told.box.children[i] ? 0 : -1;
  await showView();
  told.box.children[i]?.scrollIntoView({ block: "nearest" }); // above the sheet of a small screen
}

// Shows the open tab for the chosen word.
async function showView() {
  view += 1;
  const myView = view;
  shade([]);
  showSwitchedOff();
  $("change").hidden = tab !== "compare";
  const { needsWord, show } = TABS[tab];
  const found = await inspectWord();
  if (view !== myView) return;
  $("word").textContent = headline(found);
  const hint = looking ? "Nothing comes before it: it was not predicted." : HINT;
  const content = needsWord && !found ? [paragraph(hint)] : await show(found, myView);
  if (view === myView) $("panel").replaceChildren(...content);
}

// With the heads that are off; and `intact`, this word's share with all of them. Null for the
// first word.
async function inspectWord() {
  if (!looking || looking.i === 0) return null;
  const { told, i } = looking;
  const found = await ask("inspect", told.ids, i, [...switchedOff]);
  if (switchedOff.size) found.intact = await shareOfWord(told, i, []);
  found.share = await shareOfWord(told, i, [...switchedOff]);
  return found;
}

// The share of word i: of all tokens of its character, if it takes several.
async function shareOfWord({ ids, pieces }, i, off) {
  let { share } = await ask("inspect", ids, i, off);
  for (let k = i - 1; k > 0 && pieces[k] === ""; k--) {
    share *= (await ask("inspect", ids, k, off)).share;
  }
  return share;
}

function headline(found) {
  if (!looking) return "Choose a word of the story";
  if (!found) return `${wordAt(looking.i)} is the first word`;
  const intact = switchedOff.size ? ` (${percent(found.intact)} with all heads)` : "";
  return `The model gave ${wordAt(looking.i)} ${percent(found.share)} here${intact}`;
}

// ---- Pieces of views ----

function paragraph(...content) {
  return element("p", {}, ...content);
}

function note(text) {
  return paragraph(element("small", {}, text));
}

function rowTitle(title) {
  return element("th", { scope: "row" }, String(title));
}

function button(text, action) {
  return element("button", { type: "button", onclick: () => guarded(action) }, text);
}

function quoted(piece) {
  return `“${visible(piece)}”`;
}

// Word k of the story that is looked at.
function wordAt(k) {
  return quoted(looking.told.pieces[k]);
}

// A token in the place of the chosen word, without its space; "…" before what goes on a word.
function textOf({ id }) {
  if (id === data.end_of_text) return "(the end)";
  const text = new TextDecoder().decode(tokenizer.bytes(id));
  if (text.includes("\ufffd")) return "(part of a character)";
  const goesOn = /\p{L}$/u.test(looking.told.pieces[looking.i - 1]) && /^\p{L}/u.test(text);
  return goesOn ? `…${text}` : visible(text);
}

function table(titles, rows, className = "") {
  const heads = titles.map((title) => element("th", { scope: "col" }, title));
  const head = element("thead", {}, element("tr", {}, ...heads));
  return element("table", { class: className }, head, element("tbody", {}, ...rows));
}

// Colors something by a number from 0 to 1.
function withShare(made, share) {
  made.style.setProperty("--share", share);
  return made;
}

function bar(share) {
  return withShare(element("td", { class: "bar" }, percent(share)), share);
}

// Shades the words of a story, by a number from 0 to 1 for each; titles say the same in words.
function shade(shares, told, titles = []) {
  for (const word of document.querySelectorAll(".story span")) {
    withShare(word, 0);
    word.title = "";
  }
  shares.forEach((share, k) => {
    withShare(told.box.children[k], share);
    told.box.children[k].title = titles[k] ?? percent(share);
  });
}

function listItem(text, figure, share, action) {
  const texts = [text, figure].map((part) => element("span", {}, part));
  const attributes = { type: "button", class: "bar", onclick: () => guarded(action) };
  return element("li", {}, withShare(element("button", attributes, ...texts), share));
}

// ---- Next word ----

function showNext({ layers }) {
  const { told, i } = looking;
  const about =
    "The chances that the model gave to words in this place; bold: the word of the story. Choose" +
    " one to go on with it instead:";
  const items = layers.at(-1).top.map((token) => {
    const goOn = () => branch(told, i, token.id);
    const item = listItem(textOf(token), percent(token.share), token.share, goOn);
    if (token.id === told.ids[i]) item.style.fontWeight = "bold";
    return item;
  });
  const list = element("ol", { id: "likeliest" }, ...items);
  return [paragraph(about), list, note(aboutDraw(told, i))];
}

// How the word i was chosen.
function aboutDraw({ number, given, drawn = given, temperature }, i) {
  if (i < given) return "The model did not choose this word: it is in the beginning.";
  if (number === null) return "Told when the page was made: dice chose all but its first words.";
  if (i < drawn) return "This word was kept from another story, or chosen by you.";
  if (temperature === 0) return "At temperature 0 the likeliest word was taken.";
  let heated = "";
  if (temperature < 1) heated = ` At temperature ${temperature}, likely words become wider.`;
  if (temperature > 1) heated = ` At temperature ${temperature}, odd words become wider.`;
  const thrown = chance(number, i - given).toFixed(3);
  return (
    `All words lie on a line from 0 to 1, each as wide as its chance.${heated} The dice said` +
    ` ${thrown}: the word that lies there was taken.`
  );
}

// ---- Layers ----

function showLayers({ layers }) {
  const rows = layers.map(({ top, share }, layer) => {
    const [first, second] = top.map((token) => `${textOf(token)} ${percent(token.share)}`);
    const guesses = element("td", {}, element("b", {}, first), `, ${second}`);
    return element("tr", {}, rowTitle(layer + 1), guesses, bar(share));
  });
  return [
    paragraph(
      "The layers work one after the other. Each first looks back with its heads, then works on" +
        " what it found. What would each say, if it were the last?",
    ),
    table(["Layer", "Would say", wordAt(looking.i)], rows, "wide"),
    note("A rough look (the “logit lens”): early layers need not think in words."),
  ];
}

// ---- Looking back ----

function headName(head) {
  const [layer, number] = head.split(".").map(Number);
  return `layer ${layer + 1}, head ${number + 1}`;
}

function showHeads({ attention }) {
  const { told } = looking;
  const rows = attention.map((ofHeads, layer) => {
    const cells = ofHeads.map((row, head) => headCell(`${layer}.${head}`, ofWords(row, told)));
    return element("tr", {}, rowTitle(layer + 1), ...cells);
  });
  const heads = attention[0].map((_, head) => String(head + 1));
  const grid = table(["Layer", ...heads], rows, "heads");
  withArrowKeys(grid, heads.length);
  const chosen = grid.querySelector("[aria-pressed=true]") ?? grid.querySelector("button");
  chosen.tabIndex = 0;
  const about =
    "Each layer has heads, parts that look back at earlier words. The darker, the harder one" +
    " looked at a single word before the chosen word was said. Choose a head to see where it" +
    " looked. Looking is not yet using: press it again to switch it off (it then says the same" +
    " everywhere, its average), and the line at the top says what chance the word has without it.";
  return [paragraph(about), grid, ...aboutHead(attention)];
}

// Attention to words; that to the end of text before the story counts as none.
function ofWords(row, told) {
  return [...row].map((share, k) => (told.pieces[k] === "" ? 0 : share));
}

function headCell(head, shares) {
  const isOff = switchedOff.has(head);
  const [place] = largest(shares, 1);
  let looks = "at no word";
  if (shares[place] > 0) looks = `${percent(shares[place])} at ${wordAt(place)}`;
  if (isOff) looks = "switched off";
  const made = element("button", {
    type: "button",
    tabindex: -1,
    "data-head": head,
    class: isOff ? "off" : "",
    "aria-pressed": head === selected,
    title: `${headName(head)}: ${looks}`,
    onclick: () => guarded(() => pressHead(head)),
  });
  made.ariaLabel = made.title;
  return element("td", {}, withShare(made, shares[place]));
}

// The first press selects a head, the next switches it off, the one after it on.
async function pressHead(head) {
  if (selected !== head) selected = head;
  else if (!switchedOff.delete(head)) switchedOff.add(head);
  await showView();
  document.querySelector(`[data-head="${head}"]`)?.focus();
}

async function switchOff(heads) {
  switchedOff.clear();
  for (const head of heads) switchedOff.add(head);
  await showView();
}

function aboutHead(attention) {
  if (!selected) return [];
  const { told, i } = looking;
  const [layer, head] = selected.split(".");
  const shares = ofWords(attention[layer][head], told);
  shade(shares, told);
  const places = largest(shares, 3).filter((k) => shares[k] >= 0.01);
  const seen = places.map((k) => `${wordAt(k)} ${percent(shares[k])}`).join(", ");
  const name = headName(selected);
  let atStart = 0;
  if (told.ids[0] === data.end_of_text) atStart = attention[layer][head][0];
  let looks = `Now ${name}: it looks at ${seen || "many words, a little each"}.`;
  if (atStart >= 0.5) {
    looks = `Now ${name}: it rests on the mark before the story (${percent(atStart)}), as heads do`;
    looks += ` that find nothing${seen ? `; beside it, at ${seen}` : ""}.`;
  }
  if (!switchedOff.has(selected)) return [paragraph(looks)];
  const tellOn = button("Tell on from here without what is off", () => branch(told, i));
  return [paragraph(looks), tellOn];
}

// Says which heads are off, in every tab.
function showSwitchedOff() {
  const heads = [...switchedOff];
  $("off").hidden = heads.length === 0;
  const names = heads.map(headName).join("; ");
  $("off").replaceChildren(`Switched off: ${names}. `, button("All on", () => switchOff([])));
  $("tell-heads").disabled = heads.length === 0;
}

// ---- Compare ----

// The text with one name exchanged for another; not within words.
function exchanged(text, [name, other]) {
  const escaped = name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const whole = new RegExp(`(^|[^\\p{Lu}\\p{Ll}])${escaped}(?![\\p{Lu}\\p{Ll}])`, "gu");
  return text.replace(whole, (_, before) => before + other);
}

// Tells story B: as A up to the chosen word, or where the beginning ends, then with the same dice.
async function tellOther(change, names = null) {
  if (!$("b-temperature").reportValidity()) return;
  stop(); // story A, if it is still being told: its progress would hide the messages below
  const isInA = looking && looking.told === story;
  const first = Math.max(1, story.given); // a model needs a token
  let from = Math.max(first, isInA ? looking.i : 0);
  while (from > first && story.pieces[from - 1] === "") from -= 1; // not within a character
  const before = story.pieces.slice(0, from).join("");
  const text = names ? exchanged(before, names) : before;
  if (names && (names.includes("") || text === before)) {
    message("Type two names: one that stands before the chosen word, and another.");
    return;
  }
  if (story.number === null) {
    message("Story A was told when the page was made, with other dice: choose a next word first.");
    return;
  }
  let ids = story.ids.slice(0, from);
  if (names) {
    const start = ids[0] === data.end_of_text ? [data.end_of_text] : [];
    ids = [...start, ...tokenizer.encode(text)];
  }
  if (ids.length >= contextLength) {
    message("With this name, story B would be longer than the model can read.");
    return;
  }
  // B's dice go on where A's did: A's model had drawn this many tokens before.
  const given = ids.length - (from - story.given);
  const drawn = ids.length;
  const changed = story.changed || from > first;
  const told = withPieces({ ...story, ...change, ids, given, drawn, changed, from, isEnd: false });
  showOther(told);
  await continueStory(told);
}

async function showCompare() {
  const about =
    "Story B keeps A up to the chosen word (or the end of your beginning), and goes on with the" +
    " same dice: where they part, it is the change that parts them.";
  if (!other) return [paragraph(about)];
  const a = story;
  const b = other;
  const shift = b.drawn - b.from; // a name may be of more tokens than the one before
  let place = b.from; // where they part, in A
  while (place < a.ids.length && a.ids[place] === b.ids[place + shift]) place++;
  for (const word of document.querySelectorAll(".differs")) word.classList.remove("differs");
  const onlyA = button("Only story A", async () => show(a));
  if (place === a.ids.length && place + shift === b.ids.length) {
    return [paragraph("Both tell the same story."), onlyA];
  }
  const parts = [[a, place], [b, place + shift]];
  const ids = parts.map(([{ ids }, i]) => ids[i] ?? data.end_of_text);
  const said = parts.map(([{ pieces }, i]) => (i < pieces.length ? quoted(pieces[i]) : "no more"));
  const shares = []; // first in A, then in B: the engine remembers one of them
  for (const [told, i] of parts) {
    told.box.children[i]?.classList.add("differs");
    for (const id of ids) shares.push((await ask("inspect", told.ids, i, told.off, id)).share);
  }
  const rows = said.map((text, k) => {
    return element("tr", {}, rowTitle(text), bar(shares[k]), bar(shares[k + 2]));
  });
  return [
    paragraph(`They part where A says ${said[0]} and B ${said[1]}.`),
    table(["Chance of …", "A", "B"], rows, "wide"),
    onlyA,
  ];
}

// ---- Decided? ----

// At each earlier word: how high the chosen word stood among those that a later layer would say
// next. (Earlier ones hold the words just read: the same matrix reads and writes them.)
async function showDecided(found, myView) {
  const { told, i } = looking;
  const ranks = [];
  $("panel").replaceChildren(paragraph("Looking through the story …"));
  for (let k = i - 1; k >= 0; k--) {
    const { layers } = await ask("inspect", told.ids, k + 1, [...switchedOff], told.ids[i], 0);
    if (view !== myView) return [];
    const later = layers.slice(Math.floor(layers.length / 2));
    ranks[k] = Math.min(...later.map(({ rank }) => rank));
    const share = Math.max(0, 1 - Math.log10(ranks[k]) / 2);
    withShare(told.box.children[k], share).title = `number ${ranks[k]}`;
  }
  const high = [...ranks.keys()].filter((k) => ranks[k] <= 10);
  let when = "";
  if (high.length) {
    const context = told.pieces.slice(Math.max(0, high[0] - 4), high[0] + 1).join("");
    when = `, for the first time after ${quoted(`… ${context}`)}`;
  }
  const word = wordAt(i);
  return [
    paragraph(
      `Shaded: after which words ${word} was among the hundred likeliest, if a layer of the later` +
        " half is read as if it were the last. Dark: it was the likeliest.",
    ),
    paragraph(`It was among the first ten after ${high.length} of ${i} words${when}.`),
    note("A common word is likely nearly everywhere: look at a rare one, too."),
  ];
}

// ---- Surprise ----

async function showSurprise(found, myView) {
  const told = looking?.told ?? story;
  const shares = await ask("shares", told.ids, [...switchedOff]);
  if (view !== myView) return [];
  const bits = [0, ...shares.map((share) => -Math.log2(share))];
  for (let k = 1; k + 1 < bits.length; k++) {
    if (told.pieces[k] !== "") continue;
    bits[k + 1] += bits[k]; // the first bytes of a character count with its last ones
    bits[k] = 0;
  }
  const inWords = (k) => `${bits[k].toFixed(1)} bits`;
  const ofTen = bits.map((each) => Math.min(1, each / 10));
  shade(ofTen, told, bits.map((_, k) => inWords(k)));
  const total = bits.reduce((sum, each) => sum + each, 0);
  const bytes = new TextEncoder().encode(told.pieces.slice(1).join("")).length;
  const ofModel = bits.map((each, k) => (k < told.given ? 0 : each)); // not of the beginning
  const places = largest(ofModel, 5).filter((k) => ofModel[k] > 0);
  const items = places.map((k) => {
    return listItem(visible(told.pieces[k]), inWords(k), ofTen[k], () => look(told, k));
  });
  return [
    paragraph(
      "Shaded: how unexpected each word was. If the model gave it 50%, it carries 1 bit of" +
        " surprise; 25%, 2 bits; 0.1%, 10 bits.",
    ),
    paragraph(
      `All of it: ${Math.round(total)} bits for ${bytes} bytes of text: `,
      element("b", {}, `${(total / Math.max(1, bytes)).toFixed(2)} bits per byte`),
      ". The most surprising words behind the beginning:",
    ),
    element("ol", {}, ...items),
  ];
}
