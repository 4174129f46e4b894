/* Memory of each GPU that trains a transformer: the formulas of hvdlab.scaling.memory, in bytes.
 *
 * Input: parameters, layers, hiddenSize, heads, vocabulary (the network), ranks, tensor, pipeline, zeroStage,
 * precision, optimizer, sequence, microBatch, microBatches, checkpointing, sequenceParallel, fusedAttention.
 */
"use strict";

const PRECISIONS = {
  "float32": { weights: 4, gradients: 4, master: 0, state: 4, activations: 4 },
  "autocast": { weights: 4, gradients: 4, master: 0, state: 4, activations: 2 },
  "mixed": { weights: 2, gradients: 2, master: 4, state: 4, activations: 2 },
  "mixed, float32 gradients": { weights: 2, gradients: 4, master: 4, state: 4, activations: 2 },
  "bfloat16": { weights: 2, gradients: 2, master: 0, state: 2, activations: 2 },
};
const OPTIMIZERS = { "SGD": 0, "momentum": 1, "Adam": 2 }; // numbers that the optimizer keeps per parameter

/* Return the field that makes the input impossible and a sentence about it, or null. */
function memoryProblem(input) {
  const modelRanks = input.tensor * input.pipeline;
  if (input.heads % input.tensor) {
    return { field: "tensor", message: `The tensor-parallel degree must divide the ${input.heads} attention ` +
      `heads of a layer. Received: ${input.tensor}. Choose a degree such as ` +
      `${largestDivisor(input.heads, input.tensor)}.` };
  }
  if (input.pipeline > input.layers) {
    return { field: "pipeline", message: `The pipeline-parallel degree must be at most the number of layers, ` +
      `${input.layers}, because each stage needs a layer. Received: ${input.pipeline}.` };
  }
  if (input.ranks % modelRanks) {
    const below = Math.floor(input.ranks / modelRanks) * modelRanks;
    const choices = below ? `${below} or ${below + modelRanks}` : `${modelRanks}`;
    return { field: "ranks", message: `The number of GPUs must be a multiple of tensor x pipeline = ` +
      `${input.tensor} x ${input.pipeline} = ${modelRanks}. Received: ${input.ranks}. Choose ${choices} GPUs.` };
  }
  return null;
}

function largestDivisor(number, limit) {
  let divisor = Math.min(number, limit);
  while (number % divisor) divisor -= 1;
  return divisor;
}

/* What a rank holds between the backward pass and the update (lab 12). Sizes are bytes per parameter. */
function rankBytes(parameters, ranks, stage, weights, gradients, state) {
  const shard = parameters / ranks;
  return {
    weights: weights * (stage >= 3 ? shard : parameters),
    gradients: gradients * (stage >= 2 ? shard : parameters),
    state: state * (stage >= 1 ? shard : parameters),
  };
}

/* What one layer keeps of one micro-batch: Korthikanti et al. 2022, table 2. */
function layerActivations(input, checkpointing) {
  const number = PRECISIONS[input.precision].activations;
  const size = input.sequence * input.microBatch * input.hiddenSize;
  if (checkpointing === "full") return number * size;
  const unsplit = (4 * number + 2) / (input.sequenceParallel ? input.tensor : 1);
  const split = 12 * number / input.tensor;
  const stored = !input.fusedAttention && checkpointing !== "selective";
  const scores = (2 * number + 1) * input.heads * input.sequence / input.hiddenSize / input.tensor;
  return size * (unsplit + split + (stored ? scores : 0));
}

function stageLayers(layers, stages, stage) {
  return Math.floor(layers / stages) + (stage < layers % stages ? 1 : 0);
}

/* With 1F1B, stage s of p stages holds at most p - s micro-batches (lab 14). */
function stageHeld(input, stage) {
  return Math.min(input.microBatches, input.pipeline - stage);
}

