// The panel: what is graded, how far it is, and the verdict. Plain elements; whatever comes from a
// submission is set as text, never as markup.

const FACES = { pass: "✓", partial: "◐", fail: "✗", skipped: "–", error: "!" };
const REASONED = ["partial", "fail", "error"]; // what to do about it is in the report
// The words of the report's first line, templates/report.html.j2.
const VERDICTS = {
  pass: "Pass",
  fail: "Not passed yet",
  not_gradable: "Not gradable: no attempt lost",
  infrastructure_error: "A fault of the grader, not yours",
};
const ENDS = {
  cancelled: "Cancelled. Nothing of it is left running.",
  failed: "The grader did not finish: ",
};
const UNSHOWN = ["seconds", "steps", "examples", "batch_size"]; // the recorder's own, beside what the script reports

// An element with attributes and content; strings become text.
function make(tag, attributes = {}, ...content) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...content);
  return element;
}

export class Panel {
  // `on` has the functions assess(path), cancel() and open(status).
  constructor(on) {
    this.status = { state: "idle" };
    this.path = null;

    this.what = make("p", { class: "what" });
    this.ranks = make("input", { type: "number", min: 1, value: 2 });
    this.profile = make("select", {}, make("option", { value: "cpu" }, "cpu"));
    this.rule = make("p", { class: "note" });
    this.begin = make("button", { class: "jp-Button jp-mod-styled jp-mod-accept" }, "Assess");
    this.form = make(
      "div",
      { class: "form" },
      make("label", {}, "Ranks", this.ranks),
      make("label", {}, "Profile", this.profile),
      this.begin,
    );

    this.stage = make("p", { class: "stage", role: "status" });
    this.bar = make("progress", { max: 1, "aria-label": "progress of this step" });
    this.left = make("p", { class: "note" });
    this.stop = make("button", { class: "jp-Button jp-mod-styled jp-mod-warn" }, "Cancel");
    this.work = make("div", { class: "work" }, this.stage, this.bar, this.left, this.stop);

    this.handed = make("p", { class: "handed", role: "status" });
    this.message = make("p", { class: "message", role: "alert" });
    this.verdict = make("p", { class: "verdict" });
    this.points = make("p", { class: "points" });
    // Always there, so that a screen reader tells what comes into it.
    this.outcome = make("div", { role: "status" }, this.verdict, this.points);
    this.read = make("button", { class: "jp-Button jp-mod-styled jp-mod-accept" }, "Open report");
    this.checks = make("ul", { class: "checks" });
    this.end = make("div", { class: "end" }, this.read, this.checks);

    this.epochs = make("table", {});

    this.node = make(
      "div",
      { class: "hvdgrade-panel" },
      make("link", { rel: "stylesheet", href: new URL("assess.css", import.meta.url) }),
      make("h2", {}, "Assess"),
      this.what,
      this.form,
      this.rule,
      this.handed,
      this.message,
      this.work,
      this.outcome,
      this.end,
      this.epochs,
    );

    this.begin.onclick = () => on.assess(this.path);
    this.stop.onclick = () => on.cancel();
    this.read.onclick = () => on.open(this.status);
    this.profile.onchange = () => this.describe();
    this.sayHanded("");
    this.show(this.status);
  }

  get running() {
    return ["running", "cancelling"].includes(this.status.state);
  }

  // What is asked of the server.
  request() {
    return { path: this.path, ranks: Number(this.ranks.value), profile: this.profile.value };
  }

  // Get ready to grade the script at `path`: what was shown of another is gone.
  prepare(path) {
    this.path = path;
    this.show({ ...this.status, path, state: "idle", message: "" });
  }

  // One sentence, over everything else.
  say(text) {
    this.message.textContent = text;
    this.message.hidden = !text;
  }

  // The same, for as long as it takes to read.
  mention(text) {
    this.say(text);
    setTimeout(() => this.message.textContent === text && this.say(""), 8000);
  }

  // What has become of handing in; with the address of a page, a link to it.
  sayHanded(text, link) {
    const there = link && make("a", { href: link, target: "_blank", rel: "noopener" }, "Open its page");
    this.handed.replaceChildren(...(there ? [`${text} `, there] : [text]));
    this.handed.hidden = !text;
  }

