// How much of an answer comes back, by layer and position, and by head.
const { tokens, residual, heads } = data;

function shade(cell, share) {
  cell.style.background = `rgba(var(${share < 0 ? "--other" : "--hue"}), ${(0.8 * Math.min(1, Math.abs(share))).toFixed(3)})`;
  return cell;
}

const layers = residual.map((_, i) => (i < residual.length - 1 ? `before ${i}` : "after all"));
document.getElementById("residual").append(
  element("thead", {}, element("tr", {}, element("th", {}, "token"), ...layers.map((name) => element("th", {}, name)))),
  element("tbody", {}, ...tokens.map((piece, t) => element("tr", {}, element("td", { class: "token" }, piece),
    ...residual.map((layer, i) => shade(element("td", {
      onmousemove: (event) => showTip(event, `“${piece}”, ${layers[i]}: ${layer[t].toFixed(2)} of the answer`),
      onmouseleave: hideTip,
    }, Math.abs(layer[t]) < 0.005 ? "" : layer[t].toFixed(2)), layer[t]))))));

const table = document.getElementById("heads");
const columns = [["brought_back", "brought back"], ["lost_without", "lost without it"], ["direct", "adds (logits)"],
  ["attention", "looks at"], ["writes", "writes"]];
function fill(key) {
  const ordered = [...heads].sort((a, b) => (key === "writes" ? a.writes.localeCompare(b.writes) : b[key] - a[key]));
  table.tBodies[0].replaceChildren(...ordered.map((row) => element("tr", {}, element("td", {}, `${row.layer}.${row.head}`),
    ...columns.map(([name]) => {
      if (name === "attention") return element("td", { class: "token" }, `${row[name].toFixed(2)} ${shown(row.looks_at)}`);
      if (name === "writes") return element("td", { class: "token" }, shown(row.writes));
      const cell = element("td", { class: "share" }, row[name].toFixed(2));
      return name === "direct" ? cell : shade(cell, row[name]);
    }))));
  titles.forEach((title, i) => title.classList.toggle("sorted", columns[i][0] === key));
}
const titles = columns.map(([key, title]) => element("th", { onclick: () => fill(key) }, title));
table.append(element("thead", {}, element("tr", {}, element("th", {}, "layer.head"), ...titles)), element("tbody"));
fill("brought_back");
