/* What the calculators share: read and check the inputs, keep them in the URL fragment, fill in presets.
 *
 * A page calls startCalculator({ presets, fit, problem, show }). `fit(input)` returns [field, value, reason] for the
 * inputs that a preset leaves as they are but that must fit it, so that no preset ends in an error.
 * `problem(input)` returns null or { field, message }. `show(input)` draws the charts of a possible input. It returns a headline for the eye and
 * a sentence that screen readers announce.
 *
 * Each input field has a name, a label, and min, max and step. A field with data-scale holds a number in a
 * larger unit; the formulas get the value times data-scale.
 */
"use strict";

function labelOf(field) {
  return field.labels[0].firstChild.textContent.trim();
}

function inputFields(form) {
  return [...form.elements].filter((field) => field.name);
}

/* Return the value of a field for the formulas. */
function valueOf(field) {
  if (field.type === "checkbox") return field.checked;
  if (field.value === "" && !field.required) return null;
  if (field.dataset.scale) return Number(field.value) * Number(field.dataset.scale);
  return field.type === "number" || field.type === "range" || field.dataset.number !== undefined
    ? Number(field.value) : field.value;
}

function readInputs(form) {
  return Object.fromEntries(inputFields(form).map((field) => [field.name, valueOf(field)]));
}

/* Return a sentence about a field that is empty or out of range, or null. */
function fieldProblem(field) {
  if (field.type !== "number" || field.validity.valid) return null;
  const what = field.step === "any" ? "a number" : "a whole number";
  const range = `from ${grouped(field.min)} to ${grouped(field.max)}`;
  const received = field.value === "" ? "no number" : field.value;
  if (!field.required) return `${labelOf(field)} must be empty, or ${what} ${range}. Received: ${received}.`;
  return `${labelOf(field)} must be ${what} ${range}${unitOf(field)}. Received: ${received}.`;
}

function unitOf(field) {
  const unit = field.labels[0].querySelector(".unit");
  return unit ? ` ${unit.textContent}` : "";
}

function grouped(text) {
  return Number(text).toLocaleString("en-US", { maximumFractionDigits: 6 });
}

function gpus(count) {
  return `${grouped(count)} GPU${count === 1 ? "" : "s"}`;
}

function writeField(field, text) {
  if (field.type === "checkbox") field.checked = text === "1";
  else if (field.tagName !== "SELECT" || [...field.options].some((each) => each.value === text)) {
    field.value = text;
  }
}

function readField(field) {
  return field.type === "checkbox" ? (field.checked ? "1" : "0") : field.value;
}

/* The fragment has each input in the unit of its field, so that a link shows the same page. Return a sentence about
 * the values that a slider or a list cannot have, and which therefore changed. */
function readFragment(form) {
  const given = new URLSearchParams(location.hash.slice(1));
  const changed = [];
  for (const field of inputFields(form)) {
    if (!given.has(field.name)) continue;
    const text = given.get(field.name);
    writeField(field, text);
    if (field.type !== "checkbox" && readField(field) !== text && Number(readField(field)) !== Number(text)) {
      changed.push(`${labelOf(field)} cannot be "${text}". The page uses ${readField(field) || "no value"}.`);
    }
  }
  return changed.join(" ");
}

/* Copy the address of the page, and say whether the browser allowed it. */
async function copyLink(form) {
  writeFragment(form);
  const answer = document.getElementById("copied");
  try {
    await navigator.clipboard.writeText(location.href);
    answer.textContent = "Copied.";
  } catch {
    answer.textContent = "The browser did not allow it. Copy the address of this page instead.";
  }
}

function writeFragment(form) {
  const values = new URLSearchParams(inputFields(form).map((field) => [field.name, readField(field)]));
  history.replaceState(null, "", `#${values}`);
}

