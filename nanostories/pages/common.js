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

// The reader gets this text as a file.
function saveAs(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: address, download: name }).click();
}

// ---- Tables that a click on a column's title sorts ----

// What a cell is sorted by: its first number ("1,250", "0.31 [0.20, 0.42]", "3 of 50"), or its
// text, in which numbers count as numbers ("64-4-4" before "128-4-4"); null if it is empty.
function sortKey(cell) {
  const text = cell.textContent.trim();
  if (text === "" || text === "–") return null;
  const isNumber = /^-?[\d.,]+(e[+-]?\d+)?%?( |$)/.test(text);
  return isNumber ? parseFloat(text.replaceAll(",", "")) : text;
}

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, i) => {
    const sort = () => {
      const isDescending = head.ariaSort !== "descending";
      for (const each of heads) each.ariaSort = null;
      head.ariaSort = isDescending ? "descending" : "ascending";
      sortRows(table.tBodies[0], i, isDescending);
    };
    head.replaceChildren(element("button", { type: "button", onclick: sort }, ...head.childNodes));
  });
}

// Empty cells come last.
function sortRows(body, column, isDescending) {
  const keys = new Map([...body.rows].map((row) => [row, sortKey(row.cells[column])]));
  const sign = isDescending ? -1 : 1;
  const rows = [...body.rows].sort((row, other) => {
    const a = keys.get(row);
    const b = keys.get(other);
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b), "en", { numeric: true });
  });
  body.append(...rows);
}
