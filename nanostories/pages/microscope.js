// The microscope of story.html: how the model came to the word that the reader chose. Each tab
// shows one view of it; heads that are switched off here are off everywhere.
"use strict";
const HINT = "Tap or click a word of the story, or go there with Tab and the arrow keys.";

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
  told.box.children[i].scrollIntoView({ block: "nearest" }); // above the sheet of a small screen
}

function forgetWord() {
  looking = null;
  selected = null;
  guarded(() => openTab(tab));
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
  const { ids } = looking.told;
  const found = await ask("inspect", ids, looking.i, [...switchedOff]);
  if (switchedOff.size) found.intact = (await ask("inspect", ids, looking.i)).share;
  return found;
}

function headline(found) {
  if (!looking) return "Choose a word of the story";
  if (!found) return `${wordAt(looking.i)} is the first word`;
  const intact = switchedOff.size ? ` (${percent(found.intact)} with all heads)` : "";
  return `${percent(found.share)} sure of ${wordAt(looking.i)}${intact}`;
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
  return `“${visible(piece.trim())}”`;
}

// Word k of the story that is looked at.
function wordAt(k) {
  return quoted(looking.told.pieces[k]);
}

// Without its space; "…" before what goes on a word.
function textOf({ id, bytes }) {
  if (id === data.end_of_text) return "(the end)";
  const text = new TextDecoder().decode(bytes);
  return /^\p{L}/u.test(text) ? `…${text}` : visible(text.trim());
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
function shade(shares, told = looking?.told ?? story, titles = []) {
  for (const word of document.querySelectorAll(".story span")) {
    withShare(word, 0);
    word.title = "";
  }
  shares.forEach((share, k) => {
    withShare(told.box.children[k], share);
    told.box.children[k].title = titles[k] ?? percent(share);
  });
}

// The places of the n largest values.
function largest(values, n) {
  const places = [...values.keys()].filter((k) => values[k] > 0);
  return places.sort((a, b) => values[b] - values[a]).slice(0, n);
}

function listItem(text, figure, share, action) {
  const texts = [text, figure].map((part) => element("span", {}, part));
  const attributes = { type: "button", class: "bar", onclick: () => guarded(action) };
  return element("li", {}, withShare(element("button", attributes, ...texts), share));
}

// ---- Next word ----

function showNext({ layers }) {
  const { told, i } = looking;
  const about = "The likeliest words in this place. Choose one to go on with it instead:";
  const items = layers.at(-1).top.map((token) => {
    const goOn = () => branch(told, i, token.id);
    return listItem(textOf(token), percent(token.share), token.share, goOn);
  });
  return [paragraph(about), element("ol", { id: "likeliest" }, ...items)];
}

// ---- Layers ----

function showLayers({ layers }) {
  const rows = layers.map(({ top, share }, layer) => {
    const [first, second] = top.map((token) => `${textOf(token)} ${percent(token.share)}`);
    const guesses = element("td", {}, element("b", {}, first), `, ${second}`);
    return element("tr", {}, rowTitle(layer + 1), guesses, bar(share));
  });
  return [
    paragraph("The layers work one after the other. What would each say, if it were the last?"),
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
    " looked; press it again to switch it off: the line at the top then says how sure the model" +
    " is without it.";
  return [paragraph(about), grid, ...aboutHead(attention)];
}

// Attention to words; that to the end of text before the story counts as none.
function ofWords(row, told) {
  return [...row].map((share, k) => (told.pieces[k] === "" ? 0 : share));
}

function headCell(head, shares) {
  const isOff = switchedOff.has(head);
  const [place = 0] = largest(shares, 1);
  const looks = isOff ? "switched off" : `${percent(shares[place])} at ${wordAt(place)}`;
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
  const looks = paragraph(`Now ${name}: it looks at ${seen || "many words, a little each"}.`);
  if (!switchedOff.has(selected)) return [looks];
  const without = `Tell on from here without ${countOf(switchedOff.size, "head")}`;
  return [looks, button(without, () => branch(told, i))];
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

// A text of A as it should be in B; names: [in A, in B], if one is exchanged
function inB(text, names = other.names) {
  return names ? text.replaceAll(names[0], () => names[1]) : text;
}

// Tells story B: as A up to the chosen word, or where the beginning ends, then with the same dice.
async function tellOther(change, names = null) {
  if (!$("b-temperature").reportValidity()) return;
  const isInA = looking && looking.told === story;
  const from = Math.max(1, story.given, isInA ? looking.i : 0); // a model needs a token
  const before = story.pieces.slice(0, from).join("");
  const text = inB(before, names);
  if (names && (names[0] === "" || text === before)) {
    const problem = names[0] ? `“${names[0]}” does not stand there` : "type one";
    message(`Which name before the chosen word should be another? ${problem}.`);
    return;
  }
  if (story.number === null) {
    message("Story A was told when the page was made, with other dice: choose a next word for it first.");
    return;
  }
  const mine = beginTurn();
  if (!mine) return;
  let ids = story.ids.slice(0, from);
  if (names) {
    const first = ids[0] === data.end_of_text ? [data.end_of_text] : [];
    ids = [...first, ...(await ask("encode", text))];
  }
  // B's dice go on where A's did: A's model had drawn this many tokens before.
  const drawn = from - story.given;
  const given = ids.length - drawn;
  const told = await withPieces({ ...story, off: [], ...change, ids, given, names });
  if (turn !== mine) return;
  showOther(told);
  await continueStory(told, mine);
}

async function showCompare() {
  const about =
    "Story B keeps A up to the chosen word (or the end of your beginning), and goes on with the" +
    " same dice: where they part, it is the change that parts them.";
  if (!other) return [paragraph(about)];
  const shift = other.given - story.given;
  const isSame = (piece, i) => i < story.given || inB(piece) === other.pieces[i + shift];
  const parted = story.pieces.findIndex((piece, i) => !isSame(piece, i));
  const places = new Set();
  let parting = `Both tell the same story${other.names ? ", but for the name" : ""}.`;
  if (other.ids.length > story.ids.length + shift) parting = "B goes on where A ends.";
  for (const word of document.querySelectorAll(".differs")) word.classList.remove("differs");
  if (parted >= 0) {
    const place = parted + shift;
    const instead = place < other.ids.length ? quoted(other.pieces[place]) : "nothing more";
    parting = `They part where A says ${quoted(story.pieces[parted])} and B ${instead}.`;
    story.box.children[parted].classList.add("differs");
    other.box.children[place]?.classList.add("differs");
    places.add(parted);
  }
  if (looking?.told === story && looking.i > 0) places.add(looking.i);
  return [
    paragraph(parting),
    table(["How sure of …", "A", "B"], await compareRows([...places], shift), "wide"),
    button("Only story A", async () => show(story)),
  ];
}

// How sure A and B were of words of A; of the other name, where names are exchanged. First all of
// A, then all of B: the engine remembers one of them.
async function compareRows(places, shift) {
  const sharesInA = [];
  for (const place of places) sharesInA.push(await shareIn(story, place, story.ids[place]));
  const rows = [];
  for (const [k, place] of places.entries()) {
    const piece = inB(story.pieces[place]);
    let id = story.ids[place];
    let title = quoted(story.pieces[place]);
    if (piece !== story.pieces[place]) {
      [id] = await ask("encode", piece);
      title += ` / ${quoted(piece)}`;
    }
    const cells = [bar(sharesInA[k]), bar(await shareIn(other, place + shift, id))];
    rows.push(element("tr", {}, rowTitle(title), ...cells));
  }
  return rows;
}

// How sure a story was of this token at a place; 0 behind its end
async function shareIn({ ids, off }, place, id) {
  if (place > ids.length) return 0;
  return (await ask("inspect", ids, place, off, id)).share;
}

// ---- Decided? ----

// At each earlier word: how high the chosen word stood among those that any layer would say next.
async function showDecided(found, myView) {
  const { told, i } = looking;
  const ranks = [];
  $("panel").replaceChildren(paragraph("Looking through the story …"));
  for (let k = i - 1; k >= 0; k--) {
    const { layers } = await ask("inspect", told.ids, k + 1, [...switchedOff], told.ids[i], 0);
    if (view !== myView) return [];
    ranks[k] = Math.min(...layers.map(({ rank }) => rank));
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
      `Shaded: after which words ${word} was among the hundred likeliest in some layer. Dark: it` +
        " was the likeliest.",
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
  const inWords = (k) => `${bits[k].toFixed(1)} bits`;
  const ofTen = bits.map((each) => Math.min(1, each / 10));
  shade(ofTen, told, bits.map((_, k) => inWords(k)));
  const total = bits.reduce((sum, each) => sum + each, 0);
  const bytes = new TextEncoder().encode(told.pieces.slice(1).join("")).length;
  const ofModel = bits.map((each, k) => (k < told.given ? 0 : each)); // not of the beginning
  const items = largest(ofModel, 5).map((k) => {
    return listItem(visible(told.pieces[k].trim()), inWords(k), ofTen[k], () => look(told, k));
  });
  return [
    paragraph(
      "Shaded: how unexpected each word was. If the model was 50% sure of it, it carries 1 bit of" +
        " surprise; 25%, 2 bits; 0.1%, 10 bits.",
    ),
    paragraph(
      `All of it: ${Math.round(total)} bits for ${bytes} bytes of text: `,
      element("b", {}, `${(total / bytes).toFixed(2)} bits per byte`),
      ". The most surprising words:",
    ),
    element("ol", {}, ...items),
  ];
}
