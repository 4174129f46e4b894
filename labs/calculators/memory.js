/* Memory of each GPU that trains a transformer: the formulas of hvdlab.scaling.memory, in bytes.
 *
 * Input: that of transformer.js, and ranks, tensor, pipeline, context, expert (degrees), zeroStage, precision,
 * optimizer, method, loraRank, sequence, microBatch, microBatches, checkpointing, sequenceParallel,
 * fusedAttention, fusedLoss.
 */
"use strict";

const PRECISIONS = {
  "float32": { weights: 4, gradients: 4, master: 0, state: 4, activations: 4 },
  "autocast": { weights: 4, gradients: 4, master: 0, state: 4, activations: 2 },
  "mixed": { weights: 2, gradients: 2, master: 4, state: 4, activations: 2 },
  "mixed, float32 gradients": { weights: 2, gradients: 4, master: 4, state: 4, activations: 2 },
  "bfloat16": { weights: 2, gradients: 2, master: 0, state: 2, activations: 2 },
};
const OPTIMIZERS = { "SGD": 0, "momentum": 1, "Adam": 2, "8-bit Adam": 2 }; // numbers kept per parameter
const NF4_BYTES = 4 / 8 + 8 / 8 / 64 + 32 / 8 / (64 * 256); // double quantization, Dettmers et al. 2023
const PARTS = ["weights", "gradients", "state", "activations", "buffers"];