  // Show what the server says.
  show(status) {
    const news = status.state !== this.status.state;
    this.status = status;
    this.path = status.path ?? this.path;
    const { state, progress = {}, result } = status;

    if (status.profiles) this.choices(status);
    this.what.replaceChildren(
      ...(this.path
        ? ["Script ", make("code", {}, this.path)]
        : ["Open a script named ", make("code", {}, "assessment.py"), " and press Assess in its toolbar."]),
    );
    this.begin.hidden = this.running || !this.path;
    this.begin.textContent = state === "idle" ? "Assess" : "Assess again";
    this.ranks.disabled = this.profile.disabled = this.running;

    const said = (ENDS[state] ?? "") + (status.message ?? "");
    if (said || news) this.say(said);

    this.work.hidden = !this.running;
    this.stop.disabled = state === "cancelling";
    if (this.running) this.showProgress(status, progress);

    this.end.hidden = this.verdict.hidden = this.points.hidden = state !== "done";
    if (state === "done") this.showResult(status, result);

    this.showEpochs(state === "idle" ? [] : (progress.epochs ?? []));
  }

  // The profiles that there are, and the choice of the last grading.
  choices({ profiles, max_ranks, cores, ranks, profile }) {
    if (this.profiles) return;
    [this.profiles, this.cores, this.ranks.max] = [profiles, cores, max_ranks];
    this.profile.replaceChildren(
      ...Object.keys(profiles).map((name) => make("option", { value: name }, name)),
    );
    this.profile.value = profile ?? "cpu";
    this.ranks.value = ranks ?? 2;
    this.describe();
  }

  describe() {
    const cores = `This machine has ${this.cores} cores.`;
    this.rule.textContent = `${this.profile.value}: ${this.profiles?.[this.profile.value]}. ${cores}`;
  }

  showProgress(status, progress) {
    const { title = "starting", seconds, limit } = progress;
    const cancelling = status.state === "cancelling";
    this.stage.textContent = cancelling
      ? "Ending everything that was started"
      : `${title[0].toUpperCase()}${title.slice(1)} …`;
    if (limit > 0 && !cancelling) {
      this.bar.value = Math.min(seconds / limit, 1);
      this.left.textContent =
        `${Math.round(seconds)} s, at most ${Math.max(0, Math.round(limit - seconds))} s left ` +
        `in this step; ${Math.round(status.seconds)} s in all`;
    } else {
      this.bar.removeAttribute("value"); // it moves to and fro
      this.left.textContent = `${Math.round(status.seconds)} s in all`;
    }
  }

  showResult(status, result) {
    const verdict = result.verdict ?? result.status;
    this.verdict.className = `verdict ${verdict}`;
    this.verdict.textContent = VERDICTS[verdict] ?? verdict;
    this.points.textContent =
      result.status === "graded"
        ? `${result.score} of ${result.max_score} points, ${status.ranks} ranks, profile ${status.profile}`
        : result.reason;
    this.read.hidden = !status.report;
    this.checks.replaceChildren(
      ...result.checks.map((check) =>
        make(
          "li",
          { class: check.state },
          make("span", { class: "face", "aria-hidden": true, title: check.state }, FACES[check.state] ?? "?"),
          make(
            "div",
            {},
            make("span", { class: "spoken" }, `${check.state}: `),
            make("b", {}, check.title),
            ` ${check.points}/${check.max_points}`,
            ...(REASONED.includes(check.state) ? [make("p", {}, check.rationale ?? "")] : []),
          ),
        ),
      ),
    );
  }

  // What the script itself reports, one line an epoch.
  showEpochs(epochs) {
    this.epochs.hidden = epochs.length === 0;
    const reported = new Set(epochs.flatMap((epoch) => Object.keys(epoch.reported ?? {})));
    const names = [...reported].filter((name) => !UNSHOWN.includes(name)).slice(0, 4);
    const row = (kind, cells) => make("tr", {}, ...cells.map((cell) => make(kind, {}, cell)));
    const number = (value) => (typeof value === "number" ? value.toFixed(3) : "");
    this.epochs.replaceChildren(
      make("caption", {}, "As the script reports it; the grader recomputes the accuracies itself."),
      make("thead", {}, row("th", ["epoch", "seconds", ...names])),
      make(
        "tbody",
        {},
        ...epochs.map(({ epoch, seconds, reported = {} }) =>
          row("td", [`${epoch}`, seconds?.toFixed(1) ?? "", ...names.map((name) => number(reported[name]))]),
        ),
      ),
    );
  }
}
