// The page around the engine (nanostories/pages/engine.js): asks it for one token at a time, and shows the story.
const HINT = "Click a word of the story to see which words were likely there, and to continue with another one.";
const $ = (id) => document.getElementById(id);
const contextLength = data.engine.config.block_size;

// ---- The engine, in its worker ----

let worker, calls = 0;
const waiting = new Map();  // number of a call -> the resolve and reject of its promise

function ask(call, ...args) {
  return new Promise((resolve, reject) => {
    waiting.set(++calls, { resolve, reject });
    worker.postMessage({ number: calls, call, args });
  });
}

async function start() {
  worker = new Worker(URL.createObjectURL(new Blob([$("engine").textContent], { type: "text/javascript" })));
  worker.onmessage = ({ data: { number, result, error } }) => {
    const { resolve, reject } = waiting.get(number);
    waiting.delete(number);
    if (error) reject(new Error(error)); else resolve(result);
  };
  await ask("load", data.engine, $("weights").textContent);
  $("weights").remove();
}

// ---- Stories ----

// pieces of text: one for each of ids; given: how many of them the reader wrote
let story = { ids: [], pieces: [], given: 0 };
const earlier = [];  // stories to go back to
let turn = 0;  // counts the reader's requests; results of an earlier one are dropped

const message = (text) => { $("status").textContent = text; };

// A header as nanostories/corpus/instruct_headers.py writes it, of the fields that are filled in; then the story's beginning.
function prompt() {
  const lists = ["Words", "Features"], beginning = $("beginning").value.trimEnd();
  const fields = [...document.querySelectorAll("[data-field]")].map(({ dataset: { field }, value }) => {
    const text = value.split(/\s+/).join(" ").trim();
    return [field, lists.includes(field) ? text.split(",").map((each) => each.trim()).filter(Boolean).join(", ") : text];
  });
  const lines = fields.filter(([, text]) => text).map(([field, text]) => `${field}: ${text}\n`);
  return lines.length ? `${lines.join("")}Story:${beginning && `\n\n${beginning}`}` : beginning;
}

async function tell() {
  const mine = ++turn;
  busy(true);
  const ids = [...data.prefix, ...await ask("encode", prompt())];
  if (turn !== mine) return;
  if (ids.length >= contextLength) return finish(`This beginning has ${ids.length} tokens; the model reads at most ${contextLength - 1}: shorten it.`);
  await tellFrom(ids.length ? ids : [data.end_of_text], ids.length);  // a model needs a token to start from
}

// Begins a story with these tokens, and continues until it ends or is stopped.
async function tellFrom(ids, given) {
  const mine = ++turn, decoder = new TextDecoder();  // a character may take several tokens
  busy(true);
  message("Reading …");
  const bytes = await ask("bytes", ids);
  if (turn !== mine) return;
  if (story.ids.length) earlier.push(story);
  const own = { ids, given, pieces: bytes.map((each) => decoder.decode(each, { stream: true })) };
  show(own);
  const before = ids.length, started = performance.now(), temperature = $("temperature").checkValidity() ? Number($("temperature").value) : 0.6;
  message("Telling …");
  let ended = false;
  while (!ended && ids.length < contextLength) {
    const { id, bytes } = await ask("next", ids, temperature, Math.random());
    if (turn !== mine) return;
    ended = id === data.end_of_text;
    if (!ended) append(own, id, decoder.decode(bytes, { stream: true }));
  }
  const added = ids.length - before, speed = (1000 * added / (performance.now() - started)).toFixed(0);
  finish(`${ended ? "The end." : `The model reads at most ${contextLength} tokens: here it stops.`} ${added} tokens, ${speed} a second.`);
}

function append(own, id, piece) {
  own.ids.push(id);
  own.pieces.push(piece);
  $("story").append(wordOf(own, own.ids.length - 1));
}

function stop() {
  turn++;
  finish("Stopped. Click a word to continue differently from there.");
}

function finish(text) {
  busy(false);
  message(text);
}

function busy(is) {
  $("tell").disabled = is;
  $("stop").disabled = !is;
  $("back").disabled = is || !earlier.length;
}

// ---- The story on the page ----

function show(own) {
  story = own;
  $("story").replaceChildren(...own.ids.map((_, i) => wordOf(own, i)));
  $("likeliest").replaceChildren();
  $("word").textContent = HINT;
}

function wordOf(own, i) {
  return element("span", { "data-i": i, tabindex: i ? -1 : 0, class: i < own.given ? "given" : "" }, own.pieces[i]);
}

const shown = (piece) => piece.replaceAll("\n", "↵") || "·";
const percent = (share) => (share >= 0.001 ? `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%` : "< 0.1%");

// The likeliest words in place of the word i.
async function look(i) {
  if (!$("stop").disabled) stop();
  const own = story;
  for (const each of $("story").children) each.classList.toggle("chosen", each.dataset.i === String(i));
  $("likeliest").replaceChildren();
  if (i === 0) return void ($("word").textContent = "Nothing comes before the first word.");
  const found = await ask("likeliest", own.ids, i, 10);
  if (story !== own) return;
  $("word").textContent = `Likely in place of “${shown(own.pieces[i].trim())}” (${percent(found.own)}); click one to continue with it:`;
  $("likeliest").replaceChildren(...found.tokens.map(({ id, share, bytes }) => {
    const piece = id === data.end_of_text ? "(the end)" : shown(new TextDecoder().decode(bytes));
    return element("li", {}, element("button", { type: "button", onclick: () => guarded(() => branch(i, id)) },
      element("span", {}, piece), element("span", { class: "quiet" }, percent(share))));
  }));
  $("likeliest").scrollIntoView({ block: "nearest" });  // on a phone it is below the story
}

// Another story: this one up to the word i, then the token `id`, then the model continues.
function branch(i, id) {
  const ids = story.ids.slice(0, i), given = Math.min(story.given, i);
  if (id !== data.end_of_text) return tellFrom([...ids, id], given);
  earlier.push(story);
  show({ ids, given, pieces: story.pieces.slice(0, i) });
  finish("The end.");
}

// An error in the engine becomes a sentence on the page, and the reader's text stays.
async function guarded(action) {
  try {
    await action();
  } catch (error) {
    finish(`That did not work in this browser: ${error.message}`);
  }
}

function connect() {
  $("ask").onsubmit = (event) => { event.preventDefault(); guarded(tell); };
  $("stop").onclick = stop;
  $("back").onclick = () => { show(earlier.pop()); finish(""); };
  $("story").onclick = ({ target }) => { if (target.dataset.i) guarded(() => look(Number(target.dataset.i))); };
  $("story").onkeydown = ({ key, target }) => {
    if (key === "ArrowRight") target.nextSibling?.focus();
    if (key === "ArrowLeft") target.previousSibling?.focus();
    if (key === "Enter") target.click();
  };
}

$("beginnings").append(...data.openings.map((text) =>
  element("button", { type: "button", onclick: () => { $("beginning").value = text; } }, `${text} …`)));
start().then(() => {
  connect();
  busy(false);
  message("Ready.");
}, (error) => message(`The model did not start in this browser: ${error.message}. A newer browser may help.`));
