// A map for each head. Pointing at a token shows, in every head, what it attends to and what
// attends to it.
const { heads, tokens } = data;
const T = tokens.length;
const byId = (id) => document.getElementById(id);
const shown = (piece) => piece.replaceAll("\n", "↵") || "·";
const names = tokens.map(shown);
const weights = fromBase64(data.attention);
let token = null;  // the one pointed at
let kept = null;  // the one kept by a click
let chosen = null;  // the head that colors the text

heads.forEach((head, i) => {
  head.weight = (query, key) => weights[(i * T + query) * T + key] / 255;
});
const mean = {
  weight: (query, key) =>
    heads.reduce((sum, head) => sum + head.weight(query, key), 0) / heads.length,
};

function color(name, alpha) {
  const hue = getComputedStyle(document.documentElement).getPropertyValue(name);
  return `rgba(${hue}, ${alpha})`;
}

// ---- The text: one stop for the Tab key; arrow keys go along the tokens ----
const spans = names.map((name, i) => element("span", {
  class: "token",
  role: "button",
  tabindex: i ? -1 : 0,
  onmouseover: () => point(i),
  onfocus: () => point(i),
  onclick: () => { kept = kept === i ? null : i; point(i); },
}, name));
spans.forEach((span, i) => {
  byId("text").append(span);
  if (names[i].endsWith("↵")) byId("text").append(element("br"));
});
byId("text").addEventListener("mouseleave", () => point(kept));
byId("text").addEventListener("keydown", (event) => {
  const at = spans.indexOf(document.activeElement);
  const places = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: T - 1 };
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    spans[at].click();
  }
  const next = places[event.key];
  if (!spans[next]) return;
  event.preventDefault();
  spans[at].tabIndex = -1;
  spans[next].tabIndex = 0;
  spans[next].focus();
});

// ---- Maps ----
function draw({ context, weight }) {
  const hue = color("--hue", 1);
  const other = color("--other", 1);
  context.clearRect(0, 0, T, T);
  for (let query = 0; query < T; query++) {
    for (let key = 0; key <= query; key++) {
      let alpha = Math.sqrt(weight(query, key));
      if (query === token || key === token) alpha = Math.max(0.13, alpha);
      else if (token !== null) alpha *= 0.45;
      context.globalAlpha = alpha;
      context.fillStyle = key === token && query !== token ? other : hue;
      context.fillRect(key, query, 1, 1);
    }
  }
}

// The position, from `start` until `end`, of the highest value; -1 if there is none.
function highest(start, end, value) {
  let best = -1;
  for (let i = start; i < end; i++) {
    if (best < 0 || value(i) > value(best)) best = i;
  }
  return best;
}

function caption({ role, weight }) {
  if (token === null) return [role];
  const key = highest(0, token + 1, (i) => weight(token, i));
  const query = highest(token + 1, T, (i) => weight(i, token));
  const from = `→ ${weight(token, key).toFixed(2)} ${names[key]}`;
  const lines = [element("span", { class: "from" }, from)];
  if (query > 0 && weight(query, token) >= 0.05) {
    const to = `← ${weight(query, token).toFixed(2)} ${names[query]}`;
    lines.push(element("span", { class: "to" }, to));
  }
  return lines;
}

// Logit lens: the next token as predicted after each layer, if it were the last. The last layer is
// on top.
function lens(at) {
  const lines = data.lens.map((layer, i) => {
    const title = element("th", { scope: "row" }, i ? `layer ${i - 1}` : "embedding");
    const cells = layer[at].map(([piece, p]) => bar(p, `${p.toFixed(2)} ${shown(piece)}`));
    return element("tr", {}, title, ...cells);
  });
  const title = `Logit lens: the next token after “${names[at]}”, as each layer predicts it`;
  byId("lens").replaceChildren(
    element("small", {}, title),
    element("table", {}, element("tbody", {}, ...lines.reverse())));
}

