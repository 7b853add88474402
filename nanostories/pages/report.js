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
// Shaded stories: blue where a model gains, orange where it loses; full at 3 nats.
const about = document.querySelector("#about");
for (const token of document.querySelectorAll("[data-gain]")) {
  const { gain, about: text } = token.dataset;
  const hue = gain > 0 ? "--hue" : "--other";
  token.style.background = `rgba(var(${hue}), ${0.45 * Math.min(1, Math.abs(gain) / 3)})`;
  if (text) token.addEventListener("pointerover", () => (about.textContent = text));
}
for (const wide of document.querySelectorAll(".scroll")) wide.tabIndex = 0;
