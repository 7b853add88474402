// Grades stories, one at a time: a digit for each score. They are kept in the browser, for each
// reader, and saved as a file that grade.py reads.
const $ = (id) => document.getElementById(id);
const { stories, scores } = data;
const PLACE = "nanostories-grades"; // of all pages: a key stands for a story's text
const kept = JSON.parse(localStorage.getItem(PLACE) ?? '{"name": "", "readers": {}}');
let place = firstUngraded();
let current = 0; // the score that the next digit is for

// {key of a story: its grades}, of the reader whose name is in the field
function ownGrades() {
  return (kept.readers[kept.name] ??= {});
}

function firstUngraded() {
  return Math.max(0, stories.findIndex((story) => !isGraded(story)));
}

function isGraded(story) {
  const grades = ownGrades()[story.key] ?? {};
  return scores.every(({ name }) => grades[name] !== undefined);
}

function keep() {
  // Another page may have kept grades since
  const others = JSON.parse(localStorage.getItem(PLACE) ?? '{"readers": {}}').readers;
  for (const [name, grades] of Object.entries(others)) {
    if (name) kept.readers[name] = { ...grades, ...kept.readers[name] };
  }
  localStorage.setItem(PLACE, JSON.stringify(kept));
}

function show() {
  const story = stories[place];
  const grades = ownGrades()[story.key] ?? {};
  const told = story.instruction ? [element("p", { class: "quiet" }, story.instruction)] : [];
  $("story").replaceChildren(...told, element("i", {}, story.beginning), story.completion);
  $("scores").replaceChildren(
    ...scores.map(({ name, about }, i) => {
      const options = Array.from({ length: 11 }, (_, grade) => element("option", {}, `${grade}`));
      const none = element("option", { value: "", hidden: "" }); // until there is a grade
      const choice = element("select", { "aria-label": name }, none, ...options);
      choice.value = grades[name] ?? "";
      choice.onfocus = () => select(i);
      choice.onchange = () => {
        current = i;
        grade(Number(choice.value));
      };
      return element("div", { class: "score", tabindex: -1 }, element("b", {}, name), choice,
        element("small", {}, about));
    }),
  );
  const done = stories.filter(isGraded).length;
  $("progress").max = stories.length;
  $("progress").value = done;
  $("count").textContent = `Story ${place + 1} of ${stories.length}; ${done} graded`;
  select(current, true);
}

function select(i, isFocused = false) {
  current = i;
  [...$("scores").children].forEach((row, j) => row.classList.toggle("open", i === j));
  // not the list of grades, which arrow keys would change
  if (isFocused) $("scores").children[i].focus({ preventScroll: true });
}

function grade(value) {
  const { key } = stories[place];
  ownGrades()[key] = { ...ownGrades()[key], [scores[current].name]: value };
  keep();
  if (current + 1 < scores.length) current += 1;
  else if (place + 1 < stories.length) return go(1);
  show();
}

function go(step) {
  place = Math.min(stories.length - 1, Math.max(0, place + step));
  current = 0;
  show();
  $("story").scrollIntoView();
}

function save() {
  const name = kept.name.replace(/[^\p{L}\p{N}_-]+/gu, "_");
  if (!name) return $("name").focus();
  const lines = [["judge", "story", ...scores.map((score) => score.name)]];
  for (const { key } of stories) {
    const grades = ownGrades()[key];
    if (grades) lines.push([name, key, ...scores.map((score) => grades[score.name] ?? "")]);
  }
  const text = lines.map((line) => `${line.join(",")}\n`).join("");
  saveAs(`read-${name}.csv`, text, "text/csv");
  $("saved").textContent = `Put read-${name}.csv beside this page and run grade.py again.`;
}

$("name").value = kept.name;
$("name").onchange = () => {
  const nameless = kept.name ? {} : ownGrades(); // typed before the name
  delete kept.readers[""];
  kept.name = $("name").value.trim();
  Object.assign(ownGrades(), nameless);
  keep();
  place = firstUngraded();
  current = 0;
  show();
};
$("back").onclick = () => go(-1);
$("next").onclick = () => go(1);
$("save").onclick = save;
document.addEventListener("keydown", (event) => {
  const isTyping = event.target === $("name");
  if (isTyping || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
  if (!/^[0-9x]$/i.test(event.key)) return;
  event.preventDefault(); // the list of grades would take the digit, too
  grade(event.key.toLowerCase() === "x" ? 10 : Number(event.key));
});
show();
