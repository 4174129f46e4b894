/* The page batch.html: draw steps and examples over the batch size, hours and GPU hours over the GPUs. */
"use strict";

const form = document.getElementById("inputs");
const MOST_GPUS = 1e6;
let gpuAxis = null; // of the last drawing, for clicks

function batchSentence(result) {
  const relation = result.batch < result.bCrit ? "below" : result.batch > result.bCrit ? "above" : "equal to";
  return `${gpus(result.ranks)} ${result.ranks === 1 ? "has" : "have"} a batch of ` +
    `${shown(result.batch, 9)} examples, ${relation} the critical batch size. That needs ${shown(result.steps)} steps, ` +
    `${shown(result.hours)} hours and ${shown(result.gpuHours)} GPU hours. Twice the GPUs would save ` +
    `${shown(100 * result.saved, 2)}\u00a0% of the steps.`;
}

/* The range of GPUs that the charts show: one to a hundred times the critical number, and the chosen one. */
function gpuRange(result) {
  const most = Math.max(10, 100 * result.criticalRanks, 2 * result.ranks);
  return Math.min(MOST_GPUS, Math.pow(10, Math.ceil(Math.log10(most))));
}

function counts(most) {
  const points = [];
  for (let i = 0; i <= 160; i++) points.push(Math.round(Math.pow(most, i / 160)));
  return [...new Set(points)];
}

function decades(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return [Math.pow(10, Math.floor(Math.log10(low))), Math.pow(10, Math.ceil(Math.log10(high) + 1e-9))];
}

/* One chart over the number of GPUs. `lines` are [name, value of a result, words for the alternative text]. */
function drawOver(id, input, result, lines, titles) {
  const most = gpuRange(result);
  const results = counts(most).map((ranks) => batch(input, ranks));
  const says = lines.map(([, value, text]) => `${text} ${shown(value(result))}`).join(" and ");
  const drawing = chart(document.getElementById(id), 290,
    `${titles.alt} For ${gpus(result.ranks)}: ${says}.`);
  const area = { left: 58, right: drawing.width - 24, top: 28, bottom: 240 };
  const x = logAxis(1, most, area.left, area.right);
  const all = lines.flatMap(([, value]) => results.map(value));
  const [least, greatest] = decades(all);
  const y = logAxis(least, greatest, area.bottom, area.top, greatest / least <= 100 ? [1, 2, 5] : [1]);
  axes(drawing, area, x, y, { x: titles.x, y: titles.y, yNumber: short,
    xNumber: (ranks) => short(ranks * titles.perGpu) });
  if (result.criticalRanks > 1 && result.criticalRanks < most) {
    add(drawing.svg, "line", { x1: x.at(result.criticalRanks), x2: x.at(result.criticalRanks), y1: area.top,
      y2: area.bottom, class: "mark limit" });
    words(drawing, x.at(result.criticalRanks), area.top - 8, "B_crit", { "text-anchor": "middle" });
  }
  verticalLine(drawing, area, x.at(result.ranks), gpus(result.ranks), "chosen");
  for (const [name, value] of lines) {
    curve(drawing, results.map((each) => [x.at(each.ranks), y.at(value(each))]), name);
    marker(drawing, x.at(result.ranks), y.at(value(result)), name);
  }
  gpuAxis = x;
}

function draw(input, result) {
  drawOver("law", input, result, [
    ["steps", (each) => each.steps / input.sMin, "steps divided by their minimum"],
    ["examples", (each) => each.examples / (input.sMin * input.bCrit), "examples divided by their minimum"],
  ], { x: "batch, examples", y: "times the minimum", perGpu: input.perGpu,
    alt: "Curves over the batch size: the steps fall to their minimum, and the examples rise from theirs. Both are twice the minimum at B_crit." });
  drawOver("hours", input, result, [["hours", (each) => each.hours, "hours"]], { x: "GPUs", y: "hours", perGpu: 1,
    alt: "Curve of the hours over the number of GPUs. It falls, and levels off above B_crit." });
  drawOver("gpu-hours", input, result, [["gpu-hours", (each) => each.gpuHours, "GPU hours"]], { x: "GPUs",
    y: "GPU hours", perGpu: 1, alt: "Curve of the GPU hours over the number of GPUs. It rises above B_crit." });
}

startCalculator({
  presets: BATCH_PRESETS,
  show(input) {
    const result = { ...batch(input), bCrit: input.bCrit };
    draw(input, result);
    const others = [input.ranks / 2, input.ranks, 2 * input.ranks].filter((ranks) => ranks >= 1).map(Math.floor);
    fillTable(document.getElementById("table"), others.map((ranks) => {
      const each = batch(input, ranks);
      return [grouped(ranks), shown(each.batch, 9), shown(each.steps), short(each.examples), shown(each.hours),
        shown(each.gpuHours), shown(each.cost), `${shown(100 * each.saved, 2)}\u00a0%`];
    }));
    return {
      headline: `${gpus(result.ranks)}: ${shown(result.hours)} hours, ` +
        `${shown(result.gpuHours)} GPU hours`,
      sentence: batchSentence(result),
    };
  },
});
for (const id of ["law", "hours", "gpu-hours"]) {
  document.getElementById(id).addEventListener("click", (event) => {
    const left = document.getElementById(id).getBoundingClientRect().left;
    const ranks = Math.round(gpuAxis.value(event.clientX - left));
    form.elements.ranks.value = Math.min(MOST_GPUS, Math.max(1, ranks));
    form.dispatchEvent(new Event("input"));
  });
}
