"use strict";
const data = JSON.parse(document.getElementById("data").textContent);

// An element with attributes, event handlers and children. Strings become text, never markup.
const element = (tag, ...others) => build(document.createElement(tag), ...others);
function build(made, attributes = {}, ...children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const tip = document.body.appendChild(element("div", { id: "tip" }));
function showTip(event, text) {
  tip.textContent = text;
  tip.style.display = text ? "block" : "none";
  const { offsetWidth: width, offsetHeight: height } = tip;
  tip.style.left = Math.max(0, Math.min(event.clientX + 14, innerWidth - width - 8)) + "px";
  tip.style.top = (event.clientY + height + 26 > innerHeight ? event.clientY - height - 10 : event.clientY + 18) + "px";
}
function hideTip() { tip.style.display = "none"; }

// Bytes from base64, such as the levels that pages/html.py makes of shares.
const fromBase64 = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
// Red, green and blue of a color variable in style.css.
const rgb = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).split(",").map(Number);
// Which of n cells across `length` pixels an offset is in; on a border, the nearest.
const cellAt = (offset, length, n) => Math.max(0, Math.min(n - 1, Math.floor((offset / length) * n)));

// Maps of attention on one canvas, a row for each layer. levels (layers, heads, T, T): square roots, as bytes.
function mapsOf(levels, tokens, { layers = 1, heads = 1, label, faintest = 0, titleOf = () => "" }) {
  const T = tokens.length, GAP = 2, side = T + GAP;
  const canvas = element("canvas", { role: "img", "aria-label": label, width: heads * side - GAP, height: layers * side - GAP });
  const paint = () => {
    const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height), hue = rgb("--hue");
    for (let map = 0; map < layers * heads; map++) {
      const left = (map % heads) * side, top = Math.floor(map / heads) * side;
      for (let query = 0; query < T; query++) for (let key = 0; key <= query; key++) {
        const at = 4 * ((top + query) * canvas.width + left + key);
        image.data.set(hue, at);
        image.data[at + 3] = Math.max(faintest, levels[(map * T + query) * T + key]);
      }
    }
    context.putImageData(image, 0, 0);
  };
  canvas.addEventListener("mousemove", (event) => {
    const x = cellAt(event.offsetX, canvas.clientWidth, canvas.width), y = cellAt(event.offsetY, canvas.clientHeight, canvas.height);
    const head = Math.floor(x / side), layer = Math.floor(y / side), key = x % side, query = y % side;
    if (key > query || query >= T) return showTip(event, "");
    const share = (levels[((layer * heads + head) * T + query) * T + key] / 255) ** 2;
    showTip(event, `${titleOf(layer, head)}“${shown(tokens[query])}” attends to “${shown(tokens[key])}”: ${share.toFixed(2)}`);
  });
  canvas.addEventListener("mouseleave", hideTip);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  paint();
  return canvas;
}

function shown(piece) { return piece.replaceAll("\n", "↵") || "·"; }
