/* The page scaling.html: draw the efficiency over the number of GPUs, and the parts of a step. */
"use strict";

const percent = (fraction) => `${shown(100 * fraction, 2)}\u00a0%`;
const milliseconds = (seconds) => shown(1000 * seconds);
const form = document.getElementById("inputs");
let gpuAxis = null; // of the last drawing, for clicks

function scalingProblem(input) {
  if (input.ranks < input.measuredRanks) {
    return { field: "ranks", message: `GPUs must be at least the ${input.measuredRanks} that have the given compute ` +
      `time, because the page predicts only larger numbers. Received: ${input.ranks}.` };
  }
  if (input.mode === "strong" && input.fixed >= input.compute) {
    return { field: "fixed", message: "The part that a smaller batch does not save must be less than the compute time. " +
      `Received: ${shown(1e3 * input.fixed)} ms of ${shown(1e3 * input.compute)} ms.` };
  }
  return null;
}

function scalingSentence(result, input) {
  const each = ALGORITHMS.map((name) => `${percent(result[name].efficiency)} with the ${name}` +
    `${name === "hierarchical" ? " all-reduce" : ""}`);
  const best = ALGORITHMS.reduce((a, b) => (result[b].efficiency > result[a].efficiency ? b : a));
  const equal = ALGORITHMS.filter((name) => result[best].efficiency - result[name].efficiency < 0.005);
  const which = equal.length === ALGORITHMS.length ? "The algorithm makes no difference, and" :
    `With the best of them, ${equal.join(" and ")},`;
  return `On ${gpus(input.ranks)} the efficiency is ${each[0]}, ${each[1]} and ${each[2]}. ${which} the limit is ` +
    `${result[best].limit}. They process ${shown(result[best].faster)} times as many examples per ` +
    `second as ${gpus(input.measuredRanks)}.`;
}

function drawCurves(result, input, sentence) {
  const drawing = chart(document.getElementById("chart"), 340, `Curves of the efficiency up to 10,000 GPUs ` +
    `for three all-reduce algorithms. ${sentence} At 10,000 GPUs it is ` +
    `${ALGORITHMS.map((name) => `${percent(result[name].curve.at(-1).efficiency)} (${name})`).join(", ")}.`);
  const area = { left: 52, right: drawing.width - 26, top: 28, bottom: 290 };
  const x = logAxis(1, MOST_RANKS, area.left, area.right), { ranks } = input;
  const y = linearAxis(1, area.bottom, area.top);
  axes(drawing, area, x, y, { x: "GPUs", y: "efficiency", xNumber: shown, yNumber: (value) => value.toFixed(1) });
  verticalLine(drawing, area, x.at(ranks), gpus(ranks), "chosen");
  for (const name of ALGORITHMS) {
    curve(drawing, result[name].curve.map((each) => [x.at(each.ranks), y.at(each.efficiency)]), name);
    marker(drawing, x.at(ranks), y.at(result[name].efficiency), name);
  }
  gpuAxis = x;
}

function drawSteps(result) {
  const steps = ALGORITHMS.map((name) => result[name]);
  const parts = steps.map((each) => `${each.algorithm} ${milliseconds(each.step)} ms, of which ` +
    `${milliseconds(each.exposed)} ms are exposed communication`);
  const drawing = chart(document.getElementById("steps"), 150, `Bars of the time of a step: ${parts.join("; ")}.`);
  const area = { left: 94, right: drawing.width - 14, top: 2, bottom: 108 };
  const most = Math.max(...steps.map((each) => 1000 * each.step));
  const x = linearAxis(most * 1.02, area.left, area.right, drawing.width < 500 ? 4 : 8);
  for (const tick of x.ticks) {
    add(drawing.svg, "line", { x1: x.at(tick), x2: x.at(tick), y1: area.top, y2: area.bottom, class: "grid" });
    words(drawing, x.at(tick), area.bottom + 17, shown(tick), { "text-anchor": "middle" });
  }
  words(drawing, (area.left + area.right) / 2, area.bottom + 36, "milliseconds", { "text-anchor": "middle" });
  steps.forEach((each, i) => {
    const top = area.top + 6 + 34 * i;
    const border = x.at(1000 * each.compute), after = x.at(1000 * (each.compute + each.waiting));
    words(drawing, area.left - 8, top + 17, each.algorithm, { "text-anchor": "end" });
    box(drawing, area.left, top, border - area.left, 26, "activations", `computing: ${milliseconds(each.compute)} ms`);
    box(drawing, border, top, after - border, 26, "idle", `waiting: ${milliseconds(each.waiting)} ms`);
    box(drawing, after, top, x.at(1000 * each.step) - after, 26, "communication",
      `exposed: ${milliseconds(each.exposed)} ms`);
  });
}

startCalculator({
  presets: SCALING_PRESETS,
  fit: ({ ranks, measuredRanks }) => [["ranks", Math.max(ranks, measuredRanks),
    "the smallest number that the page predicts for this preset"]],
  problem: scalingProblem,
  show(input) {
    const result = scaling(input);
    const sentence = scalingSentence(result, input);
    drawCurves(result, input, sentence);
    drawSteps(result);
    fillTable(document.getElementById("table"), ALGORITHMS.map((name) => [name,
      milliseconds(result[name].communication), milliseconds(result[name].exposed),
      milliseconds(result[name].step), percent(result[name].efficiency), shown(result[name].faster),
      result[name].limit]));
    const each = ALGORITHMS.map((name) => `${name} ${percent(result[name].efficiency)}`);
    return { headline: `${gpus(input.ranks)}: ${each.join(", ")}`, sentence };
  },
});
showPublished(SCALING_PUBLISHED, {
  "Fitted": (row) => row.fitted,
  "Predicted, weak": (row) => !row.fitted && row.mode === "weak",
  "Predicted, strong": (row) => !row.fitted && row.mode === "strong",
});
document.getElementById("chart").addEventListener("click", (event) => {
  const left = document.getElementById("chart").getBoundingClientRect().left;
  const ranks = Math.round(gpuAxis.value(event.clientX - left));
  form.elements.ranks.value = Math.min(MOST_RANKS, Math.max(Number(form.elements.measuredRanks.value), ranks));
  form.dispatchEvent(new Event("input"));
});
