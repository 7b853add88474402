// A card for each neuron: the tokens on which it fires most, in their contexts, and which kind of
// word it prefers.
const { neurons } = data;
const AT_ONCE = 30;
const RANKS = [1, 2, 3, 4, 5];  // of the places where it fires most
const kinds = ["noun", "verb", "adjective", "pronoun", "name", "punctuation"]
  .filter((kind) => `auc_${kind}` in neurons[0]);
const byId = (id) => document.getElementById(id);
let limit = AT_ONCE;

const orders = {
  "strongest preference": (neuron) => (neuron.prefers ? neuron[`auc_${neuron.prefers}`] : 0),
  "largest loss increase if ablated": (neuron) => neuron.loss_increase ?? -Infinity,
  "highest activation": (neuron) => neuron.activation_1,
};

function context(neuron, rank) {
  const peak = neuron[`peak_${rank}`];
  const shades = neuron[`shades_${rank}`];
  const line = element("div", { lang: data.language });
  neuron[`context_${rank}`].forEach((piece, i) => {
    const text = piece.replaceAll("\n", "↵");
    const span = element(i === peak ? "mark" : "span", { class: "token" }, text);
    const level = shades[i] / Math.max(neuron.activation_1, 1e-6);
    // Weak enough that the text on it can be read.
    if (level > 0) span.style.background = `rgba(var(--hue), ${0.05 + 0.35 * level})`;
    line.append(span);
  });
  const activation = element("span", { class: "quiet" }, neuron[`activation_${rank}`].toFixed(2));
  return element("div", { class: "context" }, activation, line);
}

function preference(neuron, kind) {
  const auc = neuron[`auc_${kind}`];
  const fill = element("i");
  fill.style.left = `${100 * Math.min(auc, 0.5)}%`;
  fill.style.width = `${100 * Math.abs(auc - 0.5)}%`;
  return element("div", { class: neuron.prefers === kind ? "kind strong" : "kind" },
    kind, element("div", { class: "track" }, fill), auc.toFixed(2));
}

function card(neuron) {
  const description = element("div", { class: "description" },
    element("h2", {}, `layer ${neuron.layer}, neuron ${neuron.neuron}`),
    ...kinds.map((kind) => preference(neuron, kind)));
  const preferred = neuron.prefers ? `prefers: ${neuron.prefers}` : "no strong preference";
  description.append(element("div", { class: "quiet" }, preferred));
  if ("loss_increase" in neuron) {
    const [value, low, high] = ["", "_low", "_high"]
      .map((end) => (1000 * neuron[`loss_increase${end}`]).toFixed(2));
    const text = `loss increase if ablated: ${value} [${low}, ${high}] · 10⁻³`;
    description.append(element("div", { class: "quiet" }, text));
  }
  return element("div", { class: "card", id: `neuron-${neuron.layer}-${neuron.neuron}` },
    description, element("div", {}, ...RANKS.map((rank) => context(neuron, rank))));
}

function fits(neuron) {
  const layer = byId("layer").value;
  const kind = byId("kind").value;
  const word = byId("search").value.trim().toLowerCase();
  if (layer !== "any" && String(neuron.layer) !== layer) return false;
  if (kind !== "anything" && (neuron.prefers || "nothing strongly") !== kind) return false;
  return !word || RANKS.some((rank) => neuron[`token_${rank}`].trim().toLowerCase() === word);
}

function list() {
  const value = orders[byId("order").value];
  const found = neurons.filter(fits).sort((a, b) => value(b) - value(a));
  byId("cards").replaceChildren(...found.slice(0, limit).map(card));
  byId("count").textContent = `${found.length} of the ${neurons.length} neurons on this page`;
  byId("more").hidden = found.length <= limit;
}

const layers = [...new Set(neurons.map((neuron) => neuron.layer))].sort((a, b) => a - b);
const choices = {
  layer: ["any", ...layers],
  kind: ["anything", ...kinds, "nothing strongly"],
  order: Object.keys(orders),
};
for (const [id, values] of Object.entries(choices)) {
  byId(id).append(...values.map((value) => element("option", {}, String(value))));
}
for (const id of ["layer", "kind", "order", "search"]) {
  byId(id).addEventListener("input", () => { limit = AT_ONCE; list(); });
}
byId("more").addEventListener("click", () => { limit += AT_ONCE; list(); });
list();
