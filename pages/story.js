// The page around the engine (browser/engine.js): asks it for one token at a time, and shows the story.
const BEGINNINGS = ["Once upon a time, there was a little fox", "One day, a girl named Lily found a", "Tom was sad because",
                    "It was raining, and the dog"];
const CHUNK = 16;  // tokens to read at once; in between, the reader can stop
const SURPRISING = 8;  // nats at which the tint is darkest
const $ = (id) => document.getElementById(id);
const { config } = data;

// ---- The engine, in its worker ----

let worker, asked = 0;
const waiting = new Map();  // number of a call -> what to do with its answer

function ask(call, ...args) {
  return new Promise((resolve, reject) => {
    waiting.set(++asked, { resolve, reject });
    worker.postMessage({ number: asked, call, args });
  });
}

async function start() {
  const source = new Blob([$("engine").textContent], { type: "text/javascript" });
  worker = new Worker(URL.createObjectURL(source));
  worker.onmessage = ({ data: { number, result, error } }) => {
    const { resolve, reject } = waiting.get(number);
    waiting.delete(number);
    if (error) reject(new Error(error)); else resolve(result);
  };
  worker.onerror = () => {
    for (const { reject } of waiting.values()) reject(new Error("its worker failed"));
    waiting.clear();
  };
  const { dtype, shapes, vocabulary, kernels } = data;
  arithmetic = await ask("load", { config, dtype, shapes, vocabulary, kernels }, $("weights").textContent);
  $("weights").remove();
}

// ---- Tales: what was read or told; each continues from its own tokens ----

// ids; losses and pieces of text, one per id; given: how many of them the reader wrote; ending: a sentence
let tale = { ids: [], losses: [], pieces: [], given: 0, ending: "" };
const tales = [];
let turn = 0;  // counts tellings and readings; one from an earlier turn stops
let speed = 0, arithmetic = "";  // tokens per second; whether WebAssembly or JavaScript multiplies

const message = (text) => { $("status").textContent = text; };

function settings() {
  const number = (id, otherwise) => ($(id).value === "" || !$(id).checkValidity() ? otherwise : Number($(id).value));
  return { temperature: number("temperature", 0.6), top_k: number("top_k", 0), top_p: number("top_p", 1), seed: number("seed", 1) };
}

// In [0, 1), from the seed and the place in the story alone: a hash that mixes all bits (murmur3's finalizer).
function uniform(seed, place) {
  let h = Math.imul(seed + 1, 0x9e3779b1) ^ Math.imul(place + 1, 0x85ebca6b);
  for (const factor of [0x85ebca6b, 0xc2b2ae35]) h = Math.imul(h ^ (h >>> 15), factor) ^ (h >>> 13);
  return ((h ^ (h >>> 16)) >>> 0) / 2 ** 32;
}

// A header as corpus/instruct_headers.py writes it, of the fields that are filled in.
function header() {
  const fields = Object.entries(data.fields).map(([name, title]) => {
    const box = $(`field-${name}`), chosen = [...box.querySelectorAll(":checked")].map((each) => each.value);
    const text = name === "features" ? chosen.join(", ") : box.value.split(/\s+/).join(" ").trim();
    return [title, name === "words" ? text.split(",").map((word) => word.trim()).filter(Boolean).join(", ") : text];
  });
  const lines = fields.filter(([, text]) => text).map(([title, text]) => `${title}: ${text}\n`);
  return lines.length ? `${lines.join("")}Story:` : "";
}

function given() {
  const above = data.has_headers ? header() : "", text = $("beginning").value.trimEnd();
  return above && text ? `${above}\n\n${text}` : above || text;
}

// Begins a tale with these tokens, and reads them: false if it was stopped.
async function begin(ids, given) {
  const mine = ++turn;
  busy(true);
  const bytes = await ask("bytes", ids), decoder = new TextDecoder();  // a character may take several tokens
  if (turn !== mine) return false;
  const pieces = bytes.map((each) => decoder.decode(each, { stream: true }));
  const start = tale = { ids, losses: [], pieces, given, ending: "", decoder };
  tales.push(tale);
  showTale();
  for (let n = CHUNK; n < ids.length && turn === mine; n += CHUNK) {
    await ask("read", ids.slice(0, n));
    if (ids.length > 4 * CHUNK) message(`Reading … ${n} of ${ids.length} tokens`);
  }
  if (turn !== mine) return false;
  start.losses = (await ask("read", ids)).slice();
  paint();
  return turn === mine;
}

