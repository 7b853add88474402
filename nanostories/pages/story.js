// The page around the engine (engine.js): asks it for one token at a time, and shows the story.
const HINT =
  "Click a word of the story to see which words were likely there, and to continue with another.";
const NUMBERS = 1_000_000; // of stories
const $ = (id) => document.getElementById(id);
const contextLength = data.engine.config.block_size;

// ---- The engine, in a worker; in this page, and slower, where there is none ----

let worker = null;
let calls = 0;
const waiting = new Map(); // number of a call -> the resolve and reject of its promise

async function ask(call, ...args) {
  if (worker) {
    return new Promise((resolve, reject) => {
      calls += 1;
      waiting.set(calls, { resolve, reject });
      worker.postMessage({ number: calls, call, args });
    });
  }
  await new Promise((resolve) => setTimeout(resolve)); // the page shows what it has
  return CALLS[call](...args);
}

function startWorker() {
  const source = new Blob([$("engine.js").textContent], { type: "text/javascript" });
  worker = new Worker(URL.createObjectURL(source));
  worker.onmessage = ({ data: { number, result, error } }) => {
    const { resolve, reject } = waiting.get(number);
    waiting.delete(number);
    if (error === undefined) resolve(result);
    else reject(new Error(error));
  };
  worker.onerror = ({ message }) => {
    for (const { reject } of waiting.values()) reject(new Error(message || "its worker failed"));
    waiting.clear();
  };
}

async function start() {
  const weights = $("weights").textContent;
  try {
    startWorker();
    await ask("load", data.engine, weights);
  } catch {
    worker?.terminate();
    worker = null;
    await ask("load", data.engine, weights);
  }
  $("weights").remove();
}

// ---- Stories ----

// pieces: of text, one for each of ids; given: how many of them the reader wrote; number: decides
// what is drawn
let story = { ids: [], pieces: [], given: 0, number: 0 };
const earlier = []; // stories to go back to
let turn = 0; // counts the reader's requests; results of an earlier one are dropped

// A header as nanostories/corpus/instruct_headers.py writes it, of the fields that are filled in;
// then the story's beginning.
function prompt() {
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
  const items = text.split(",").map((item) => item.trim());
  return items.filter((item) => item !== "").join(", ");
}

async function tell() {
  const mine = beginTurn();
  if (!mine) return;
  const ids = [...data.prefix, ...(await ask("encode", prompt()))];
  if (turn !== mine) return;
  if (ids.length >= contextLength) {
    const most = contextLength - 1;
    finish(`This beginning has ${ids.length} tokens; the model reads at most ${most}: shorten it.`);
    return;
  }
  const chosen = $("number").value;
  const number = chosen === "" ? Math.floor(NUMBERS * Math.random()) : Number(chosen);
  const given = ids.length;
  if (given === 0) ids.push(data.end_of_text); // a model needs a token to start from
  await tellFrom(ids, given, number, mine);
}

// The number of this request; null if temperature or number are no numbers, which the browser says.
function beginTurn() {
  if (!$("ask").reportValidity()) return null;
  turn += 1;
  busy(true);
  message("Reading …");
  return turn;
}

// Begins a story with these tokens, and continues until it ends or is stopped.
async function tellFrom(ids, given, number, mine) {
  const temperature = Number($("temperature").value);
  const bytes = await ask("bytes", ids);
  if (turn !== mine) return;
  const decoder = new TextDecoder(); // a character may take several tokens
  const pieces = bytes.map((each) => decoder.decode(each, { stream: true }));
  if (story.ids.length) earlier.push(story);
  const told = { ids, pieces, given, number };
  show(told);
  message("Telling …");

  const before = ids.length;
  const started = performance.now();
  let hasEnded = false;
  while (!hasEnded && ids.length < contextLength) {
    const next = await ask("next", ids, { temperature, number, given, off: [] });
    if (turn !== mine) return;
    hasEnded = next.id === data.end_of_text;
    if (!hasEnded) append(told, next.id, decoder.decode(next.bytes, { stream: true }));
  }
  const added = ids.length - before;
  const speed = Math.round((1000 * added) / (performance.now() - started));
  const end = hasEnded ? "the end" : `it stops here, as the model reads ${contextLength} tokens`;
  finish(`Story number ${number}: ${end}. ${added} tokens, ${speed} a second.`);
}

