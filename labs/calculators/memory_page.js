/* The page memory.html: draw the memory of each pipeline stage. */
"use strict";

const GPUS = { 16: "V100", 24: "RTX 4090", 40: "A100", 80: "A100 and H100", 141: "H200", 192: "MI300X" }; // by GB
const GPU_SIZES = Object.keys(GPUS).map(Number);
const GB = 1e9;

function gigabytes(nbytes) {
  const value = nbytes / GB;
  return value >= 100 ? shown(value) : value === 0 ? "0" : value < 0.001 ? "< 0.001" : value.toPrecision(3);
}

/* The size of the smallest GPU in the chart that has the memory and the margin, or undefined. */
function smallestGpu(nbytes, margin) {
  return GPU_SIZES.find((each) => each * GB * (1 - margin) >= nbytes);
}

function perParameter(nbytes) {
  const parts = Object.values(nbytes);
  return `${parts.map((each) => shown(each)).join(" + ")} = ${shown(parts.reduce((a, b) => a + b))}`;
}

/* Bytes per parameter: weights + gradients + optimizer state, of the whole network and of a GPU. */
function bytesSentence(input) {
  const size = PRECISIONS[input.precision], shards = shardRanks(input);
  const bytes = [size.weights, size.gradients, stateBytes(input)];
  const whole = perParameter(rankBytes(1, 1, 0, ...bytes));
  if (input.method !== "full") {
    const trained = loraParameters(input).reduce((a, b) => a + b);
    const frozen = input.method === "QLoRA" ? `${shown(NF4_BYTES)} (${size.weights} outside the layers)` : size.weights;
    return `Bytes per parameter: ${frozen} for frozen weights. ${short(trained)} trained parameters have ${whole} ` +
      "(weights, gradients, optimizer state).";
  }
  const sharded = input.zeroStage && shards > 1 ? ` ZeRO stage ${input.zeroStage} over ${grouped(shards)} ranks leaves ` +
    `${perParameter(rankBytes(1, shards, input.zeroStage, ...bytes))} on a GPU.` : "";
  return `Bytes per parameter: ${whole} (weights, gradients, optimizer state).${sharded}`;
}

/* How many of the measured runs the memory kept free would have covered. */
function coveredSentence(margin) {
  const covered = MEMORY_PUBLISHED.filter((row) => row.predicted >= row.published * (1 - margin)).length;
  return `With ${shown(100 * margin)}\u00a0% kept free, a GPU that this page calls large enough would have been so for ` +
    `${covered} of the ${MEMORY_PUBLISHED.length} runs.`;
}

function memorySentence(result, input) {
  const most = result.largest;
  const where = input.pipeline > 1 ? `A GPU of stage ${most.stage}, the fullest one,` : input.ranks > 1 ? "Each GPU" : "The GPU";
  const parts = `weights ${gigabytes(most.weights)}, gradients ${gigabytes(most.gradients)}, optimizer state ` +
    `${gigabytes(most.state)}, activations ${gigabytes(most.activations)} and buffers ${gigabytes(most.buffers)} GB`;
  const size = smallestGpu(most.total, input.margin);
  const free = `With ${shown(100 * input.margin)}\u00a0% of the memory kept free,`;
  const fits = size ? `${free} this fits a GPU with ${size} GB.`
    : `${free} this does not fit the ${GPU_SIZES.at(-1)} GB of the largest GPU in the chart.`;
  return `${where} needs ${gigabytes(most.total)} GB: ${parts}. ${fits} ` +
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
  const fitting = smallestGpu(result.largest.total, input.margin) ?? 0;
  const x = linearAxis(Math.max(total, fitting) * 1.04, area.left, area.right, drawing.width < 500 ? 4 : 8);
  for (const tick of x.ticks) {
    add(drawing.svg, "line", { x1: x.at(tick), x2: x.at(tick), y1: area.top, y2: area.bottom, class: "grid" });
    words(drawing, x.at(tick), area.bottom + 17, shown(tick), { "text-anchor": "middle" });
  }
  words(drawing, (area.left + area.right) / 2, area.bottom + 36, "GB", { "text-anchor": "middle" });
  const high = pitch - (pitch > 20 ? 8 : pitch > 10 ? 3 : 1);
  const topOf = (each) => area.top + 4 + each.stage * pitch;
  const every = count > 1 ? Math.ceil(17 / pitch) : 0; // which stages get their name
  for (const each of result.stages) drawStage(drawing, each, x, topOf(each), high, every);
  let free = 0;
  const sizes = GPU_SIZES.filter((each) => x.at(each) <= area.right);
  document.getElementById("sizes").textContent = "Dashed lines: memory of common GPUs, from the makers' data sheets: " +
    `${sizes.map((each) => `${each}\u00a0GB (${GPUS[each]})`).join(", ")}.`;
  for (const size of sizes) {
    const at = x.at(size);
    add(drawing.svg, "line", { x1: at, x2: at, y1: area.top - 8, y2: area.bottom, class: "mark limit" });
    if (at - 24 < free) continue;
    words(drawing, Math.min(at, drawing.width - 24), 16, `${size} GB`, { "text-anchor": "middle" });
    free = at + 26;
  }
  for (const each of result.stages) writeStage(drawing, each, x, topOf(each), high);
}

