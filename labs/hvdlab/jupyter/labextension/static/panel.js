// The panel: the next exercise, and the labs with their exercises. Plain elements.

// An element with attributes and content; strings become text.
function make(tag, attributes = {}, ...content) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...content);
  return element;
}

export class Panel {
  // `on.open({notebook, heading})` opens a notebook at a heading.
  constructor(on) {
    this.on = on;
    this.message = make("p", { class: "message", role: "alert" });
    this.next = make("div", { class: "next" });
    this.labs = make("div", { class: "labs" });
    this.node = make(
      "div",
      { class: "hvdlab-panel" },
      make("link", { rel: "stylesheet", href: new URL("course.css", import.meta.url) }),
      make("h2", {}, "Course"),
      this.message,
      this.next,
      this.labs,
    );
    this.say("");
  }

  // One sentence, over everything else.
  say(text) {
    this.message.textContent = text;
    this.message.hidden = !text;
  }

  // Show what the server says. The labs that are unfolded stay unfolded.
  show({ labs, next }) {
    this.say("");
    const all = labs.flatMap(({ exercises }) => exercises);
    const first = all.find(({ id }) => id === next);
    const open = new Set([...this.labs.querySelectorAll("details[open]")].map(({ dataset }) => dataset.lab));
    if (!this.labs.hasChildNodes() && first) open.add(`${labs.find((lab) => lab.exercises.includes(first)).number}`);
    this.next.replaceChildren(
      make("p", {}, `${all.filter(({ solved }) => solved).length} of ${all.length} exercises are solved.`),
      ...(first ? [this.button(first, "jp-Button jp-mod-styled jp-mod-accept", `Next: ${first.heading}`)] : []),
    );
    this.labs.replaceChildren(...labs.map((lab) => this.lab(lab, open.has(`${lab.number}`))));
  }

  lab({ number, title, notebook, minutes, questions, right, exercises }, open) {
    const solved = exercises.filter((exercise) => exercise.solved).length;
    const done = solved === exercises.length && right === questions;
    const counts = `${minutes} min, ${solved}/${exercises.length} exercises, ${right}/${questions} questions`;
    return make(
      "details",
      { "data-lab": number, ...(open ? { open: "" } : {}) },
      make(
        "summary",
        {},
        make("span", { class: "name" }, `${done ? "✓ " : ""}${number}: ${title}`),
        make("progress", { max: exercises.length || 1, value: solved, "aria-label": `exercises of lab ${number}` }),
        make("span", { class: "note" }, counts),
      ),
      make(
        "ul",
        {},
        make("li", {}, this.button({ notebook }, "link", "Open the lab")),
        ...exercises.map((exercise) =>
          make(
            "li",
            { class: exercise.solved ? "solved" : "open" },
            make("span", { class: "face", "aria-hidden": true }, exercise.solved ? "✓" : "○"),
            this.button(exercise, "link", exercise.heading),
            make("span", { class: "spoken" }, exercise.solved ? " (solved)" : ""),
            ...(exercise.notebook === notebook ? [] : [make("span", { class: "note" }, "optional")]),
          ),
        ),
      ),
    );
  }

  button(place, kind, text) {
    const button = make("button", { class: kind, type: "button" }, text);
    button.onclick = () => this.on.open(place);
    return button;
  }
}
