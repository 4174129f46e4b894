/* The page kv_cache.html: draw the memory of a GPU with and without grouped-query attention. */
"use strict";

const gb = (nbytes) => shown(nbytes / 1e9);

function kvSentence(input, result) {
  const fits = result.total <= input.gpuMemory * (1 - input.margin);
  const gpus = input.tensor === 1 ? "The GPU" : `Each of ${input.tensor} GPUs`;
  return `${gpus} stores ${gb(result.weights)} GB of weights and ${gb(result.cache)} GB of keys and values, ` +
    `${shown(result.perToken / 1024)} KiB per token. With ${shown(100 * input.margin)}\u00a0% of its memory kept free, ` +
    `this ${fits ? "fits" : "does not fit"} a GPU with ${gb(input.gpuMemory)} GB. ` +
    `${grouped(result.sequencesThatFit)} sequence${result.sequencesThatFit === 1 ? "" : "s"} of ` +
    `${grouped(result.sequence)} tokens would fit.`;
}

function drawKv(input, rows, sentence) {
  const pitch = 44;
  const drawing = chart(document.getElementById("chart"), 34 + rows.length * pitch + 44,
    `Stacked bars of weights and KV cache. ${sentence} ` +
    rows.map(([name, each]) => `${name}: ${gb(each.total)} GB.`).join(" "));
  const area = { left: 86, right: drawing.width - 12, top: 30, bottom: 34 + rows.length * pitch };
  const usable = input.gpuMemory * (1 - input.margin);
  const most = Math.max(usable, ...rows.map(([, each]) => each.total)) / 1e9;
  const x = linearAxis(most * 1.04, area.left, area.right, drawing.width < 500 ? 4 : 8);
  for (const tick of x.ticks) {
    add(drawing.svg, "line", { x1: x.at(tick), x2: x.at(tick), y1: area.top, y2: area.bottom, class: "grid" });
    words(drawing, x.at(tick), area.bottom + 17, shown(tick), { "text-anchor": "middle" });
  }
  words(drawing, (area.left + area.right) / 2, area.bottom + 36, "GB", { "text-anchor": "middle" });
  rows.forEach(([name, each], i) => {
    const top = area.top + 6 + i * pitch, border = x.at(each.weights / 1e9);
    words(drawing, area.left - 8, top + 20, name, { "text-anchor": "end" });
    box(drawing, area.left, top, border - area.left, 30, "weights", `weights: ${gb(each.weights)} GB`);
    box(drawing, border, top, x.at(each.total / 1e9) - border, 30, "activations", `KV cache: ${gb(each.cache)} GB`);
  });
  const at = x.at(usable / 1e9);
  add(drawing.svg, "line", { x1: at, x2: at, y1: area.top - 8, y2: area.bottom, class: "mark limit" });
  words(drawing, at, 16, `usable: ${gb(usable)} GB`, { "text-anchor": at > drawing.width / 2 ? "end" : "start" });
}

startCalculator({
  presets: NETWORKS.filter((each) => !each.name.startsWith("BERT")).map((each) => {
    const { parameters, layers, hiddenSize, heads, kvHeads, headSize, sequence } = each.values;
    return { ...each, values: { parameters, layers, hiddenSize, heads, kvHeads, headSize, sequence } };
  }),
  fit: ({ heads, tensor }) => [["tensor", largestDivisor(heads, tensor), `which divides ${heads} heads`]],
  problem: kvProblem,
  show(input) {
    const result = kvCache(input), sentence = kvSentence(input, result);
    const rows = [[input.kvHeads < input.heads ? "GQA" : "this", result]];
    if (input.kvHeads < input.heads) rows.push(["multi-head", kvCache({ ...input, kvHeads: input.heads })]);
    if (input.number > 1) rows.push(["8-bit cache", kvCache({ ...input, number: 1 })]);
    drawKv(input, rows, sentence);
    fillTable(document.getElementById("table"), [0.25, 0.5, 1, 2, 4].map((times) => {
      const each = kvCache(input, Math.max(1, Math.round(times * input.sequence)));
      return [grouped(each.sequence), gb(each.cache), gb(each.total), grouped(each.sequencesThatFit)];
    }));
    return { headline: `${gb(result.total)} GB per GPU, ${gb(result.cache)} GB of them KV cache`, sentence };
  },
});
showPublished(KV_PUBLISHED);
