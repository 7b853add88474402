// A column for each model: its clearest heads with what they look at and write, and its clearest neurons.
const { counts, models } = data;

document.getElementById("counts").append(
  element("thead", {}, element("tr", {}, ...Object.keys(counts[0]).map((name) => element("th", {}, name)))),
  element("tbody", {}, ...counts.map((row) => element("tr", {}, ...Object.values(row).map((cell) => element("td", {}, cell))))));

function line(...children) { return element("div", {}, ...children); }
function quiet(text) { return element("div", { class: "quiet" }, text); }

function loss({ rise, rise_low: low, rise_high: high }) {
  const signed = (nats) => (nats < 0 ? "−" : "+") + Math.abs(nats).toFixed(4);
  return rise ? [quiet(`loss without it ${signed(rise)} [${signed(low)}, ${signed(high)}]`)] : [];
}

function tokensOf(texts, values = []) {
  return element("div", { class: "tokens" }, ...texts.split(" | ").map((text, i) =>
    element("span", { class: "token" }, values[i] ? `${text} ${Number(values[i]).toFixed(1)}` : text)));
}

function headCard(tokens, head, levels) {
  const role = head.role === head.looks_at ? head.role : `${head.role}; most on ${head.looks_at}`;
  const map = mapsOf(levels, tokens, { label: `attention of head ${head.layer}.${head.head}` });
  return element("div", { class: "card head" }, map, element("div", {},
    line(element("b", {}, `${head.layer}.${head.head} `), `${role} ${head.share.toFixed(2)} (${head.uniform.toFixed(2)})`),
    line(element("small", {}, `writes (copies ${(100 * head.copies).toFixed(0)}%)`), tokensOf(head.writes)), ...loss(head)));
}

function neuronCard(neuron) {
  const why = neuron.auc ? `prefers ${neuron.why}, AUC ${neuron.auc.toFixed(2)}` : neuron.why;
  return element("div", { class: "card" }, line(element("b", {}, `${neuron.layer}.${neuron.neuron} `), why),
    tokensOf(neuron.top_tokens, neuron.top_activations.split(" | ")), ...loss(neuron));
}

models.forEach((model, number) => {
  const T = model.tokens.length, all = fromBase64(model.attention);
  document.getElementById("models").append(element("section", {}, element("h2", {}, counts[number].run),
    element("h3", {}, "Heads (layer.head)"),
    ...model.heads.map((head, i) => headCard(model.tokens, head, all.subarray(i * T * T, (i + 1) * T * T))),
    element("h3", {}, "Neurons (layer.neuron)"), ...model.neurons.map(neuronCard)));
});
