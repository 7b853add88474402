// A card for each neuron: the tokens on which it fires most, in their contexts, and which kind of word it prefers.
const { kinds, neurons } = data, AT_ONCE = 30;
let limit = AT_ONCE;
const byId = (id) => document.getElementById(id);
for (const neuron of neurons) {  // rows of neurons.csv, all cells as text
  neuron.auc = kinds.map((kind) => Number(neuron[`auc_${kind}`]));
  neuron.contexts = Object.keys(neuron).filter((key) => key.startsWith("context_")).map((key) => key.slice(-1));
}
const orders = {
  "strongest preference": (neuron) => (neuron.prefers ? Math.max(...neuron.auc) : 0),
  "largest loss increase if ablated": (neuron) => Number(neuron.loss_increase || -Infinity),
  "highest activation": (neuron) => Number(neuron.activation_1),
};

function context(neuron, i) {
  const [text, shades, activation] = ["context", "shades", "activation"].map((name) => neuron[`${name}_${i}`]);
  const letters = [...text], line = element("div", {});
  for (const { 0: run, index } of shades.matchAll(/(.)\1*/g)) {
    const peak = run[0] === "P", level = peak ? activation / neuron.activation_1 : run[0] / 9;
    const span = element("span", { class: peak ? "token peak" : "token" }, letters.slice(index, index + run.length).join(""));
    if (level > 0) span.style.background = `rgba(var(--hue), ${0.08 + 0.55 * level})`;
    line.append(span);
  }
  return element("div", { class: "context" }, element("span", { class: "quiet" }, Number(activation).toFixed(2)), line);
}

function preference({ auc, prefers }, i) {
  const fill = element("i");
  fill.style.left = `${100 * Math.min(auc[i], 0.5)}%`;
  fill.style.width = `${100 * Math.abs(auc[i] - 0.5)}%`;
  return element("div", { class: prefers === kinds[i] ? "kind strong" : "kind" }, kinds[i],
    element("div", { class: "track" }, fill), auc[i].toFixed(2));
}

function card(neuron) {
  const thousandths = (nats) => (nats < 0 ? "−" : "+") + Math.abs(1000 * nats).toFixed(2);
  const [increase, low, high] = ["", "_low", "_high"].map((end) => thousandths(neuron[`loss_increase${end}`]));
  return element("div", { class: "card", id: `neuron-${neuron.layer}-${neuron.neuron}` },
    element("div", { class: "description" }, element("b", {}, `layer ${neuron.layer}, neuron ${neuron.neuron}`),
      ...kinds.map((_, i) => preference(neuron, i)),
      element("div", { class: "quiet" }, neuron.prefers ? `prefers: ${neuron.prefers}` : "no strong preference"),
      element("div", { class: "quiet" }, neuron.loss_increase ? `loss ${increase} [${low}, ${high}] · 10⁻³ if ablated` : "")),
    element("div", {}, ...neuron.contexts.map((i) => context(neuron, i))));
}

function list() {
  const layer = byId("layer").value, kind = byId("kind").value, word = byId("search").value.trim().toLowerCase();
  const value = orders[byId("order").value];
  const found = neurons.filter((neuron) => (layer === "any" || neuron.layer === layer)
    && (kind === "anything" || (neuron.prefers || "nothing strongly") === kind)
    && (!word || neuron.contexts.some((i) => neuron[`token_${i}`].trim().toLowerCase() === word)))
    .sort((a, b) => value(b) - value(a));
  byId("cards").replaceChildren(...found.slice(0, limit).map(card));
  byId("count").textContent = `${found.length} of the ${neurons.length} neurons on this page`;
  byId("more").hidden = found.length <= limit;
}

const layers = [...new Set(neurons.map((neuron) => neuron.layer))].sort((a, b) => a - b);
const choices = { layer: ["any", ...layers], kind: ["anything", ...kinds, "nothing strongly"], order: Object.keys(orders) };
for (const [id, values] of Object.entries(choices)) byId(id).append(...values.map((value) => element("option", {}, value)));
for (const id of ["layer", "kind", "order", "search"]) byId(id).addEventListener("input", () => { limit = AT_ONCE; list(); });
byId("more").addEventListener("click", () => { limit += AT_ONCE; list(); });
list();
