// One small map per head. Hovering over a token shows, in every head, what it attends to and what attends to it.
const { tokens, heads, rows } = data;
const T = tokens.length;
const bytes = fromBase64(data.attention);
heads.forEach((head, i) => { head.attention = bytes.subarray(i * T * T, (i + 1) * T * T); });
let token = null, pinnedToken = null, head = null;  // hovered, pinned by a click; the head that colors the text

// The attention of a head, or the mean over all heads, 0 to 1.
function weight(which, query, key) {
  if (which) return which.attention[query * T + key] / 255;
  return heads.reduce((sum, each) => sum + each.attention[query * T + key], 0) / heads.length / 255;
}

const text = document.getElementById("text");
const spans = tokens.map((piece, i) => element("span", {
  class: "token", "data-token": i,
  onmouseover: () => point(i),
  onclick: () => { pinnedToken = pinnedToken === i ? null : i; point(i); },
}, shown(piece)));
spans.forEach((span, i) => text.append(span, ...(tokens[i].endsWith("\n") ? [element("br")] : [])));
text.addEventListener("mouseleave", () => point(pinnedToken));

function draw(which) {
  const image = which.context.createImageData(T, T), hue = rgb("--hue"), other = rgb("--other");
  for (let query = 0; query < T; query++) {
    for (let key = 0; key <= query; key++) {
      const row = query === token, column = key === token, at = 4 * (query * T + key);
      const alpha = Math.sqrt(which.attention[query * T + key] / 255);
      image.data.set(column && !row ? other : hue, at);
      image.data[at + 3] = 255 * (row || column ? Math.max(0.13, alpha) : token === null ? alpha : 0.45 * alpha);
    }
  }
  which.context.putImageData(image, 0, 0);
}

function strongest(candidates, value) {
  return candidates.reduce((best, each) => (value(each) > value(best) ? each : best), candidates[0]);
}

function caption(which) {
  if (token === null) return [which.role];
  const before = [...Array(token + 1).keys()], after = [...Array(T).keys()].slice(token + 1);
  const looksAt = strongest(before, (key) => weight(which, token, key));
  const lines = [element("span", { class: "from" },
    `→ ${weight(which, token, looksAt).toFixed(2)} ${shown(tokens[looksAt])}`)];
  const seenBy = after.length ? strongest(after, (query) => weight(which, query, token)) : token;
  if (seenBy > token && weight(which, seenBy, token) >= 0.05) {
    lines.push(element("br"), element("span", { class: "to" },
      `← ${weight(which, seenBy, token).toFixed(2)} ${shown(tokens[seenBy])}`));
  }
  return lines;
}

// Logit lens: what the model would predict next after each layer, if it were the last.
function showLens() {
  const at = token === null ? T - 1 : token;
  const line = (top, i) => element("tr", {}, element("td", {}, i ? `after layer ${i - 1}` : "embedding"),
    ...top[at].map(([piece, p]) => {
      const cell = element("td", { title: `${shown(piece)} ${p.toFixed(3)}` }, `${shown(piece)} ${p.toFixed(2)}`);
      cell.style.background = `linear-gradient(to right, rgba(var(--hue), .3) ${(100 * p).toFixed(1)}%, transparent 0)`;
      return cell;
    }));
  document.getElementById("lens").replaceChildren(
    element("small", {}, `Logit lens: the next token after “${shown(tokens[at])}”, as predicted after each layer`),
    element("table", {}, element("tbody", {}, ...data.lens.map(line))));
}

function point(i) {
  token = i;
  showLens();
  spans.forEach((span, j) => {
    const from = token !== null && j <= token ? weight(head, token, j) : 0;
    const to = token !== null && j > token ? weight(head, j, token) : 0;
    span.style.background = from ? `rgba(var(--hue), ${Math.sqrt(from) * 0.75})`
      : to ? `rgba(var(--other), ${Math.sqrt(to) * 0.75})` : "";
    span.style.outline = j === token ? "2px solid rgb(var(--hue))" : "";
  });
  heads.forEach((each) => { draw(each); each.caption.replaceChildren(...caption(each)); });
}

