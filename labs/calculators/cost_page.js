/* The page cost.html: draw the days over the number of GPUs, and compare with public trainings. */
"use strict";

const MOST_GPUS = 1e7;
const form = document.getElementById("inputs");
let gpuAxis = null; // of the last drawing, for clicks

const percent = (fraction) => `${shown(100 * fraction, 3)}\u00a0%`;
const priceOf = (cost) => (cost.price === null ? "\u2013" : large(cost.price));

/* A duration in the unit that a reader uses. */
function duration(days) {
  const [value, unit] = days >= 1 ? [days, "day"] : days >= 1 / 24 ? [24 * days, "hour"] : [1440 * days, "minute"];
  return `${shown(value)} ${unit}${shown(value) === "1" ? "" : "s"}`;
}

function costSentence(input, cost) {
  const price = cost.price === null ? "Without a price of a GPU hour, the page computes no price."
    : `At ${shown(input.price, 6)} per GPU hour they cost ${large(cost.price)}.`;
  return `${shown(input.tokens / 1e9)} billion tokens with ${shown(input.parameters / 1e9)} billion parameters need ` +
    `${cost.flops.toExponential(2)} floating-point operations. At an MFU of ${percent(input.utilization)} these are ` +
    `${large(cost.gpuHours)} GPU hours, or ${duration(cost.days)} on ${gpus(input.gpus)}. ${price}`;
}

function drawCost(input, cost, sentence) {
  const drawing = chart(document.getElementById("chart"), 290,
    `Straight line of the days over the number of GPUs, both on logarithmic scales. ${sentence}`);
  const area = { left: 58, right: drawing.width - 24, top: 28, bottom: 240 };
  const middle = Math.min(Math.max(Math.round(Math.log10(input.gpus)), 1), 6);
  const [least, most] = [10 ** Math.max(0, middle - 2), 10 ** Math.min(7, middle + 2)];
  const days = (count) => cost.gpuHours / 24 / count;
  const y = logAxis(10 ** Math.floor(Math.log10(days(most))), 10 ** Math.ceil(Math.log10(days(least))),
    area.bottom, area.top);
  const x = logAxis(least, most, area.left, area.right);
  axes(drawing, area, x, y, { x: "GPUs", y: "days", xNumber: short, yNumber: short });
  verticalLine(drawing, area, x.at(input.gpus), gpus(input.gpus), "chosen");
  curve(drawing, [least, most].map((count) => [x.at(count), y.at(days(count))]), "hours");
  marker(drawing, x.at(input.gpus), y.at(cost.days), "hours");
  gpuAxis = x;
}

/* The chosen MFU and round ones, in order. */
function someUtilizations(chosen) {
  return [...new Set([0.2, 0.3, 0.4, 0.5, chosen])].sort((a, b) => a - b);
}

startCalculator({
  presets: COST_PRESETS,
  show(input) {
    const cost = trainingCost(input), sentence = costSentence(input, cost);
    drawCost(input, cost, sentence);
    fillTable(document.getElementById("table"), someUtilizations(input.utilization).map((utilization) => {
      const each = trainingCost({ ...input, utilization });
      return [percent(utilization), short(each.flops / input.tokens), large(each.gpuHours), shown(each.days),
        priceOf(each)];
    }));
    return { headline: `${duration(cost.days)} on ${gpus(input.gpus)}: ${large(cost.gpuHours)} GPU hours` +
      `${cost.price === null ? "" : `, price ${large(cost.price)}`}`, sentence };
  },
});
showPublished(COST_PUBLISHED);
fillTable(document.getElementById("reached"), REACHED.map((row) => [row.name, large(row.hours),
  large(1e9 * row.tokens), percent(row.utilization), sourceOf(row)]));
document.getElementById("chart").addEventListener("click", (event) => {
  const left = document.getElementById("chart").getBoundingClientRect().left;
  form.elements.gpus.value = Math.min(MOST_GPUS, Math.max(1, Math.round(gpuAxis.value(event.clientX - left))));
  form.dispatchEvent(new Event("input"));
});