/* Return the field that makes the input impossible and a sentence about it, or null. */
function memoryProblem(input) {
  const modelRanks = input.tensor * input.pipeline * input.context;
  const shards = input.ranks / (input.tensor * input.pipeline);
  if (input.heads % input.tensor) {
    return { field: "tensor", message: `The tensor-parallel degree must divide the ${input.heads} attention ` +
      `heads of a layer. Received: ${input.tensor}. Choose a degree such as ` +
      `${largestDivisor(input.heads, input.tensor)}.` };
  }
  if (input.heads % input.kvHeads) {
    return { field: "kvHeads", message: `The key and value heads must divide the ${input.heads} query heads. ` +
      `Received: ${input.kvHeads}.` };
  }
  if (input.pipeline > input.layers) {
    return { field: "pipeline", message: `The pipeline-parallel degree must be at most the number of layers, ` +
      `${input.layers}, because each stage needs a layer. Received: ${input.pipeline}.` };
  }
  if (input.sequence % input.context) {
    return { field: "context", message: `The context-parallel degree must divide the ${input.sequence} tokens ` +
      `of a sequence. Received: ${input.context}. Choose a degree such as ` +
      `${largestDivisor(input.sequence, input.context)}.` };
  }
  if (input.ranks % modelRanks) {
    const below = Math.floor(input.ranks / modelRanks) * modelRanks;
    const choices = below ? `${below} or ${below + modelRanks}` : `${modelRanks}`;
    return { field: "ranks", message: `The number of GPUs must be a multiple of tensor x pipeline x context = ` +
      `${input.tensor} x ${input.pipeline} x ${input.context} = ${modelRanks}. Received: ${input.ranks}. ` +
      `Choose ${choices} GPUs.` };
  }
  if (input.experts % input.expert || shards % input.expert) {
    return { field: "expert", message: `The expert-parallel degree must divide the ${input.experts} ` +
      `expert${input.experts === 1 ? "" : "s"} of a layer and the ${shards} data- and context-parallel ` +
      `rank${shards === 1 ? "" : "s"}. Received: ${input.expert}. Choose 1 if in doubt.` };
  }
  if (input.expertsPerToken > input.experts) {
    return { field: "expertsPerToken", message: `A token can use at most the ${input.experts} ` +
      `expert${input.experts === 1 ? "" : "s"} of a layer. Received: ${input.expertsPerToken}.` };
  }
  if (routedWeights(input) > input.parameters) {
    return { field: "parameters", message: `The experts alone have ` +
      `${Number((routedWeights(input) / 1e9).toPrecision(4))} billion parameters. The network must have at ` +
      `least as many. Received: ${Number((input.parameters / 1e9).toPrecision(4))} billion.` };
  }
  return null;
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

/* Bytes of the optimizer state and the float32 copy per trained parameter. */
function stateBytes(input) {
  const size = PRECISIONS[input.precision];
  return size.master + OPTIMIZERS[input.optimizer] * (input.optimizer === "8-bit Adam" ? 1 : size.state);
}

function shardRanks(input) {
  return input.ranks / (input.tensor * input.pipeline);
}

function stageLayers(layers, stages, stage) {
  return Math.floor(layers / stages) + (stage < layers % stages ? 1 : 0);
}

/* Trained parameters of LoRA on all matrices of the layers: [outside experts, inside]. */
function loraParameters(input) {
  const h = input.hiddenSize, perRank = input.loraRank * input.layers;
  const attention = 2 * (h + queryWidth(input)) + 2 * (h + kvWidth(input));
  const one = (input.gated ? 3 : 2) * (h + input.feedForward);
  return input.experts === 1 ? [perRank * (attention + one), 0] : [perRank * attention, perRank * input.experts * one];
}

/* Weights, gradients and optimizer state of a GPU of a stage. */
function fixedParts(input, stage) {
  const mine = stageLayers(input.layers, input.pipeline, stage) / input.layers / input.tensor;
  const size = PRECISIONS[input.precision], routed = routedWeights(input), shards = shardRanks(input);
  const total = { weights: 0, gradients: 0, state: 0 };
  const addParts = (count, degree, weights, gradients, state) => {
    const parts = rankBytes(mine * count / degree, shards / degree, input.zeroStage, weights, gradients, state);
    for (const name of Object.keys(total)) total[name] += parts[name];
  };
  const frozen = input.method !== "full";
  const trained = frozen ? loraParameters(input) : [input.parameters - routed, routed];
  addParts(trained[0], 1, size.weights, size.gradients, stateBytes(input));
  addParts(trained[1], input.expert, size.weights, size.gradients, stateBytes(input));
  if (frozen) {
    const inLayers = input.method === "QLoRA" ? NF4_BYTES : size.weights;
    const matrices = attentionWeights(input) + (routed ? 0 : expertWeights(input));
    const outside = Math.min(input.layers * matrices, input.parameters - routed);
    addParts(outside, 1, inLayers, 0, 0);
    addParts(routed, input.expert, inLayers, 0, 0);
    addParts(input.parameters - routed - outside, 1, size.weights, 0, 0);
  }
  return total;
}

/* Tokens of a micro-batch on one rank. */
function rankTokens(input) {
  return input.sequence * input.microBatch / input.context;
}

/* What one layer keeps of one micro-batch: Korthikanti et al. 2022, table 2, for any shape of the layer. */
function layerActivations(input, checkpointing) {
  const number = PRECISIONS[input.precision].activations, h = input.hiddenSize;
  const everywhere = input.sequenceParallel ? input.tensor : 1;
  if (checkpointing === "full") return number * rankTokens(input) * h / everywhere;
  const unsplit = (4 * number + (input.gated ? 0 : 2)) * h;
  const attention = number * 2 * (queryWidth(input) + kvWidth(input));
  let inside = number * (input.gated ? 4 : 2) * input.feedForward;
  if (input.experts > 1) inside = input.expertsPerToken * (inside + 2 * number * h);
  const stored = !input.fusedAttention && checkpointing !== "selective";
  const scores = stored ? (input.gated ? number : 2 * number + 1) * input.heads * input.sequence : 0;
  return rankTokens(input) * (unsplit / everywhere + (attention + inside + scores) / input.tensor);
}

/* With 1F1B, stage s of p stages holds at most p - s micro-batches (lab 14). */
function stageHeld(input, stage) {
  return Math.min(input.microBatches, input.pipeline - stage);
}

/* The largest number of bytes of activations on a GPU of a stage. */
function stageActivations(input, stage) {
  const held = stageHeld(input, stage), tokens = rankTokens(input);
  const kept = layerActivations(input, input.checkpointing);
  const whole = layerActivations(input, "none");
  let total = held * stageLayers(input.layers, input.pipeline, stage) * kept + (whole - kept);
  const width = input.hiddenSize / (input.sequenceParallel ? input.tensor : 1);
  if (stage === 0 && !input.gated) total += held * tokens * width; // the mask of the embedding's dropout
  if (stage === input.pipeline - 1) { // inputs of the last norm and the last matrix, float32 logits
    total += 2 * PRECISIONS[input.precision].activations * tokens * width;
    total += 4 * tokens * input.vocabulary / input.tensor;
  }
  return total;
}

/* Memory that a step needs for a short time: gathered layers, copies of the logits, received inputs. */
function stageBuffers(input, stage) {
  const number = PRECISIONS[input.precision].activations, last = stage === input.pipeline - 1;
  const tokens = rankTokens(input), shards = shardRanks(input);
  const here = input.experts / input.expert;
  let unit = (attentionWeights(input) + here * expertWeights(input)) / input.tensor;
  if (stage === 0 || last) unit = Math.max(unit, input.vocabulary * input.hiddenSize / input.tensor);
  let total = 0;
  if (shards > 1 && input.zeroStage === 3) total += 2 * unit * number;
  if (shards > 1 && input.zeroStage >= 2 && input.method === "full") {
    total += unit * PRECISIONS[input.precision].gradients;
  }
  if (input.method === "QLoRA") total += input.hiddenSize * input.feedForward / input.tensor * number;
  if (input.sequenceParallel && input.tensor > 1) total += tokens * input.hiddenSize * number;
  if (input.context > 1) total += 2 * tokens * kvWidth(input) / input.tensor * number;
  if (last && !input.fusedLoss) total += (number + 8) * tokens * input.vocabulary / input.tensor;
  return total;
}

/* Return the data-parallel degree, the global batch in sequences, and the memory of a GPU of each stage. */
function memory(input) {
  const data = input.ranks / (input.tensor * input.pipeline * input.context);
  const stages = [];
  for (let stage = 0; stage < input.pipeline; stage++) {
    const parts = { ...fixedParts(input, stage), activations: stageActivations(input, stage),
      buffers: stageBuffers(input, stage) };
    const total = PARTS.reduce((sum, part) => sum + parts[part], 0);
    stages.push({ stage, layers: stageLayers(input.layers, input.pipeline, stage), held: stageHeld(input, stage),
      ...parts, total });
  }
  const largest = stages.reduce((most, each) => (each.total > most.total ? each : most));
  return { data, globalBatch: data * input.microBatch * input.microBatches, stages, largest };
}
