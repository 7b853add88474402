// A map for each head. Pointing at a token shows, in every head, what it attends to and what attends to it.
const { heads, rows, columns } = data, T = data.shown, byId = (id) => document.getElementById(id);
const names = data.tokens.map((piece) => piece.replaceAll("\n", "↵") || "·");
const bytes = fromBase64(data.attention), side = data.tokens.length;
let token = null, kept = null, head = null;  // pointed at; kept by a click; the head that colors the text
heads.forEach((each, i) => { each.weight = (query, key) => bytes[(i * side + query) * side + key] / 255; });
const mean = { weight: (query, key) => heads.reduce((sum, each) => sum + each.weight(query, key), 0) / heads.length };
const color = (name, alpha = 1) => `rgba(${getComputedStyle(document.documentElement).getPropertyValue(name)}, ${alpha})`;

const spans = names.slice(0, T).map((name, i) => element("span", {
  class: "token", onmouseover: () => point(i), onclick: () => { kept = kept === i ? null : i; point(i); },
}, name));
spans.forEach((span, i) => byId("text").append(span, ...(names[i].endsWith("↵") ? [element("br")] : [])));
byId("text").addEventListener("mouseleave", () => point(kept));

function draw({ context, weight }) {
  const hue = color("--hue"), other = color("--other");
  context.clearRect(0, 0, T, T);
  for (let query = 0; query < T; query++) for (let key = 0; key <= query; key++) {
    const pointed = query === token || key === token, alpha = Math.sqrt(weight(query, key));
    context.globalAlpha = pointed ? Math.max(0.13, alpha) : token === null ? alpha : 0.45 * alpha;
    context.fillStyle = key === token && query !== token ? other : hue;
    context.fillRect(key, query, 1, 1);
  }
}

// The position, from `start` until `end`, of the highest value; -1 if there is none.
function highest(start, end, value) {
  let best = -1;
  for (let i = start; i < end; i++) if (best < 0 || value(i) > value(best)) best = i;
  return best;
}

function caption({ role, weight }) {
  if (token === null) return [role];
  const key = highest(0, token + 1, (i) => weight(token, i)), query = highest(token + 1, T, (i) => weight(i, token));
  const lines = [element("div", { class: "from" }, `→ ${weight(token, key).toFixed(2)} ${names[key]}`)];
  if (query > 0 && weight(query, token) >= 0.05) {
    lines.push(element("div", { class: "to" }, `← ${weight(query, token).toFixed(2)} ${names[query]}`));
  }
  return lines;
}

// Logit lens: the next token as predicted after each layer, if it were the last. The last layer is on top.
function lens(at) {
  const line = (top, i) => element("tr", {}, element("td", {}, i ? `layer ${i - 1}` : "embedding"),
    ...top[at].map(([piece, p]) => bar(p, undefined, `${p.toFixed(2)} ${piece.replaceAll("\n", "↵") || "·"}`)));
  byId("lens").replaceChildren(
    element("small", {}, `Logit lens: the next token after “${names[at]}”, as predicted after each layer`),
    element("table", {}, element("tbody", {}, ...data.lens.map(line).reverse())));
}

function point(i) {
  token = i;
  lens(token ?? T - 1);
  const { weight } = head ?? mean;
  spans.forEach((span, j) => {
    const share = token === null ? 0 : j <= token ? weight(token, j) : weight(j, token);
    span.style.background = color(j <= token ? "--hue" : "--other", Math.sqrt(share) * 0.75);
    span.style.outline = j === token ? `2px solid ${color("--hue")}` : "";
  });
  heads.forEach((each) => { draw(each); each.caption.replaceChildren(...caption(each)); });
}

function choose(which) {
  head = which === head ? null : which;
  for (const each of heads) for (const part of [each.tile, each.row]) part?.classList.toggle("chosen", each === head);
  byId("whose").textContent = head ? `layer ${head.layer}, head ${head.head} (${head.role})` : "the mean of the heads shown";
  point(token);
}

let maps = null;
const most = Math.max(...heads.map(({ layer }) => heads.filter((other) => other.layer === layer).length));
heads.forEach((each, i) => {
  if (each.layer !== heads[i - 1]?.layer) {
    maps = element("div", { class: most > 8 ? "maps small" : "maps" });
    maps.style.maxWidth = `${most * (most > 1 ? 190 : 560)}px`;
    byId("grid").append(element("div", { class: "quiet layer" }, `layer ${each.layer}`), maps);
  }
  const canvas = element("canvas", { width: T, height: T, onmouseleave: () => point(kept), onmousemove: (event) => {
    const at = (offset) => Math.max(0, Math.min(T - 1, Math.floor((offset / canvas.clientWidth) * T)));
    const query = at(event.offsetY), key = at(event.offsetX);
    canvas.title = key > query ? "" : `${names[query]} attends to ${names[key]}: ${each.weight(query, key).toFixed(2)}`;
    if (query !== token) point(query);
  } });
  each.context = canvas.getContext("2d");
  each.caption = element("div", { class: "caption" });
  each.tile = element("div", { class: "tile", id: `head-${each.layer}-${each.head}`, onclick: () => choose(each) },
    element("div", { class: "quiet" }, `head ${each.head}`), canvas, each.caption);
  maps.append(each.tile);
});

// ---- The table of heads ----

function bar(share, uniform, text) {
  const cell = element("td", { class: "bar", title: text }, text), end = `${(100 * Math.min(1, share)).toFixed(1)}%`;
  const mark = uniform && `linear-gradient(var(--quiet), var(--quiet)) ${(100 * uniform).toFixed(1)}% 50% / 1px 70% no-repeat, `;
  cell.style.background = `${mark ?? ""}linear-gradient(to right, rgba(var(--hue), .3) ${end}, transparent 0)`;
  return cell;
}
function cellOf(row, name) {  // cells of heads.csv are text
  const value = row[name] ?? "", number = (text) => Number(text).toFixed(4);
  if (["layer", "head", "role", "writes"].includes(name)) return element("td", { class: name }, value);
  if (name === "loss_increase") {
    return element("td", {}, `${number(value)} [${number(row.loss_increase_low)}, ${number(row.loss_increase_high)}]`);
  }
  return bar(Number(value), row[`${name}_uniform`], Number(value).toFixed(2));
}
for (const row of rows) {
  const which = heads.find((each) => each.layer === Number(row.layer) && each.head === Number(row.head));
  row.line = element("tr", { onclick: () => which && choose(which) }, ...columns.map((name) => cellOf(row, name)));
  if (which) which.row = row.line;
}
byId("heads").append(
  element("thead", {}, element("tr", {}, ...columns.map((name) =>
    element("th", { class: name === "loss_increase" ? "number" : "" }, name.replaceAll("_", " "))))),
  element("tbody", {}, ...rows.map(({ line }) => line)));
sortable(byId("heads"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => point(token));
choose(null);
