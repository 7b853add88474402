// The page around the engine (engine.js): asks it for one token at a time, and shows the story.
const NUMBERS = 1_000_000; // of stories
const $ = (id) => document.getElementById(id);
const contextLength = data.engine.config.block_size;

// ---- The engine, in a worker ----

let tokenizer;
let worker;
let failure = null; // an error, once the worker has failed for good
let waiting = []; // resolve and reject of each call's promise; the worker answers in their order

function ask(call, ...args) {
  return new Promise((resolve, reject) => {
    if (failure) throw failure;
    waiting.push({ resolve, reject });
    worker.postMessage({ call, args });
  });
}

async function start() {
  tokenizer = new Tokenizer(data.vocabulary);
  const source = new Blob([$("engine.js").textContent], { type: "text/javascript" });
  worker = new Worker(URL.createObjectURL(source));
  worker.onmessage = ({ data: { result, error } }) => {
    const { resolve, reject } = waiting.shift();
    if (error === undefined) resolve(result);
    else reject(new Error(error));
  };
  worker.onerror = ({ message }) => {
    failure = new Error(message || "its worker failed");
    for (const { reject } of waiting) reject(failure);
    waiting = [];
  };
  await ask("load", data.engine, $("weights").textContent);
  $("weights").remove();
  connect();
  busy(false);
  message("Ready.");
}

// ---- Stories ----

// A story: ids; pieces: of text, one for each of ids; given: how many of them the reader wrote;
// number: decides what is drawn, from the place `drawn` on; temperature; off: heads that are off;
// changed: whether it is another than the story of that number; isEnd: whether the reader chose
// that nothing follows; box: its element
let story = { ids: [], pieces: [], given: 0, number: 0, temperature: 1, off: [] }; // story A
let other = null; // story B, which "Compare" tells
const earlier = []; // stories to go back to
let turn = 0; // counts what the reader asked for; a story that was asked for before goes no further

// A header as nanostories/corpus/instruct_headers.py writes it, of the fields that are filled in;
// then the story's beginning.
function promptText() {
  const beginning = $("beginning").value.trimEnd();
  let header = "";
  for (const input of document.querySelectorAll("[data-field]")) {
    const { field } = input.dataset;
    const text = fieldText(field, input.value);
    if (text) header += `${field}: ${text}\n`;
  }
  if (!header) return beginning;
  return beginning ? `${header}Story:\n\n${beginning}` : `${header}Story:`;
}

function fieldText(field, typed) {
  const text = typed.split(/\s+/).join(" ").trim();
  if (field !== "Words" && field !== "Features") return text;
  return text.split(/\s*,\s*/).filter((item) => item !== "").join(", ");
}

async function tell() {
  if (!$("ask").reportValidity()) return; // the browser says what is no number
  $("lesson").hidden = true; // its buttons are about another story
  const ids = [...data.prefix, ...tokenizer.encode(promptText())];
  if (ids.length >= contextLength) {
    const most = `the model reads at most ${contextLength - 1}: shorten it`;
    message(`This beginning has ${ids.length} tokens; ${most}.`);
    return;
  }
  const chosen = $("number").value;
  const number = chosen === "" ? Math.floor(NUMBERS * Math.random()) : Number(chosen);
  const given = ids.length;
  if (given === 0) ids.push(data.end_of_text); // a model needs a token to start from
  const temperature = Number($("temperature").value);
  await tellFrom({ ids, given, number, temperature, off: [...switchedOff] });
  if (document.activeElement === document.body) $("tell").focus();
}

// A story without its pieces becomes one.
function withPieces(beginning) {
  const decoder = new TextDecoder(); // a character may take several tokens
  const pieces = beginning.ids.map((id) => decoder.decode(tokenizer.bytes(id), { stream: true }));
  return { ...beginning, pieces, decoder };
}

// Begins story A with these tokens, and continues until it ends or is stopped.
async function tellFrom(beginning) {
  keepStory();
  show(withPieces(beginning));
  await continueStory(story);
}

// So that the reader can go back to it.
function keepStory() {
  if (story.ids.length) earlier.push(story);
}

async function continueStory(told) {
  turn += 1;
  const mine = turn;
  told.number ??= 0; // from here on it is told with these dice
  const { ids, decoder, temperature, number, given, off } = told;
  busy(true);
  message("Telling …");
  const before = ids.length;
  const started = performance.now();
  let hasEnded = told.isEnd ?? false;
  while (!hasEnded && ids.length < contextLength) {
    const id = await ask("next", ids, { temperature, number, given, off });
    if (turn !== mine) return;
    hasEnded = id === data.end_of_text;
    if (!hasEnded) append(told, id, decoder.decode(tokenizer.bytes(id), { stream: true }));
  }
  const added = ids.length - before;
  const speed = Math.round((1000 * added) / Math.max(1, performance.now() - started));
  const most = `it stops here, as the model can read only ${contextLength} tokens`;
  const end = hasEnded ? "the end" : most;
  finish(`${nameOf(told)}: ${end}. ${added} tokens, ${speed} a second.`);
  await showView();
}

// What it takes to tell it again.
function nameOf({ number, temperature, off, changed }) {
  if (number === null) return "A story that was told when the page was made";
  const without = off.length ? `, without ${off.map(headName).join(" and ")}` : "";
  const change = changed ? ", changed" : "";
  return `Story number ${number} at temperature ${temperature}${change}${without}`;
}