/* The largest number of bytes of activations on a GPU of a stage. */
function stageActivations(input, stage) {
  const held = stageHeld(input, stage);
  const kept = layerActivations(input, input.checkpointing);
  const whole = layerActivations(input, "none");
  let total = held * stageLayers(input.layers, input.pipeline, stage) * kept + (whole - kept);
  const tokens = input.sequence * input.microBatch;
  const width = input.hiddenSize / (input.sequenceParallel ? input.tensor : 1);
  if (stage === 0) total += held * tokens * width; // the mask of the embedding's dropout
  if (stage === input.pipeline - 1) { // inputs of the last norm and the last matrix, float32 logits
    total += 2 * PRECISIONS[input.precision].activations * tokens * width;
    total += 4 * tokens * input.vocabulary / input.tensor;
  }
  return total;
}

/* Return the data-parallel degree, the global batch in sequences, and the memory of a GPU of each stage. */
function memory(input) {
  const data = input.ranks / (input.tensor * input.pipeline);
  const size = PRECISIONS[input.precision];
  const state = size.master + OPTIMIZERS[input.optimizer] * size.state;
  const stages = [];
  for (let stage = 0; stage < input.pipeline; stage++) {
    const layers = stageLayers(input.layers, input.pipeline, stage);
    const mine = input.parameters * layers / input.layers / input.tensor;
    const parts = rankBytes(mine, data, input.zeroStage, size.weights, size.gradients, state);
    parts.activations = stageActivations(input, stage);
    const total = parts.weights + parts.gradients + parts.state + parts.activations;
    stages.push({ stage, layers, held: stageHeld(input, stage), ...parts, total });
  }
  const largest = stages.reduce((most, each) => (each.total > most.total ? each : most));
  return { data, globalBatch: data * input.microBatch * input.microBatches, stages, largest };
}

/* Shapes of published networks. The parameters are in billions, as the input field has them. */
const MEMORY_PRESETS = [
  { name: "BERT-large, 340 million", source: "Devlin et al. 2018", link: "https://arxiv.org/abs/1810.04805",
    values: { parameters: 0.34, layers: 24, hiddenSize: 1024, heads: 16, vocabulary: 30000, sequence: 512 } },
  { name: "GPT-2, 1.5 billion", source: "Radford et al. 2019, table 2; heads as in the published code",
    link: "https://github.com/openai/gpt-2",
    values: { parameters: 1.542, layers: 48, hiddenSize: 1600, heads: 25, vocabulary: 50257, sequence: 1024 } },
  { name: "Llama 3, 8 billion", source: "Llama Team 2024, table 3", link: "https://arxiv.org/abs/2407.21783",
    values: { parameters: 8, layers: 32, hiddenSize: 4096, heads: 32, vocabulary: 128000, sequence: 8192 } },
  { name: "Llama 3, 70 billion", source: "Llama Team 2024, table 3", link: "https://arxiv.org/abs/2407.21783",
    values: { parameters: 70, layers: 80, hiddenSize: 8192, heads: 64, vocabulary: 128000, sequence: 8192 } },
  { name: "GPT-3, 175 billion", source: "Brown et al. 2020, table 2.1", link: "https://arxiv.org/abs/2005.14165",
    values: { parameters: 175, layers: 96, hiddenSize: 12288, heads: 96, vocabulary: 50257, sequence: 2048 } },
  { name: "Llama 3, 405 billion", source: "Llama Team 2024, table 3", link: "https://arxiv.org/abs/2407.21783",
    values: { parameters: 405, layers: 126, hiddenSize: 16384, heads: 128, vocabulary: 128000, sequence: 8192 } },
  { name: "Megatron-Turing NLG, 530 billion", source: "Korthikanti et al. 2022, table 3",
    link: "https://arxiv.org/abs/2205.05198",
    values: { parameters: 530, layers: 105, hiddenSize: 20480, heads: 128, vocabulary: 51200, sequence: 2048 } },
];