// Continues the tale until it ends or is stopped.
async function goOn() {
  const mine = turn, told = tale, how = settings(), started = performance.now(), before = told.ids.length;
  message("Telling …");
  while (turn === mine && told.ids.length < config.block_size) {
    const { id, loss, bytes } = await ask("next", told.ids, how, uniform(how.seed, told.ids.length));
    if (turn !== mine) break;
    if (id === data.end_of_text) { told.ending = "The end."; break; }
    append(told, id, loss, bytes);
  }
  if (turn !== mine) return;
  const added = told.ids.length - before;
  if (added) speed = added / (performance.now() - started) * 1000;
  if (!told.ending) told.ending = `The page is full: this model remembers no more than ${config.block_size} tokens.`;
  finish(added ? `${told.ending} ${added} tokens, ${speed.toFixed(0)} a second in this browser.` : told.ending);
}

function append(told, id, loss, bytes) {
  told.ids.push(id);
  told.losses.push(loss);
  told.pieces.push(told.decoder.decode(bytes, { stream: true }));
  $("story").append(span(told, told.ids.length - 1));
  paint(told.ids.length - 1);
}

function finish(text) {
  busy(false);
  message(text);
  showBranches();
  showSpeed();
}

async function tell() {
  const ids = await encoded(given()), most = config.block_size - 1;
  if (!ids) return;
  if (ids.length > most) {
    return finish(`This beginning has ${ids.length} tokens, but the model remembers only ${most + 1}: shorten it to ${most}.`);
  }
  if (await begin(ids, ids.length)) await goOn();
}

// The text's tokens after the prefix of every story; never empty, as a model needs one to start from. null if stopped.
async function encoded(text) {
  const mine = ++turn;
  busy(true);
  const ids = [...data.prefix, ...await ask("encode", text)];
  if (turn !== mine) return null;
  return ids.length ? ids : [data.end_of_text];
}

async function check() {
  const text = given();
  if (!text.trim()) return message("Type or paste a text first.");
  const ids = await encoded(text);
  if (!ids) return;
  const all = ids.length;
  $("coloring").value = "surprise";
  if (!await begin(ids.slice(0, config.block_size), Math.min(all, config.block_size))) return;
  finish(all > config.block_size ? `Your text has ${all} tokens; the model remembers ${config.block_size}, so only its beginning is tinted.`
    : `Read: ${all} tokens.`);
}

function stop() {
  if (!$("stop").disabled) finish("Stopped. Click a word to continue differently from there.");
  turn++;
}

function busy(is) {
  const hadFocus = document.activeElement;
  for (const id of ["tell", "again", "check"]) $(id).disabled = is;
  $("stop").disabled = !is;
  $("copy").disabled = false;
  if (is && hadFocus && hadFocus.disabled) $("stop").focus();
  if (!is && hadFocus === $("stop")) $("again").focus();
}

async function copy() {
  try {
    await navigator.clipboard.writeText(tale.pieces.join("").trim());
    message("Copied.");
  } catch {  // not allowed in this browser
    getSelection().selectAllChildren($("story"));
    message("The story is selected: copy it with Ctrl+C (on a Mac, Cmd+C).");
  }
}

// ---- The story on the page ----

function span(told, i) {
  return element("span", { "data-i": i, class: i < told.given ? "given" : "" }, told.pieces[i]);
}

function showTale() {
  $("story").replaceChildren(...tale.pieces.map((_, i) => span(tale, i)));
  cursor = chosen = null;
  attention = [];
  $("likeliest").replaceChildren();
  $("word").textContent = "Click a word of the story to see which words the model considered likely there.";
  showBranches();
  paint();
}

let cursor = null, chosen = null;  // the word pointed at; the word looked into
let attention = [];  // from the word pointed at

// Tints the words from token `first` on.
function paint(first = 0) {
  const how = $("coloring").value, spans = $("story").children;
  for (let i = first; i < spans.length; i++) {
    const loss = tale.losses[i];
    const alpha = how === "surprise" && loss ? Math.min(1, loss / SURPRISING) * 0.6
      : how === "attention" && attention[i] ? Math.sqrt(attention[i]) * 0.7 : 0;
    spans[i].style.background = alpha > 0.01 ? `rgba(var(${how === "surprise" ? "--other" : "--hue"}), ${alpha.toFixed(3)})` : "";
  }
  showLegend(how);
}