function append(told, id, piece) {
  told.ids.push(id);
  told.pieces.push(piece);
  appendWord(told, told.ids.length - 1);
}

function stop() {
  turn += 1;
  finish("Stopped. Choose a word to continue differently from there.");
}

// told: a story with its pieces
function showAgain(told) {
  turn += 1;
  show(told);
  finish(`${nameOf(told)}.`);
}

function message(text) {
  $("status").textContent = text;
}

function finish(text) {
  busy(false);
  message(text);
}

function busy(isBusy) {
  $("tell").disabled = isBusy;
  $("stop").disabled = !isBusy;
  $("back").disabled = isBusy || earlier.length === 0;
}

// ---- The stories on the page ----

function show(told) {
  story = told;
  $("keep").hidden = $("microscope").hidden = false;
  render(told, $("story"));
  showOther(null);
  looking = null;
  selected = null;
  guarded(() => openTab(tab));
}

function showOther(told) {
  if (other && looking?.told === other) {
    looking = null;
    selected = null;
  }
  other = told;
  if (told) render(told, $("other"));
  $("stories").classList.toggle("both", told !== null);
  for (const part of document.querySelectorAll(".ab")) part.hidden = told === null;
}

function render(told, box) {
  told.box = box;
  box.replaceChildren();
  told.ids.forEach((_, i) => appendWord(told, i));
}

function appendWord(told, i) {
  const attributes = {
    "data-i": i,
    role: "button",
    "aria-label": visible(told.pieces[i]),
    tabindex: -1,
    class: i < told.given ? "given" : "",
  };
  const word = element("span", attributes, told.pieces[i]);
  word.hidden = told.pieces[i] === ""; // the end of text, or a part of a character
  if (!word.hidden && !told.box.querySelector("[tabindex='0']")) word.tabIndex = 0;
  told.box.append(word);
}

function visible(piece) {
  return piece.replaceAll("\n", "↵").trim() || "·";
}

function percent(share) {
  if (share < 0.001) return "< 0.1%";
  if (share > 0.999) return "> 99.9%";
  return `${(100 * share).toFixed(share < 0.1 || share > 0.99 ? 1 : 0)}%`;
}

// Story `told` up to the word i, then this token, if any, then the model continues.
async function branch(told, i, id = null) {
  const { number, temperature } = told;
  const ids = told.ids.slice(0, i);
  const isEnd = id === data.end_of_text; // as the reader chose
  if (id !== null && !isEnd) ids.push(id);
  const given = Math.min(told.given, i);
  const drawn = ids.length;
  const off = [...switchedOff];
  await tellFrom({ ids, given, number, temperature, changed: true, drawn, off, isEnd });
}

// An error in the engine becomes a sentence on the page, and the reader's text stays.
async function guarded(action) {
  try {
    await action();
  } catch (error) {
    finish(`That did not work in this browser: ${error.message}`);
  }
}

// ---- Taking a story along ----

function saveStory() {
  const text = `${story.pieces.join("").trim()}\n\n(${document.title}. ${nameOf(story)}.)\n`;
  saveAs(`story-${story.number ?? 0}.txt`, text, "text/plain");
}

// ---- The page ----

function connect() {
  $("ask").onsubmit = (event) => {
    event.preventDefault();
    guarded(tell);
  };
  $("stop").onclick = () => {
    stop();
    guarded(showView);
  };
  $("back").onclick = () => showAgain(earlier.pop());
  $("save").onclick = saveStory;
  for (const box of [$("story"), $("other")]) {
    withArrowKeys(box);
    box.onclick = ({ target }) => {
      const told = box === $("story") ? story : other;
      if (target.dataset.i) guarded(() => look(told, Number(target.dataset.i)));
    };
  }
  connectMicroscope();
  connectLessons();
}

// Of a group, one element is reached by Tab, and the others from there by arrow keys; Enter or the
// space bar press them. columns: of a grid, for up and down
function withArrowKeys(group, columns = NaN) {
  group.onkeydown = (event) => {
    const items = [...group.querySelectorAll("[role=button]:not([hidden]), button")];
    const here = items.indexOf(event.target);
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    const ends = { Home: items[0], End: items.at(-1) };
    const next = ends[event.key] ?? items[here + steps[event.key]];
    if (next) {
      event.preventDefault();
      event.target.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      event.target.click();
    }
  };
}

function fill() {
  for (const id of ["beginning", "beginnings", "story", "other"]) $(id).lang = data.language;
  for (const field of data.fields) {
    const input = element("input", { type: "text", "data-field": field });
    $("fields").append(element("label", {}, field, input));
  }
  for (const input of document.querySelectorAll('textarea, [type="text"]')) {
    input.maxLength = 10 * contextLength; // characters: more never fit, and take long to encode
  }
  for (const text of data.openings) {
    $("beginnings").append(button(`${text} …`, () => ($("beginning").value = text)));
  }
  for (const [name, value] of Object.entries(data.facts)) {
    $("about").append(element("tr", {}, rowTitle(name), element("td", {}, value)));
  }
}

fill();
start().catch(({ message: reason }) => {
  message(`The model did not start in this browser: ${reason}. A newer one may help.`);
});
