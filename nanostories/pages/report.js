// Tables can be sorted; a link to a section unfolds it, and its first result is unfolded; wide
// tables and pictures scroll by keyboard, too.
document.querySelectorAll("table").forEach(sortable);
for (const first of document.querySelectorAll("section details > details:first-of-type")) {
  first.open = true;
}
for (const link of document.querySelectorAll("nav a")) {
  link.addEventListener("click", () => {
    document.querySelector(link.getAttribute("href")).querySelector("details").open = true;
  });
}
// Shaded text: blue above 0, orange below; full at 1.
const about = document.querySelector("#about");
for (const token of document.querySelectorAll("[data-shade]")) {
  const { shade, about: text } = token.dataset;
  const hue = shade > 0 ? "--hue" : "--other";
  token.style.background = `rgba(var(${hue}), ${0.45 * Math.min(1, Math.abs(shade))})`;
  token.addEventListener("pointerover", () => (about.textContent = text));
}
for (const wide of document.querySelectorAll(".scroll")) wide.tabIndex = 0;
