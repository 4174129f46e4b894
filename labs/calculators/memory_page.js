/* The page memory.html: draw the memory of each pipeline stage. */
"use strict";

const PARTS = ["weights", "gradients", "state", "activations"];
const GPU_SIZES = [16, 24, 40, 80, 141, 192]; // GB: V100, RTX 4090, A100, A100 and H100, H200, B200 and MI300X
const GB = 1e9;

function memorySentence(result, input) {
  const most = result.largest;
  const where = input.pipeline > 1 ? `A GPU of stage ${most.stage}, the fullest one,` : "Each GPU";
  const parts = `weights ${shown(most.weights / GB)}, gradients ${shown(most.gradients / GB)}, optimizer state ` +
    `${shown(most.state / GB)} and activations ${shown(most.activations / GB)} GB`;
  const size = GPU_SIZES.find((each) => each * GB >= most.total);
  const fits = size ? `This fits a GPU with ${size} GB.`
    : `This is more than the ${GPU_SIZES[GPU_SIZES.length - 1]} GB of the largest GPU in the chart.`;
  return `${where} needs ${shown(most.total / GB)} GB: ${parts}. ${fits} ` +
    `The data-parallel degree is ${shown(result.data, 7)} and the global batch has ` +
    `${shown(result.globalBatch, 9)} sequence${result.globalBatch === 1 ? "" : "s"}.`;
}

function drawMemory(result, input, sentence) {
  const container = document.getElementById("chart");
  const count = result.stages.length;
  const pitch = count === 1 ? 64 : count <= 8 ? 40 : count <= 16 ? 26 : count <= 40 ? 13 : 8;
  const height = 34 + count * pitch + 44;
  const drawing = chart(container, height, `Stacked bar of each pipeline stage. ${sentence}`);
  const area = { left: count > 1 ? 66 : 8, right: drawing.width - 10, top: 30, bottom: 34 + count * pitch };
  const total = result.largest.total / GB;
  const fitting = GPU_SIZES.find((size) => size >= total) ?? 0;
  const x = linearAxis(Math.max(total, fitting) * 1.04, area.left, area.right, drawing.width < 500 ? 4 : 8);
  for (const tick of x.ticks) {
    add(drawing.svg, "line", { x1: x.at(tick), x2: x.at(tick), y1: area.top, y2: area.bottom, class: "grid" });
    words(drawing, x.at(tick), area.bottom + 17, shown(tick), { "text-anchor": "middle" });
  }
  words(drawing, (area.left + area.right) / 2, area.bottom + 36, "GB", { "text-anchor": "middle" });
  result.stages.forEach((each, i) => drawStage(drawing, each, x, area, pitch, i, count));
  let free = 0;
  for (const size of GPU_SIZES.filter((each) => x.at(each) <= area.right)) {
    const at = x.at(size);
    add(drawing.svg, "line", { x1: at, x2: at, y1: area.top - 8, y2: area.bottom, class: "mark limit" });
    if (at - 24 < free) continue;
    words(drawing, Math.min(at, drawing.width - 24), 16, `${size} GB`, { "text-anchor": "middle" });
    free = at + 26;
  }
}

function drawStage(drawing, each, x, area, pitch, i, count) {
  const top = area.top + 4 + i * pitch;
  const high = pitch - (pitch > 20 ? 8 : pitch > 10 ? 3 : 1);
  if (count > 1 && i % Math.ceil(17 / pitch) === 0) {
    words(drawing, area.left - 8, top + high / 2 + 4, `stage ${each.stage}`, { "text-anchor": "end" });
  }
  let sum = 0;
  for (const part of PARTS) {
    const left = x.at(sum / GB);
    sum += each[part];
    const wide = x.at(sum / GB) - left;
    box(drawing, left, top, wide, high, part, `stage ${each.stage}, ${part}: ${shown(each[part] / GB)} GB`);
    if (wide > 44 && high >= 18) {
      words(drawing, left + wide / 2, top + high / 2 + 4, shown(each[part] / GB),
        { "text-anchor": "middle", class: "halo" });
    }
  }
}

startCalculator({
  form: document.getElementById("inputs"),
  presets: MEMORY_PRESETS,
  problem: memoryProblem,
  show(input) {
    const result = memory(input);
    const sentence = memorySentence(result, input);
    document.getElementById("result").textContent = sentence;
    drawMemory(result, input, sentence);
    fillTable(document.getElementById("table"), result.stages.map((each) => [`${each.stage}`, `${each.layers}`,
      `${each.held}`, ...[...PARTS, "total"].map((part) => shown(each[part] / GB))]));
  },
  clear() {
    document.getElementById("result").textContent = "";
  },
});
