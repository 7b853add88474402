"use strict";
const data = JSON.parse(document.getElementById("data").textContent);

// An element with attributes, event handlers and children. Strings become text, never markup.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// Bytes from base64, such as the levels that pages/html.py makes of shares.
const fromBase64 = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
