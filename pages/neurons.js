// A card for each neuron: the tokens on which it fires most, in their contexts, and which kind of word it prefers.
const { pieces, kinds, neurons } = data;
const AT_ONCE = 30;
let limit = AT_ONCE;
const byId = (id) => document.getElementById(id);

const orders = {
  "strongest preference": (neuron) => (neuron.kind === null ? 0 : neuron.auc[neuron.kind]),
  "largest rise in loss if ablated": (neuron) => neuron.rise ? neuron.rise[0] : -Infinity,
  "largest estimated rise": (neuron) => neuron.estimate ?? 0,
  "highest activation": (neuron) => neuron.contexts[0].value,
};

function options(select, values) {
  select.append(...values.map(([value, title]) => element("option", { value }, title)));
  select.addEventListener("change", () => { limit = AT_ONCE; list(); });
}
const layers = [...new Set(neurons.map((neuron) => neuron.layer))].sort((a, b) => a - b);
options(byId("layer"), [["", "any"], ...layers.map((layer) => [layer, layer])]);
options(byId("kind"), [["", "anything"], ...kinds.map((kind, i) => [i, kind]), ["none", "no strong preference"]]);
options(byId("order"), Object.keys(orders).map((order) => [order, order]));
byId("search").addEventListener("input", () => { limit = AT_ONCE; list(); });
byId("more").addEventListener("click", () => { limit += AT_ONCE; list(); });

function context({ ids, levels, peak, value }) {
  const line = element("div", { class: "context" });
  ids.forEach((id, i) => {
    const level = Number(levels[i]) / 9;
    const span = element("span", {
      class: i === peak ? "token peak" : "token",
      onmousemove: (event) => showTip(event, `${(level * 100).toFixed(0)}% of this neuron's highest activation`
        + (i === peak ? `\nhere ${value.toFixed(2)}` : "")),
      onmouseleave: hideTip,
    }, shown(pieces[id]));
    if (level) span.style.background = `rgba(var(--hue), ${0.08 + 0.55 * level})`;
    line.append(span);
  });
  return line;
}

function thousandths(nats) { return (nats < 0 ? "−" : "+") + Math.abs(1000 * nats).toFixed(2); }

function preference(neuron, i) {
  const auc = neuron.auc[i], track = element("div", { class: "track" }), fill = element("i");
  fill.style.left = `${100 * Math.min(auc, 0.5)}%`;
  fill.style.width = `${100 * Math.abs(auc - 0.5)}%`;
  track.append(fill);
  return element("div", { class: neuron.kind === i ? "kind strong" : "kind" }, kinds[i], track, auc.toFixed(2));
}

function card(neuron) {
  const description = element("div", { class: "description" }, element("b", {}, `layer ${neuron.layer}, neuron ${neuron.neuron}`),
    ...kinds.map((_, i) => preference(neuron, i)));
  const lines = [neuron.kind === null ? "no strong preference"
    : `prefers: ${kinds[neuron.kind]} (FDR ${neuron.q.toPrecision(1)})`];
  if (neuron.rise) {
    const [rise, low, high] = neuron.rise.map(thousandths);
    lines.push(`loss ${rise} [${low}, ${high}] · 10⁻³ if ablated`);
  } else if (neuron.estimate !== null) lines.push(`loss about ${thousandths(neuron.estimate)} · 10⁻³ if ablated`);
  description.append(...lines.map((line) => element("div", { class: "quiet" }, line)));
  return element("div", { class: "card", id: `neuron-${neuron.layer}-${neuron.neuron}` }, description,
    element("div", {}, ...neuron.contexts.map(context)));
}

function list() {
  const layer = byId("layer").value, kind = byId("kind").value, word = byId("search").value.trim().toLowerCase();
  const value = orders[byId("order").value];
  const found = neurons.filter((neuron) => (layer === "" || neuron.layer === Number(layer))
    && (kind === "" || (kind === "none" ? neuron.kind === null : neuron.kind === Number(kind)))
    && (!word || neuron.contexts.some(({ ids, peak }) => pieces[ids[peak]].trim().toLowerCase() === word)))
    .sort((a, b) => value(b) - value(a));
  byId("cards").replaceChildren(...found.slice(0, limit).map(card));
  byId("count").textContent = `${found.length} of the ${neurons.length} neurons on this page`;
  byId("more").style.display = found.length > limit ? "" : "none";
}
list();
