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
for (const wide of document.querySelectorAll(".scroll")) wide.tabIndex = 0;