function pin(which) {
  head = head === which ? null : which;
  heads.forEach((each) => {
    each.tile.classList.toggle("chosen", each === head);
    if (each.row) each.row.classList.toggle("chosen", each === head);
  });
  document.getElementById("whose").textContent =
    head ? `layer ${head.layer}, head ${head.head} (${head.role})` : "the mean of all heads";
  point(token);
}

const grid = document.getElementById("grid");
const columns = Math.max(...heads.map((each) => heads.filter((other) => other.layer === each.layer).length));
let layer = null, maps = null;
for (const each of heads) {
  if (each.layer !== layer) {
    maps = element("div", { class: columns > 8 ? "maps small" : "maps" });
    maps.style.gridTemplateColumns = `repeat(auto-fit, minmax(${columns > 8 ? 74 : 96}px, 1fr))`;
    maps.style.maxWidth = `${columns * (columns > 1 ? 190 : 560)}px`;
    grid.append(element("div", { class: "quiet layer" }, `layer ${layer = each.layer}`), maps);
  }
  const canvas = element("canvas", { width: T, height: T });
  each.context = canvas.getContext("2d");
  each.caption = element("div", { class: "caption" });
  each.tile = element("div", { class: "tile", id: `head-${each.layer}-${each.head}`, onclick: () => pin(each) },
    element("div", { class: "quiet" }, `head ${each.head}`), canvas, each.caption);
  canvas.addEventListener("mousemove", (event) => {
    const [query, key] = [event.offsetY, event.offsetX].map((offset) => cellAt(offset, canvas.clientWidth, T));
    showTip(event, key > query ? "" : `layer ${each.layer}, head ${each.head}: ${each.role}\n“${shown(tokens[query])}” `
      + `attends to “${shown(tokens[key])}”: ${weight(each, query, key).toFixed(2)}`);
    if (query !== token) point(query);
  });
  canvas.addEventListener("mouseleave", () => { hideTip(); point(pinnedToken); });
  maps.append(each.tile);
}

// ---- The table of what each head does ----

const table = document.getElementById("heads");
function bar(share, uniform) {
  const cell = element("td", { class: "bar" }, share.toFixed(2));
  const at = (value) => `${(100 * Math.max(0, Math.min(1, value))).toFixed(1)}%`;
  const mark = uniform === undefined ? "" : `linear-gradient(var(--quiet), var(--quiet)) ${at(uniform)} 50% / 1px 70% no-repeat, `;
  cell.style.background = `${mark}linear-gradient(to right, rgba(var(--hue), .3) ${at(share)}, transparent 0)`;
  return cell;
}
function cells(row) {
  return data.columns.map(({ key, kind }) => {
    const value = row[key];
    if (value === undefined || value === null) return element("td", {}, "");
    if (kind === "share") return bar(value, row[key + "_uniform"]);
    if (kind === "rise") return element("td", { class: row.rise_low > 0 ? "" : "quiet" },
      `${value.toFixed(4)} [${row.rise_low.toFixed(4)}, ${row.rise_high.toFixed(4)}]`);
    if (key === "writes") return element("td", { class: "token" }, value);
    if (kind === "number") return element("td", {}, value.toFixed(2));
    return element("td", {}, String(value));
  });
}
function fill(key, direction) {
  const ordered = [...rows].sort((a, b) => (a[key] < b[key] ? -direction : a[key] > b[key] ? direction : 0));
  table.tBodies[0].replaceChildren(...ordered.map((row) => {
    const which = heads.find((each) => each.layer === row.layer && each.head === row.head);
    const line = element("tr", { onclick: () => which && pin(which) }, ...cells(row));
    if (which) { which.row = line; line.classList.toggle("chosen", which === head); }
    return line;
  }));
}
if (rows.length) {
  let sorted = null, direction = 1;
  const titles = data.columns.map(({ key, title, help }) => element("th", {
    title: help,
    onclick: (event) => {
      direction = sorted === key ? -direction : typeof rows[0][key] === "number" ? -1 : 1;
      sorted = key;
      titles.forEach((each) => each.classList.toggle("sorted", each === event.target));
      fill(key, direction);
    },
  }, title));
  table.append(element("thead", {}, element("tr", {}, ...titles)), element("tbody"));
  fill("layer", 1);
} else document.getElementById("measures").remove();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => point(token));
point(null);
