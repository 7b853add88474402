// Tables can be sorted, the first result of each section is unfolded, and wide tables and pictures
// scroll by keyboard, too.
document.querySelectorAll("table").forEach(sortable);
for (const details of document.querySelectorAll("section > details:first-of-type")) {
  details.open = true;
}
for (const wide of document.querySelectorAll(".scroll")) wide.tabIndex = 0;
