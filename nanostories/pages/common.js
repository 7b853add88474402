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

// Bytes from base64, such as nanostories/pages/html.py makes of shares.
const fromBase64 = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

// Lets a table be sorted by a click on a column's title: by its numbers ("1,250", "0.31 [0.20, 0.42]"), else as text.
function sortable(table) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const value = (row, i) => {
    const text = row.cells[i]?.textContent.trim() ?? "", number = parseFloat(text.replaceAll(",", "").replace(/^\D*?(?=-?\d)/, ""));
    return heads[i].className === "number" || !Number.isNaN(Number(text)) ? number : text;
  };
  heads.forEach((head, i) => {
    const sort = () => {
      const down = head.ariaSort !== "descending";
      heads.forEach((each) => { each.ariaSort = null; });
      head.ariaSort = down ? "descending" : "ascending";
      const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1), empty = (x) => x === "" || Number.isNaN(x);
      body.append(...[...body.rows].map((row) => [value(row, i), row])
        .sort(([a], [b]) => empty(a) - empty(b) || order(a, b)).map(([, row]) => row));  // empty cells come last
    };
    head.replaceChildren(element("button", { onclick: sort }, ...head.childNodes));
  });
}
