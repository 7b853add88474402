// Draws the sections of a page from their parts (pages/sections_*.py). A run has the same color everywhere.
const SVG = "http://www.w3.org/2000/svg";
const svg = (tag, ...others) => build(document.createElementNS(SVG, tag), ...others);

const places = new Map(data.runs.map((run, i) => [run, i]));
const OF_TRAINING_STORIES = ", training stories";  // after the name of a run: in its color, dotted
function place(name) {
  const run = name.replace(OF_TRAINING_STORIES, "");
  if (!places.has(run)) places.set(run, places.size);
  return places.get(run);
}
function color(name) {  // in parentheses: not a run, but what runs are compared with
  return name.startsWith("(") ? "var(--quiet)" : `var(--s${place(name) % 8})`;
}
function dashes(name) {
  if (name.endsWith(OF_TRAINING_STORIES)) return "1.5 2.5";
  return ["none", "5 3", "2 2", "8 3 2 3"][Math.floor(place(name) / 8) % 4];
}

function number(value, kind) {
  if (value === null || value === undefined) return "";
  if (kind === "integer") return Math.round(value).toLocaleString("en");
  if (kind === "exponent") return value.toExponential(2);
  const text = kind === "percent" ? `${(100 * value).toFixed(1)}%` : value.toFixed(kind);
  return text.replace(/^-(?=[0.]+( %)?$)/, "");  // no -0.0
}
function interval(low, high, kind) {
  return low === null || low === undefined ? "" : `[${number(low, kind)}, ${number(high, kind)}]`;
}
// Cuts the middle of a long name, as its end often distinguishes it.
function shortened(name, longest) {
  const half = Math.floor(longest / 2);
  return name.length > longest ? `${name.slice(0, half - 1)}…${name.slice(-half)}` : name;
}
function caption(part) { return part.caption ? [element("div", { class: "quiet" }, part.caption)] : []; }