function showLegend(how) {
  const losses = tale.losses.filter(Number.isFinite), nats = losses.reduce((a, b) => a + b, 0);
  const text = tale.pieces.filter((_, i) => Number.isFinite(tale.losses[i])).join("");  // the first token has no loss
  const bytes = new TextEncoder().encode(text).length || 1;
  const loss = losses.length ? ` Loss of this text: ${(nats / losses.length).toFixed(3)} nats per token, `
    + `${(nats / Math.LN2 / bytes).toFixed(3)} bits per byte.` : "";
  $("legend").textContent = how === "surprise" ? `The stronger the tint, the less likely the model found the word.${loss}`
    : how === "attention" ? "Point at a word, or move there with the arrow keys, to tint the words that the head looked at from there."
    : loss.trim();
}

const quoted = (piece) => `“${shown(piece.trim() || piece)}”`;
const percent = (share) => (share >= 0.0995 ? `${(100 * share).toFixed(0)}%` : share >= 0.001 ? `${(100 * share).toFixed(1)}%` : "< 0.1%");

async function point(i, spoken = false) {
  if (cursor !== null) $("story").children[cursor]?.classList.remove("cursor");
  cursor = i;
  if (i === null) return;
  $("story").children[i].classList.add("cursor");
  const loss = tale.losses[i], likely = loss === null || loss === undefined ? "" : `, ${percent(Math.exp(-loss))} likely`;
  if (spoken) $("pointed").textContent = `${quoted(tale.pieces[i])}${likely}`;
  if ($("coloring").value !== "attention" || !$("stop").disabled) return;
  const [layer, head] = ["layer", "head"].map((id) => Number($(id).value));
  const own = tale, found = await ask("attention", own.ids, layer, head, i);
  if (cursor !== i || tale !== own) return;
  attention = found;
  paint();
}

async function look(i) {
  if (!$("stop").disabled) stop();
  $("story").children[chosen]?.classList.remove("chosen");
  chosen = i;
  $("story").children[i].classList.add("chosen");
  $("likeliest").replaceChildren();
  if (i === 0) {
    $("word").textContent = "Nothing comes before the first word, so the model had nothing to go by.";
    return;
  }
  const own = tale;
  if (!own.losses.length) {  // stopped while it was being read
    own.losses = (await ask("read", own.ids)).slice();
    paint();
  }
  const found = await ask("likeliest", own.ids, i, 10);
  if (chosen !== i || tale !== own) return;
  $("word").textContent = `Instead of ${quoted(own.pieces[i])} (${percent(Math.exp(-own.losses[i]))}), the model considered likely:`;
  $("likeliest").replaceChildren(...found.map(({ id, share, bytes }) => {
    const piece = id === data.end_of_text ? "(the end)" : shown(new TextDecoder().decode(bytes));
    const button = element("button", { type: "button", onclick: () => guarded(() => branch(i, id)), "aria-current": id === own.ids[i] },
      element("span", {}, piece), element("span", { class: "quiet" }, percent(share)));
    button.style.background = `linear-gradient(to right, rgba(var(--hue), .22) ${100 * share}%, transparent 0)`;
    return element("li", {}, button);
  }));
  $("likeliest").scrollIntoView({ block: "nearest" });  // on a phone it is below the story
}

// Another tale: this one up to the word i, then the token `id`, then whatever the model continues with.
async function branch(i, id) {
  const ends = id === data.end_of_text, ids = [...tale.ids.slice(0, i), ...(ends ? [] : [id])];
  $("status").scrollIntoView({ block: "nearest" });
  if (!await begin(ids, Math.min(tale.given, i))) return;
  if (!ends) return goOn();
  tale.ending = "The end.";
  finish(tale.ending);
}

function showBranches() {
  $("tales").hidden = tales.length < 2;
  $("branches").replaceChildren(...tales.map((each, number) => element("li", {}, element("button", {
    type: "button", "aria-current": each === tale, onclick: () => { stop(); tale = each; showTale(); message(tale.ending); },
  }, element("span", {}, `${number + 1}. … ${each.pieces.join("").trim().slice(-22)}`),
  element("span", { class: "quiet" }, `${each.ids.length}`)))));
}

// ---- About this storyteller, and connecting the page ----