/* Show which preset the inputs have, and where its numbers come from. */
function showPreset(form, presets) {
  const select = document.getElementById("preset");
  const found = presets.findIndex((preset) => Object.entries(preset.values)
    .every(([name, value]) => form.elements[name].value === String(value) || Number(form.elements[name].value) === value));
  select.value = String(found);
  const source = document.getElementById("preset-source");
  source.replaceChildren();
  if (found < 0) return;
  const link = document.createElement("a");
  link.href = presets[found].link;
  link.textContent = presets[found].source;
  source.append("Source: ", link, `. ${presets[found].note ?? ""}`);
}

function offerPresets(presets) {
  const select = document.getElementById("preset");
  select.append(new Option("own values", "-1"), ...presets.map((each, i) => new Option(each.name, String(i))));
}

/* Fill in a preset and change the other inputs that do not fit it. Return a sentence about each of these. */
function usePreset(form, preset, fit) {
  const notices = [];
  const change = (field, value, reason) => {
    field.value = value;
    notices.push(`${labelOf(field)} set to ${value || "no value"}, ${reason}.`);
  };
  for (const [name, value] of Object.entries(preset.values)) form.elements[name].value = value;
  for (const field of inputFields(form).filter(fieldProblem)) change(field, field.defaultValue, "as at the start");
  for (const [name, value, reason] of fit(readInputs(form))) {
    if (Number(form.elements[name].value) !== value) change(form.elements[name], value, reason);
  }
  return notices.join(" ");
}

/* Set what "Reset" restores. */
function setDefault(field, value) {
  if (field.tagName !== "SELECT") field.defaultValue = value;
  else for (const option of field.options) option.defaultSelected = option.value === String(value);
}

function startCalculator({ presets = [], fit = () => [], problem = () => null, show }) {
  const form = document.getElementById("inputs");
  const message = document.getElementById("problem");
  const headline = document.getElementById("headline");
  const sentence = document.getElementById("result");

  function mark(field, text) {
    for (const each of inputFields(form)) {
      each.removeAttribute("aria-invalid");
      each.removeAttribute("aria-describedby");
    }
    message.textContent = text;
    message.hidden = !text;
    if (field) {
      field.setAttribute("aria-invalid", "true");
      field.setAttribute("aria-describedby", message.id);
    }
  }

  function update(notice = "") {
    const noticed = document.getElementById("notice");
    noticed.textContent = notice;
    noticed.hidden = !notice;
    for (const range of form.querySelectorAll("input[type=range]")) {
      document.getElementById(`${range.id}-value`).textContent = range.value;
    }
    if (presets.length) showPreset(form, presets);
    const broken = inputFields(form).find(fieldProblem);
    const input = readInputs(form);
    const impossible = broken ? { field: broken.name, message: fieldProblem(broken) } : problem(input);
    mark(impossible && form.elements[impossible.field], impossible ? impossible.message : "");
    document.body.classList.toggle("impossible", Boolean(impossible));
    const said = impossible ? { headline: "", sentence: "" } : show(input);
    headline.textContent = said.headline;
    sentence.textContent = said.sentence;
  }

  function edited(event) {
    document.getElementById("copied").textContent = "";
    const preset = event?.target.id === "preset" && presets[Number(event.target.value)];
    update(preset ? usePreset(form, preset, fit) : "");
    writeFragment(form);
  }

  if (presets.length) {
    offerPresets(presets);
    const first = presets[Number(document.getElementById("preset").dataset.first)];
    for (const [name, value] of Object.entries(first.values)) setDefault(form.elements[name], value);
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", edited);
  form.addEventListener("reset", () => setTimeout(edited));
  document.getElementById("copy-link").addEventListener("click", () => copyLink(form));
  window.addEventListener("hashchange", () => update(readFragment(form)));
  let notice = readFragment(form), width = 0;
  new ResizeObserver(([page]) => { // also draws for the first time; a phone that is turned draws again
    if (page.contentRect.width !== width) {
      width = page.contentRect.width;
      update(notice);
      if (notice) writeFragment(form);
      notice = "";
    }
  }).observe(document.body);
}
