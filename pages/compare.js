// A column for each model: its clearest heads with what they look at and write, and its clearest neurons.
const { counts, models } = data;
const canvases = [];

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

function map(model, bytes, { layer, head }) {
  const { tokens } = model, T = tokens.length;
  const canvas = element("canvas", { width: T, height: T, role: "img", "aria-label": `attention of head ${layer}.${head}` });
  const paint = () => {
    const context = canvas.getContext("2d"), image = context.createImageData(T, T);
    const hue = getComputedStyle(document.documentElement).getPropertyValue("--hue").split(",").map(Number);
    for (let query = 0; query < T; query++) for (let key = 0; key <= query; key++) {
      image.data.set([...hue, bytes[query * T + key]], 4 * (query * T + key));
    }
    context.putImageData(image, 0, 0);
  };
  canvas.addEventListener("mousemove", (event) => {
    const place = (offset) => Math.max(0, Math.min(T - 1, Math.floor((offset / canvas.clientWidth) * T)));
    const query = place(event.offsetY), key = place(event.offsetX), level = bytes[query * T + key] / 255;
    showTip(event, key > query ? "" : `“${shown(tokens[query])}” attends to “${shown(tokens[key])}”: ${(level * level).toFixed(2)}`);
  });
  canvas.addEventListener("mouseleave", hideTip);
  canvases.push(paint);
  return canvas;
}

function headCard(model, head, bytes) {
  const role = head.role === head.looks_at ? head.role : `${head.role}; most on ${head.looks_at}`;
  return element("div", { class: "card head" }, map(model, bytes, head), element("div", {},
    line(element("b", {}, `${head.layer}.${head.head} `), `${role} ${head.share.toFixed(2)} (${head.uniform.toFixed(2)})`),
    line(element("small", {}, `writes (copies ${(100 * head.copies).toFixed(0)} %)`), tokensOf(head.writes)), ...loss(head)));
}

function neuronCard(neuron) {
  const why = neuron.auc ? `prefers ${neuron.why}, AUC ${neuron.auc.toFixed(2)}` : neuron.why;
  return element("div", { class: "card" }, line(element("b", {}, `${neuron.layer}.${neuron.neuron} `), why),
    tokensOf(neuron.top_tokens, neuron.top_activations.split(" | ")), ...loss(neuron));
}

models.forEach((model, number) => {
  const T = model.tokens.length, all = Uint8Array.from(atob(model.attention), (character) => character.charCodeAt(0));
  document.getElementById("models").append(element("section", {}, element("h2", {}, counts[number].run),
    element("h3", {}, "Heads (layer.head)"),
    ...model.heads.map((head, i) => headCard(model, head, all.subarray(i * T * T, (i + 1) * T * T))),
    element("h3", {}, "Neurons (layer.neuron)"), ...model.neurons.map(neuronCard)));
});
const paintAll = () => canvases.forEach((paint) => paint());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintAll);
paintAll();