function showSpeed() {
  $("speed").textContent = speed ? `${speed.toFixed(0)} tokens per second (${arithmetic})` : "tell a story to measure it";
}

function showFacts() {
  const rows = [...data.about, ["speed in this browser", element("span", { id: "speed" })]];
  $("facts").append(...rows.map(([name, value]) => element("tr", {}, element("td", {}, name), element("td", {}, value))));
  if (!data.quality.length) return;
  const head = ["weights as", "MB", "bits per byte", "KL divergence, nats"];
  const cells = data.quality.map(({ dtype, megabytes, bpb, kl }) =>
    [dtype, megabytes.toFixed(1), bpb.toFixed(4), dtype === "float32" ? "–" : kl.toExponential(1)]);
  $("rounding").append(element("h2", {}, "What rounding the weights costs"), element("p", { class: "quiet" }, data.measured_on),
    element("div", { class: "scroll" }, element("table", {}, element("tr", {}, ...head.map((text) => element("th", {}, text))),
      ...cells.map((row) => element("tr", { class: row[0] === data.dtype ? "chosen" : "" }, ...row.map((text) => element("td", {}, text)))))));
}

function showFields() {
  $("header").hidden = !data.has_headers;
  if (!data.has_headers) return;
  $("beginnings").hidden = true;
  $("label").textContent = "How does it begin? (optional)";
  const boxes = { words: "Words to use in the story", features: "Features of the story", summary: "What happens in it",
                  sentence: "A sentence to use in it" };
  for (const name of Object.keys(data.fields)) {
    const id = `field-${name}`;
    const box = name === "features"
      ? element("div", { id, class: "row", role: "group", "aria-label": boxes[name] }, ...data.features.map((feature) =>
        element("label", {}, element("input", { type: "checkbox", value: feature }), feature)))
      : element("input", { id, type: "text", placeholder: name === "words" ? "jump, frog, red" : "" });
    $("header").append(name === "features" ? element("label", {}, boxes[name]) : element("label", { for: id }, boxes[name]), box);
  }
}

function pick(text) {
  $("beginning").value = text;
  $("beginning").focus();
}

function connect() {
  $("ask").onsubmit = (event) => { event.preventDefault(); guarded(tell); };
  $("stop").onclick = stop;
  $("again").onclick = () => { $("seed").value = settings().seed + 1; guarded(tell); };
  $("copy").onclick = copy;
  $("check").onclick = () => guarded(check);
  const place = (event) => event.target.closest("[data-i]")?.dataset.i;
  $("story").onclick = (event) => { if (place(event)) { point(Number(place(event))); guarded(() => look(cursor)); } };
  $("story").onmouseover = (event) => { if (place(event)) guarded(() => point(Number(place(event)))); };
  $("story").onkeydown = (event) => {
    const last = tale.ids.length - 1, at = cursor ?? -1;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last }[event.key];
    if (to !== undefined && last >= 0) guarded(() => point(Math.max(0, Math.min(last, to)), true));
    else if (event.key === "Enter" && cursor !== null) guarded(() => look(cursor));
    else return;
    event.preventDefault();
  };
  for (const id of ["coloring", "layer", "head"]) $(id).onchange = () => {
    $("heads").hidden = $("coloring").value !== "attention";
    attention = [];
    paint();
    guarded(() => point(cursor));
  };
}

// An error in the engine becomes a sentence on the page, and what was typed stays.
async function guarded(action) {
  try {
    await action();
  } catch (error) {
    finish(`That did not work in this browser: ${error.message}`);
  }
}

showFields();
showFacts();
showSpeed();
$("beginnings").append(...BEGINNINGS.map((text) => element("button", { type: "button", onclick: () => pick(text) }, `${text} …`)));
for (const [id, count] of [["layer", config.n_layer], ["head", config.n_head]]) {
  $(id).append(...Array.from({ length: count }, (_, i) => element("option", { value: i }, `${i}`)));
}
if (typeof Worker === "undefined") {
  message("This browser is too old for the storyteller: it has no web workers. A newer Firefox, Chrome, Edge or Safari has them.");
} else {
  start().then(() => {
    connect();
    busy(false);
    $("copy").disabled = $("again").disabled = true;
    message("Ready.");
  }, (error) => message(`The storyteller did not start in this browser: ${error.message}. A newer browser may help.`));
}