function append(told, id, piece) {
  told.ids.push(id);
  told.pieces.push(piece);
  $("story").append(wordOf(told, told.ids.length - 1));
}

function stop() {
  turn += 1;
  finish("Stopped. Click a word to continue differently from there.");
}

function back() {
  show(earlier.pop());
  finish(`Story number ${story.number}.`);
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

// ---- The story on the page ----

function show(told) {
  story = told;
  $("story").replaceChildren(...told.ids.map((_, i) => wordOf(told, i)));
  $("likeliest").replaceChildren();
  $("word").textContent = HINT;
}

function wordOf(told, i) {
  const attributes = {
    "data-i": i,
    role: "button",
    "aria-label": visible(told.pieces[i].trim()),
    tabindex: i === 0 ? 0 : -1,
    class: i < told.given ? "given" : "",
  };
  return element("span", attributes, told.pieces[i]);
}

function visible(piece) {
  return piece.replaceAll("\n", "↵") || "·";
}

function percent(share) {
  if (share < 0.001) return "< 0.1%";
  return `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`;
}

// The likeliest words in place of the word i.
async function look(i) {
  if (!$("stop").disabled) stop();
  const told = story;
  for (const word of $("story").children) {
    word.classList.toggle("chosen", word.dataset.i === String(i));
  }
  $("likeliest").replaceChildren();
  if (i === 0) {
    $("word").textContent = "Nothing comes before the first word.";
    return;
  }
  const { layers } = await ask("inspect", told.ids, i);
  if (story !== told) return;
  const found = layers.at(-1);
  const word = `“${visible(told.pieces[i].trim())}” (${percent(found.share)})`;
  $("word").textContent = `Likely in place of ${word}; click one to continue with it:`;
  $("likeliest").replaceChildren(...found.top.map((token) => choice(i, token)));
  $("likeliest").scrollIntoView({ block: "nearest" }); // on a phone it is below the story
}

function choice(i, { id, share, bytes }) {
  const isEnd = id === data.end_of_text;
  const piece = isEnd ? "(the end)" : visible(new TextDecoder().decode(bytes));
  const attributes = { type: "button", onclick: () => guarded(() => branch(i, id)) };
  const texts = [element("span", {}, piece), element("span", { class: "quiet" }, percent(share))];
  return element("li", {}, element("button", attributes, ...texts));
}

// Another story: this one up to the word i, then the token `id`, then the model continues.
async function branch(i, id) {
  const { number } = story;
  const ids = story.ids.slice(0, i);
  const given = Math.min(story.given, i);
  if (id === data.end_of_text) {
    earlier.push(story);
    show({ ids, given, number, pieces: story.pieces.slice(0, i) });
    finish("The end.");
    return;
  }
  const mine = beginTurn();
  if (mine) await tellFrom([...ids, id], given, number, mine);
}

// An error in the engine becomes a sentence on the page, and the reader's text stays.
async function guarded(action) {
  try {
    await action();
  } catch (error) {
    finish(`That did not work in this browser: ${error.message}`);
  }
}

// ---- The page ----

function connect() {
  $("ask").onsubmit = (event) => {
    event.preventDefault();
    guarded(tell);
  };
  $("stop").onclick = stop;
  $("back").onclick = back;
  $("story").onclick = ({ target }) => {
    if (target.dataset.i) guarded(() => look(Number(target.dataset.i)));
  };
  $("story").onkeydown = (event) => {
    const { key, target } = event;
    if (key === "ArrowRight") target.nextSibling?.focus();
    if (key === "ArrowLeft") target.previousSibling?.focus();
    if (key === "Enter" || key === " ") {
      event.preventDefault();
      target.click();
    }
  };
}

function fill() {
  for (const id of ["beginning", "beginnings", "story", "likeliest"]) $(id).lang = data.language;
  for (const field of data.fields) {
    const input = element("input", { type: "text", "data-field": field });
    $("fields").append(element("label", {}, field, input));
  }
  for (const text of data.openings) {
    const use = () => {
      $("beginning").value = text;
    };
    $("beginnings").append(element("button", { type: "button", onclick: use }, `${text} …`));
  }
  for (const [name, value] of Object.entries(data.about)) {
    $("about").append(
      element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, value)),
    );
  }
}

fill();
start().then(
  () => {
    connect();
    busy(false);
    message("Ready.");
  },
  (error) => {
    message(`The model did not start in this browser: ${error.message}. A newer one may help.`);
  },
);
