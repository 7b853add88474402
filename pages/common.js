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

function shown(piece) { return piece.replaceAll("\n", "↵") || "·"; }