function drawStage(drawing, each, x, top, high, every) {
  if (every && each.stage % every === 0) {
    words(drawing, x.at(0) - 8, top + high / 2 + 4, `stage ${each.stage}`, { "text-anchor": "end" });
  }
  let sum = 0;
  for (const part of PARTS) {
    const left = x.at(sum / GB);
    sum += each[part];
    const wide = x.at(sum / GB) - left;
    box(drawing, left, top, wide, high, part, `stage ${each.stage}, ${part}: ${gigabytes(each[part])} GB`);
  }
}

/* The numbers are written last, so that no line crosses them. */
function writeStage(drawing, each, x, top, high) {
  if (high < 18) return;
  let sum = 0;
  for (const part of PARTS) {
    const left = x.at(sum / GB);
    sum += each[part];
    const wide = x.at(sum / GB) - left;
    if (wide > 44) {
      words(drawing, left + wide / 2, top + high / 2 + 4, gigabytes(each[part]),
        { "text-anchor": "middle", class: "halo" });
    }
  }
  const end = x.at(sum / GB);
  if (end + 66 < drawing.width) {
    words(drawing, end + 7, top + high / 2 + 4, `${gigabytes(sum)} GB`, { class: "halo strong" });
  }
}

/* The largest degrees, at most the given ones, that fit the network and the number of GPUs. */
function fitDegrees({ ranks, layers, heads, sequence, experts, ...given }) {
  const pipeline = largestDivisor(ranks, Math.min(given.pipeline, layers));
  const context = largestDivisor(sequence, given.context, ranks / pipeline);
  const tensor = largestDivisor(heads, given.tensor, ranks / pipeline / context);
  const expert = largestDivisor(experts, given.expert, ranks / pipeline / tensor);
  return [
    ["pipeline", pipeline, `which divides ${gpus(ranks)} and is at most ${layers} layers`],
    ["context", context, `which divides ${sequence} tokens and ${gpus(ranks)}`],
    ["tensor", tensor, `which divides ${heads} heads and ${gpus(ranks)}`],
    ["expert", expert, `which divides the number of experts, ${experts}, and ${gpus(ranks)}`],
  ];
}

const LLAMA_2 = NETWORKS.find((each) => each.name === "Llama 2, 7 billion").values;
const ONE_GPU = { name: "Llama 2, 7 billion, QLoRA on one GPU", source: "LitGPT 2023, resource tables", link: LITGPT_LINK,
  values: { ...LLAMA_2, sequence: 1304, method: "QLoRA", ranks: 1, tensor: 1, pipeline: 1, context: 1, expert: 1 } };

startCalculator({
  presets: [ONE_GPU, ...NETWORKS], // the first one that the inputs have is shown
  fit: fitDegrees,
  problem: memoryProblem,
  show(input) {
    const result = memory(input);
    const sentence = memorySentence(result, input);
    drawMemory(result, input, sentence);
    document.getElementById("covered").textContent = coveredSentence(input.margin);
    document.getElementById("bytes").textContent = bytesSentence(input);
    fillTable(document.getElementById("table"), result.stages.map((each) => [`${each.stage}`, `${each.layers}`,
      `${each.held}`, ...[...PARTS, "total"].map((part) => gigabytes(each[part]))]));
    const where = input.pipeline > 1 ? `in a GPU of stage ${result.largest.stage}` : "per GPU";
    return { headline: `${gigabytes(result.largest.total)} GB ${where}`, sentence };
  },
});
showPublished(MEMORY_PUBLISHED, {
  "Training with torchtitan": (row) => row.source.startsWith("torchtitan"),
  "LoRA": (row) => row.input.method === "LoRA",
  "QLoRA": (row) => row.input.method === "QLoRA",
});
