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
  $("tell-temperature").onclick = () => guarded(tellWithTemperature);
  $("tell-name").onclick = () => guarded(tellWithName);
  $("tell-heads").onclick = () => guarded(() => tellOther({ off: [...switchedOff] }));
  openTab("next");
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
  if (!$("stop").disabled) stop();
  looking = { told, i };
  for (const word of document.querySelectorAll(".story span")) {
    word.classList.toggle("chosen", word === told.box.children[i]);
  }
  await showView();
  told.box.children[i].scrollIntoView({ block: "nearest" }); // above the sheet of a small screen
}

function forgetWord() {
  looking = null;
  selected = null;
  showView();
}

// Shows the open tab for the chosen word.
async function showView() {
  view += 1;
  const mine = view;
  shade([]);
  showSwitchedOff();
  $("change").hidden = tab !== "compare" || story.ids.length === 0;
  const { needsWord, show } = TABS[tab];
  const found = await inspectWord();
  if (view !== mine) return;
  $("word").textContent = headline(found);
  const hint = looking ? "Nothing comes before it: it was not predicted." : HINT;
  const hasNothing = (needsWord && !found) || story.ids.length === 0;
  const content = hasNothing ? [paragraph(hint)] : await show(found, mine);
  if (view === mine) $("panel").replaceChildren(...content);
}

// With the heads that are off; and `intact`, this word's share with all of them.
async function inspectWord() {
  if (!looking || looking.told.pieces.slice(0, looking.i).join("") === "") return null;
  const { told, i } = looking;
  const found = await ask("inspect", told.ids, i, [...switchedOff]);
  found.share = found.layers.at(-1).share;
  found.intact = found.share;
  if (switchedOff.size) {
    const { layers } = await ask("inspect", told.ids, i, [], told.ids[i], 0);
    found.intact = layers.at(-1).share;
  }
  return found;
}