// Round values on an axis, about n of them.
function ticks(low, high, n) {
  const rough = (high - low) / n, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const values = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) values.push(i * step);
  return values;
}
function short(value) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)} ${unit}`;
  return String(+value.toPrecision(3));
}

const draw = {};

// ---- Tables: click a title to sort ----

draw.table = (part) => {
  const { columns, rows } = part;
  const value = (cell) => (Array.isArray(cell) ? value(cell[0]) : cell ?? null);
  const cells = rows.map((row) => row.map((cell, i) => {
    let { kind } = columns[i];
    if (kind === "figures" && cell) [cell, kind] = cell;
    if (cell === null || cell === undefined) return element("td", {}, "");
    if (kind === "text") return element("td", { class: String(cell).length > 40 ? "text" : "" }, String(cell));
    if (kind === "link") return element("td", {}, element("a", { href: cell[1] }, cell[0]));
    const [middle, low, high] = Array.isArray(cell) ? cell : [cell];
    return element("td", { class: "number" }, number(middle, kind), element("small", {}, interval(low, high, kind)));
  }));
  const lines = cells.map((line) => element("tr", {}, ...line)), body = element("tbody", {}, ...lines);
  const heads = columns.map(({ title, kind, help }, i) => {
    const head = element("th", { class: kind === "text" || kind === "link" ? "" : "number", title: help || "" });
    const sort = () => {
      const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : kind !== "text";
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const order = rows.map((row, j) => [value(row[i]), j]).sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null);  // empty cells come last
        return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
      });
      body.append(...order.map(([, j]) => lines[j]));
    };
    head.append(rows.length > 1 && kind !== "link" ? element("button", { onclick: sort }, title) : title);
    return head;
  });
  const made = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body);
  const inside = element("div", { class: "scroll" }, made);
  return part.folded ? [element("details", {}, element("summary", { class: "quiet" }, part.caption), inside)]
    : [...caption(part), inside];
};

// ---- Bars with their intervals ----

draw.bars = (part) => [...caption(part), element("div", { class: "panels" }, ...part.panels.map(panelOfBars))];

// Dots where the scale has no lower end: a bar would have nowhere to begin.
function panelOfBars({ title, kind, bars, marks, end, dots, outlined }) {
  const known = bars.flatMap((bar) => bar.slice(1)).concat(Object.values(marks)).filter((x) => x !== null);
  const margin = dots ? 0.05 * (Math.max(...known) - Math.min(...known)) || 1 : 0;
  const start = dots ? Math.min(...known) - margin : 0;
  const top = dots ? Math.max(...known) + margin : end || Math.max(0, ...known) * 1.05 || 1;  // 1: if all are 0
  const line = 32, width = 300, height = line * bars.length + 20;
  const x = (value) => (width * (Math.max(start, Math.min(top, value)) - start)) / (top - start);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  for (const tick of ticks(start, top, 4)) {
    picture.append(svg("line", { class: "axis", x1: x(tick), x2: x(tick), y1: 0, y2: height - 16 }));
    const label = kind === "percent" ? `${+(100 * tick).toPrecision(2)}%` : short(tick);
    const anchor = x(tick) < 12 ? "start" : x(tick) > width - 12 ? "end" : "middle";
    picture.append(svg("text", { x: x(tick), y: height - 4, "text-anchor": anchor }, label));
  }
  bars.forEach(([name, value, low, high], i) => {
    const y = line * i, label = `${name}: ${number(value, kind)} ${interval(low, high, kind)}`;
    const style = outlined ? { fill: "none", stroke: "var(--quiet)" } : { fill: color(name), opacity: 0.75 };
    const bar = svg("g", { onmousemove: (event) => showTip(event, label), onmouseleave: hideTip },
      svg("rect", { x: 0, y, width, height: line, fill: "transparent" }),
      svg("text", { class: "name", x: 2, y: y + 12 }, shortened(name, 48 - number(value, kind).length)),
      svg("text", { x: width, y: y + 12, "text-anchor": "end" }, number(value, kind)),
      dots ? svg("circle", { cx: x(value), cy: y + 20.5, r: 5, ...style })
        : svg("rect", { x: 0, y: y + 16, width: x(value), height: 9, rx: 2, ...style }));
    if (low !== null) bar.append(svg("line", { class: "whisker", x1: x(low), x2: x(high), y1: y + 20.5, y2: y + 20.5 }));
    picture.append(bar);
  });
  for (const [label, value] of Object.entries(marks)) {
    picture.append(svg("line", { class: "mark", x1: x(value), x2: x(value), y1: 0, y2: height - 16 },
      svg("title", {}, `${label}: ${number(value, kind)}`)));
  }
  return element("div", { class: "panel" }, element("b", {}, title), picture);
}

draw.warnings = ({ lines }) => (lines.length
  ? [element("div", { class: "warnings" }, element("ul", {}, ...lines.map((line) => element("li", {}, line))))] : []);

// ---- Curves of the loss ----

draw.curves = (part) => {
  const AXES = { "tokens seen": 0, "seconds of training": 1 }, LEFT = 44, BOTTOM = 34;
  const W = Math.max(280, Math.min(900, innerWidth - 48)), H = Math.min(380, 0.7 * W);  // so that labels stay legible
  let axis = 0, logarithmic = true, alone = null;
  const picture = svg("svg", { class: "curves", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "loss curves" });
  const legend = element("div", { class: "legend" }, ...part.lines.map(({ name }) => element("button", {
    "aria-pressed": "false", onclick: () => { alone = alone === name ? null : name; redraw(); },
  }, swatch(name), name)));

  function redraw() {
    [...legend.children].forEach((button, i) => {
      button.classList.toggle("off", alone !== null && part.lines[i].name !== alone);
      button.setAttribute("aria-pressed", String(part.lines[i].name === alone));
    });
    const points = part.lines.flatMap((line) => [...line.val_loss, ...line.train_loss]).filter((point) => point[axis] > 0);
    const scale = (value) => (logarithmic ? Math.log10(value) : value);
    const xs = points.map((point) => scale(point[axis])), ys = points.map((point) => point[2]);
    const [x0, x1] = [logarithmic ? Math.min(...xs) : 0, Math.max(...xs)];
    const [y0, y1] = [Math.min(...ys), Math.max(...ys)];
    const x = (value) => LEFT + ((W - LEFT - 12) * (scale(value) - x0)) / (x1 - x0 || 1);
    const y = (value) => 8 + ((H - BOTTOM - 8) * (y1 - value)) / (y1 - y0 || 1);
    picture.replaceChildren();
    for (const tick of ticks(y0, y1, 6)) {
      picture.append(svg("line", { class: "axis", x1: LEFT, x2: W - 12, y1: y(tick), y2: y(tick) }),
        svg("text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, short(tick)));
    }
    const marks = logarithmic ? powers(x0, x1) : ticks(0, x1, 8);
    for (const tick of marks) picture.append(svg("text", { x: x(tick), y: H - BOTTOM + 16, "text-anchor": "middle" }, short(tick)));
    picture.append(svg("text", { x: W - 12, y: H - 2, "text-anchor": "end" }, `${Object.keys(AXES)[axis]} →`));
    const path = (some) => some.filter((point) => point[axis] > 0).map((point, i) => `${i ? "L" : "M"}${x(point[axis]).toFixed(1)},${y(point[2]).toFixed(1)}`).join("");
    for (const { name, train_loss: train, val_loss: validation } of part.lines) {
      if (alone !== null && alone !== name) continue;
      const style = { fill: "none", stroke: color(name), "stroke-dasharray": dashes(name) };
      picture.append(svg("path", { ...style, d: path(train), "stroke-width": 1, opacity: 0.35 }),
        svg("path", { ...style, d: path(validation), "stroke-width": 1.8 }));
      for (const point of validation.filter((each) => each[axis] > 0)) {
        const label = `${name}\nvalidation loss ${point[2].toFixed(3)}\n${point[0].toLocaleString("en")} tokens, ${Math.round(point[1])} s of training`;
        picture.append(svg("circle", { cx: x(point[axis]), cy: y(point[2]), r: 2.2, fill: color(name) }),
          svg("circle", { cx: x(point[axis]), cy: y(point[2]), r: 8, fill: "transparent",
            onmousemove: (event) => showTip(event, label), onmouseleave: hideTip }));
      }
    }
  }
  function powers(low, high) {
    const all = [];
    for (let power = Math.floor(low); power <= high; power++) for (const factor of high - low > 2.5 ? [1] : [1, 2, 5]) all.push(factor * 10 ** power);
    return all.filter((value) => Math.log10(value) >= low - 1e-9 && Math.log10(value) <= high + 1e-9);
  }
  const chooser = element("select", { "aria-label": "horizontal axis", onchange: (event) => { axis = AXES[event.target.value]; redraw(); } },
    ...Object.keys(AXES).map((name) => element("option", {}, name)));
  const logs = element("input", { type: "checkbox", checked: "", onchange: (event) => { logarithmic = event.target.checked; redraw(); } });
  redraw();
  return [element("div", { class: "quiet" }, `Loss, nats per token. ${part.caption}`),
    element("div", { class: "controls" }, chooser, element("label", {}, logs, " log scale")), legend, picture];
};

function swatch(name) {
  const line = svg("line", { x1: 0, x2: 26, y1: 5, y2: 5, stroke: color(name), "stroke-width": 3, "stroke-dasharray": dashes(name) });
  return svg("svg", { class: "swatch", viewBox: "0 0 26 10", "aria-hidden": "true" }, line);
}

// ---- Histograms ----

draw.histograms = (part) => {
  const names = [...new Set(part.panels.flatMap((panel) => panel.series.map((each) => each.name)))];
  const legend = element("div", { class: "legend" }, ...names.map((name) => element("span", {}, swatch(name), name)));
  return [...caption(part), legend, element("div", { class: "panels" }, ...part.panels.map(panelOfHistogram))];
};

function panelOfHistogram({ title, end, series }) {
  const W = 300, H = 150, top = Math.max(...series.flatMap((each) => [...each.completions, ...(each.beside || [])])) || 1;
  const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": title });
  const outline = (shares) => {
    const steps = shares.map((share, i) => {
      const y = (H - 18) * (1 - share / top);
      return `L${((W * i) / shares.length).toFixed(1)},${y.toFixed(1)}L${((W * (i + 1)) / shares.length).toFixed(1)},${y.toFixed(1)}`;
    });
    return `M0,${H - 18}${steps.join("")}L${W},${H - 18}`;
  };
  for (const tick of ticks(0, end, 5)) {
    picture.append(svg("line", { class: "axis", x1: (W * tick) / end, x2: (W * tick) / end, y1: 0, y2: H - 18 }),
      svg("text", { x: (W * tick) / end, y: H - 4, "text-anchor": "middle" }, short(tick)));
  }
  for (const { name, completions, beside } of series) {
    if (beside) picture.append(svg("path", { d: outline(beside), fill: color(name), opacity: 0.18 }));
    picture.append(svg("path", { d: outline(completions), fill: "none", stroke: color(name), "stroke-width": 1.6, "stroke-dasharray": dashes(name) }));
  }
  return element("div", { class: "panel" }, element("b", {}, title), picture);
}

// ---- Answers to prompts ----

function signed(lead) { return lead && (lead > 0 ? "+" : "") + Number(lead).toFixed(2); }

draw.answers = (part) => {
  const sets = [...new Set(part.rows.map((row) => row[0]))];
  const body = element("tbody");
  const line = ([, prompt, right, wrong, results]) => element("tr", {},
    element("td", {}, prompt, element("b", {}, right), element("small", {}, wrong && `not${wrong.replaceAll(" |", ",")}`)),
    ...results.map(([verdict, lead, greedy]) => element("td", { class: verdict }, greedy, element("small", {}, signed(lead)))));
  const linesOf = (set) => part.rows.filter((row) => row[0] === set).map(line);
  const title = (set) => element("tr", { class: "set" }, element("td", { colspan: part.models.length + 1 }, set));
  const fill = (set) => body.replaceChildren(...(set || sets.length < 2 ? linesOf(set || sets[0])
    : sets.flatMap((each) => [title(each), ...linesOf(each)])));
  fill("");
  const chooser = element("select", { "aria-label": "set", onchange: (event) => fill(event.target.value) },
    element("option", { value: "" }, sets.length > 1 ? "all sets" : sets[0]), ...(sets.length > 1 ? sets.map((set) => element("option", { value: set }, set)) : []));
  const head = element("thead", {}, element("tr", {}, element("th", {}, "prompt and right answer"), ...part.models.map((model) => element("th", {}, model))));
  const count = part.rows.length < part.all ? ` Shown are the first ${part.rows.length} of ${part.all} prompts.` : "";
  return [element("div", { class: "quiet" }, part.caption + count), element("div", { class: "controls" }, chooser),
    element("div", { class: "tall" }, element("table", { class: "answers" }, head, body))];
};

// ---- Attention: all maps of a run on one canvas ----

draw.attention = (part) => {
  const titleOf = (layer, head) => `layer ${layer}, head ${head}\n`;
  const canvas = mapsOf(fromBase64(part.levels), part.tokens, { ...part, label: part.caption, faintest: 12, titleOf });
  canvas.style.maxWidth = `${Math.max(360, 2.2 * canvas.width)}px`;
  return [...caption(part), canvas];
};

draw.picture = (part) => [element("img", { class: "picture", src: `data:image/png;base64,${part.data}`, alt: part.caption })];

// ---- Stories side by side ----

draw.stories = ({ prompts, runs, all }) => {
  const body = element("div");
  const fill = (i) => {
    const { prompt, reference, of } = prompts[i];
    const column = (title, texts) => element("div", { class: "story" }, element("b", {}, title),
      ...texts.flatMap((text, j) => [...(j ? [element("hr")] : []), element("p", {}, text.trim())]));
    const columns = runs.filter((run) => of[run]).map((run) => column(run, of[run]));
    if (reference) columns.push(column("true ending", [reference]));
    body.replaceChildren(element("p", { class: "prompt" }, prompt || "(no prompt)"), element("div", { class: "stories" }, ...columns));
  };
  const label = (prompt, i) => `${i + 1}. ${prompt.length > 70 ? `…${prompt.slice(-70)}` : prompt}`;
  const chooser = element("select", { "aria-label": "prompt", onchange: (event) => fill(Number(event.target.value)) },
    ...prompts.map(({ prompt }, i) => element("option", { value: i }, label(prompt, i))));
  const step = (by) => () => { chooser.value = (Number(chooser.value) + by + prompts.length) % prompts.length; fill(Number(chooser.value)); };
  fill(0);
  return [element("div", { class: "controls" }, element("button", { onclick: step(-1), "aria-label": "previous" }, "←"), chooser,
    element("button", { onclick: step(1), "aria-label": "next" }, "→"),
    element("small", {}, `${prompts.length} of ${all} prompts are shown`)), body];
};

// ---- The page ----

const nav = document.querySelector("nav"), main = document.querySelector("main");
data.sections.forEach(({ title, about, parts }, i) => {
  nav.append(element("a", { href: `#section-${i}` }, title));
  const heading = title === document.title ? [] : [element("h2", {}, title), element("p", { class: "quiet" }, about)];
  main.append(element("section", { id: `section-${i}` }, ...heading,
    ...parts.map((part) => element("div", { class: "part" }, ...draw[part.type](part)))));
});
for (const [title, lines] of Object.entries(data.notes)) {
  if (lines.length) main.append(element("section", {}, element("h2", {}, title), element("ul", { class: "quiet" }, ...lines.map((line) => element("li", {}, line)))));
}
if (data.sections.length < 2) {
  nav.remove();
  main.className = "alone";
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