function point(i) {
  token = i;
  lens(token ?? T - 1);
  const { weight } = chosen ?? mean;
  spans.forEach((span, j) => {
    let share = 0;
    if (token !== null) share = j <= token ? weight(token, j) : weight(j, token);
    // Weak enough that the text on it can be read.
    span.style.background = color(j <= token ? "--hue" : "--other", 0.4 * Math.sqrt(share));
    if (j === token) span.setAttribute("aria-current", "true");
    else span.removeAttribute("aria-current");
  });
  for (const head of heads) {
    draw(head);
    head.caption.replaceChildren(...caption(head));
  }
}

function choose(head) {
  chosen = head === chosen ? null : head;
  for (const each of heads) {
    each.tile.setAttribute("aria-pressed", each === chosen);
    each.row.classList.toggle("chosen", each === chosen);
  }
  byId("whose").textContent = chosen
    ? `layer ${chosen.layer}, head ${chosen.head} (${chosen.role})` : "the mean of the heads shown";
  point(token);
}

function pointAt(event, { weight }) {
  const canvas = event.target;
  const at = (offset) => Math.floor((offset / canvas.clientWidth) * T);
  const query = Math.max(0, Math.min(T - 1, at(event.offsetY)));
  const key = Math.max(0, Math.min(T - 1, at(event.offsetX)));
  const share = weight(query, key).toFixed(2);
  canvas.title = key > query ? "" : `${names[query]} attends to ${names[key]}: ${share}`;
  if (query !== token) point(query);
}

const nHead = Math.max(...heads.map(({ head }) => head)) + 1;
let maps = null;
for (const head of heads) {
  if (head.head === 0) {
    maps = element("div", { class: "maps" });
    maps.style.maxWidth = `${nHead * 190}px`;
    byId("grid").append(element("div", { class: "quiet layer" }, `layer ${head.layer}`), maps);
  }
  const canvas = element("canvas", {
    width: T,
    height: T,
    onmouseleave: () => point(kept),
    onmousemove: (event) => pointAt(event, head),
  });
  head.context = canvas.getContext("2d");
  head.caption = element("span", { class: "caption" });
  head.tile = element("button", {
    class: "tile", id: `head-${head.layer}-${head.head}`, onclick: () => choose(head),
  }, element("span", { class: "quiet" }, `${head.layer}.${head.head}`), canvas, head.caption);
  maps.append(head.tile);
}

// ---- The table of heads ----
const COLUMNS = [
  "layer", "head", "role", "loss_increase", "copies", "itself", "previous", "same_token",
  "induction", "names", "pronouns", "nouns", "verbs", "adjectives", "punctuation", "beginning",
  "writes",
].filter((name) => name in heads[0]);

function bar(share, text, uniform) {
  const cell = element("td", { class: "bar", title: text }, text);
  const end = `${(100 * Math.min(1, share)).toFixed(1)}%`;
  const layers = [`linear-gradient(to right, rgba(var(--hue), .3) ${end}, transparent 0)`];
  if (uniform) {
    const place = `${(100 * uniform).toFixed(1)}% 50% / 1px 70% no-repeat`;
    layers.unshift(`linear-gradient(var(--quiet), var(--quiet)) ${place}`);
  }
  cell.style.background = layers.join(", ");
  return cell;
}

function cellOf(head, name) {
  if (["layer", "head", "role", "writes"].includes(name)) {
    return element("td", { class: name }, String(head[name]));
  }
  if (name === "loss_increase") {
    const [value, low, high] = ["", "_low", "_high"].map((end) => head[name + end].toFixed(4));
    return element("td", { class: "number" }, `${value} [${low}, ${high}]`);
  }
  return bar(head[name], head[name].toFixed(2), head[`${name}_uniform`]);
}

const titles = COLUMNS.map((name) => element(
  "th", { class: name === "loss_increase" ? "number" : "" }, name.replaceAll("_", " ")));
for (const head of heads) {
  head.row = element("tr", {}, ...COLUMNS.map((name) => cellOf(head, name)));
}
byId("heads").append(
  element("thead", {}, element("tr", {}, ...titles)),
  element("tbody", {}, ...heads.map(({ row }) => row)));
sortable(byId("heads"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => point(token));
choose(null);