function headline(found) {
  if (!looking) return "Choose a word of the story";
  if (!found) return `${chosenWord()} is the first word`;
  const intact = switchedOff.size ? ` (${percent(found.intact)} with all heads)` : "";
  return `${percent(found.share)} sure of ${chosenWord()}${intact}`;
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

function chosenWord() {
  return quoted(looking.told.pieces[looking.i]);
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

// A button for a word of the story, which chooses it.
function wordButton(told, k, note) {
  const texts = [element("span", {}, visible(told.pieces[k].trim())), element("span", {}, note)];
  const attributes = { type: "button", onclick: () => guarded(() => look(told, k)) };
  return element("li", {}, element("button", attributes, ...texts));
}

// ---- Next word ----

function showNext({ layers }) {
  const { top } = layers.at(-1);
  const about = "The likeliest words in this place. Choose one to go on with it instead:";
  return [paragraph(about), element("ol", { id: "likeliest" }, ...top.map(choice))];
}

function choice(token) {
  const { told, i } = looking;
  const texts = [element("span", {}, textOf(token)), element("span", {}, percent(token.share))];
  const onclick = () => guarded(() => branch(told, i, [token.id]));
  const made = element("button", { type: "button", class: "bar", onclick }, ...texts);
  return element("li", {}, withShare(made, token.share));
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
    table(["Layer", "Would say", chosenWord()], rows, "wide"),
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
  const grid = table(["", ...attention[0].map((_, head) => String(head + 1))], rows, "heads");
  withArrowKeys(grid, attention[0].length);
  const chosen = grid.querySelector("[aria-pressed=true]") ?? grid.querySelector("button");
  chosen.tabIndex = 0;
  const about =
    `Before ${chosenWord()} was said, each head looked back at the words before. Rows are layers,` +
    " columns heads; the darker, the harder it looked at one word. Choose a head to see where it" +
    " looked; press it again to switch it off.";
  return [paragraph(about), grid, ...aboutHead(attention)];
}

// Attention to words; that to the end of text before the story counts as none.
function ofWords(row, told) {
  return [...row].map((share, k) => (told.pieces[k] === "" ? 0 : share));
}

function headCell(head, shares) {
  const [place] = largest(shares, 1);
  const isOff = switchedOff.has(head);
  const looks = place === undefined ? "" : `: ${percent(shares[place])} at ${pieceAt(place)}`;
  const made = element("button", {
    type: "button",
    tabindex: -1,
    "data-head": head,
    class: isOff ? "off" : "",
    "aria-pressed": head === selected,
    "aria-label": isOff ? `${headName(head)}, switched off` : headName(head) + looks,
    onclick: () => guarded(() => pressHead(head)),
  });
  made.title = made.ariaLabel;
  return element("td", {}, withShare(made, isOff ? 0 : (shares[place] ?? 0)));
}

function pieceAt(k) {
  return quoted(looking.told.pieces[k]);
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
  const places = largest(shares, 3).map((k) => `${pieceAt(k)} ${percent(shares[k])}`);
  const isOff = switchedOff.has(selected);
  const looks = `${headName(selected)} looks at ${places.join(", ") || "no word"}.`;
  const without = `Tell on from here without ${countOf(switchedOff.size, "head")}`;
  const goOn = button(without, () => branch(told, i, []));
  goOn.hidden = !isOff;
  return [paragraph(looks[0].toUpperCase() + looks.slice(1)), goOn];
}

// Says which heads are off, in every tab.
function showSwitchedOff() {
  const heads = [...switchedOff];
  $("off").hidden = heads.length === 0;
  const names = heads.map(headName).join("; ");
  $("off").replaceChildren(`Switched off: ${names}. `, button("All on", () => switchOff([])));
  const without = heads.length ? countOf(heads.length, "head") : "heads (see “Looking back”)";
  $("heads-off").textContent = `Without ${without}`;
  $("tell-heads").disabled = heads.length === 0;
}

// ---- Compare ----

let exchange = null; // [name in A, name in B]

async function tellWithTemperature() {
  if (!$("b-temperature").reportValidity()) return;
  await tellOther({ temperature: Number($("b-temperature").value) });
}

async function tellWithName() {
  await tellOther({}, [$("from").value.trim(), $("to").value.trim()]);
}

function exchanged(text, names = exchange) {
  return names ? text.replaceAll(...names) : text;
}

// Tells story B: as A up to the chosen word, or where the beginning ends, then with the same dice.
async function tellOther(change, names = null) {
  const isInA = looking && looking.told === story;
  const from = Math.max(story.given, isInA ? looking.i : 0);
  const before = story.pieces.slice(0, from).join("");
  const text = exchanged(before, names);
  if (names && (names[0] === "" || text === before)) {
    message(`The name “${names[0]}” does not stand before the chosen word: nothing to exchange.`);
    return;
  }
  const mine = beginTurn();
  if (!mine) return;
  let ids = story.ids.slice(0, from);
  if (names) ids = [...data.prefix, ...(await ask("encode", text))];
  // The dice count from where the reader's words end.
  const given = ids.length - (from - story.given);
  const told = await withPieces({ ...story, off: [], ...change, ids, given });
  if (turn !== mine) return;
  exchange = names;
  showOther(told);
  await continueStory(told, mine);
  if (tab === "compare") await showView();
}

// Of A: the first word after the beginning that B has not, too; -1 if they are equal.
function firstDifference() {
  const words = (told) => told.pieces.slice(told.given);
  const inB = words(other);
  const difference = words(story).findIndex((piece, k) => exchanged(piece) !== inB[k]);
  return difference < 0 ? difference : story.given + difference;
}

async function showCompare() {
  const about =
    "Story B keeps A up to the chosen word (or the end of your beginning), and goes on with the" +
    " same dice: where they part, it is the change that parts them.";
  if (!other) return [paragraph(about)];
  const k = firstDifference();
  const shift = other.given - story.given;
  for (const word of document.querySelectorAll(".differs")) word.classList.remove("differs");
  let parting = "Both tell the same story, word for word.";
  if (exchange) parting = "Both tell the same story; only the name differs.";
  const places = [];
  if (k >= 0) {
    const inB = other.pieces[k + shift] ? quoted(other.pieces[k + shift]) : "nothing more";
    parting = `They part where A says ${quoted(story.pieces[k])} and B ${inB}.`;
    story.box.children[k].classList.add("differs");
    other.box.children[k + shift]?.classList.add("differs");
    places.push(k);
  }
  if (looking?.told === story && looking.i !== k) places.push(looking.i);
  const rows = await Promise.all(places.map(sharesOfBoth));
  return [
    paragraph(parting),
    table(["How sure of …", "A", "B"], rows, "wide"),
    button("Only story A", async () => closeOther()),
  ];
}

// How sure A and B were of the word k of A; of the other name, where names are exchanged.
async function sharesOfBoth(k) {
  const inB = k + other.given - story.given;
  const piece = exchanged(story.pieces[k]);
  let id = story.ids[k];
  if (piece !== story.pieces[k]) [id] = await ask("encode", piece);
  const a = await ask("inspect", story.ids, k, story.off, story.ids[k], 0);
  const cells = [rowTitle(quoted(piece)), bar(a.layers.at(-1).share)];
  if (inB <= other.ids.length) {
    const b = await ask("inspect", other.ids, inB, other.off, id, 0);
    cells.push(bar(b.layers.at(-1).share));
  }
  return element("tr", {}, ...cells);
}

function closeOther() {
  if (looking?.told === other) looking = null;
  exchange = null;
  showOther(null);
  showView();
}

// ---- Decided? ----

// At each earlier word: how high the chosen word stood among those that any layer would say next.
async function showDecided(found, mine) {
  const { told, i } = looking;
  const ranks = [];
  $("panel").replaceChildren(paragraph("Looking through the story …"));
  for (let k = i - 1; k >= 0; k--) {
    const { layers } = await ask("inspect", told.ids, k + 1, [...switchedOff], told.ids[i], 0);
    if (view !== mine) return [];
    ranks[k] = Math.min(...layers.map(({ rank }) => rank));
    const share = Math.max(0, 1 - Math.log10(ranks[k]) / 2);
    withShare(told.box.children[k], share).title = `number ${ranks[k]}`;
  }
  const high = [...ranks.keys()].filter((k) => ranks[k] <= 10);
  const first = high[0] ?? i - 1;
  const context = told.pieces.slice(Math.max(0, first - 4), first + 1).join("");
  return [
    paragraph(
      `Shaded: after which words ${chosenWord()} was among the likely ones in some layer. Dark: it` +
        " came first; without color: not among the first hundred.",
    ),
    paragraph(
      `It was among the first ten after ${high.length} of ${i} words, for the first time after ` +
        `${quoted(`… ${context}`)}.`,
    ),
    note("A common word is likely nearly everywhere: look at a rare one, too."),
  ];
}

// ---- Surprise ----

async function showSurprise() {
  const told = looking?.told ?? story;
  const shares = await ask("shares", told.ids, [...switchedOff]);
  const bits = [0, ...shares.map((share) => -Math.log2(share))];
  const titles = bits.map((each, k) => `${each.toFixed(1)} bits: ${percent(shares[k - 1] ?? 1)}`);
  shade(bits.map((each) => Math.min(1, each / 10)), told, titles);
  const total = bits.reduce((sum, each) => sum + each, 0);
  const bytes = new TextEncoder().encode(told.pieces.slice(1).join("")).length;
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
    element(
      "ol",
      {},
      ...largest(bits, 5).map((k) => wordButton(told, k, `${bits[k].toFixed(1)} bits`)),
    ),
  ];
}
