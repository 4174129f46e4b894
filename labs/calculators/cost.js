/* GPU hours, days and price of training a transformer: the formulas of hvdlab.scaling.training_cost.
 *
 * Input: parameters (that a token uses), tokens, gpus, peak (operations per second of a GPU), utilization (MFU, 0 to
 * 1), layers, hiddenSize, sequence (for attention; 0 leaves it out), lost (fraction of the time without progress),
 * price (of a GPU hour; null if not given).
 */
"use strict";

/* Operations of a forward and a backward pass for one token, without checkpointing. */
function tokenFlops(parameters, layers, hiddenSize, sequence) {
  return 6 * parameters + 12 * layers * hiddenSize * sequence;
}

function trainingCost(input, gpus = input.gpus) {
  const flops = input.tokens * tokenFlops(input.parameters, input.layers, input.hiddenSize, input.sequence);
  const gpuHours = flops / (input.peak * input.utilization) / (1 - input.lost) / 3600;
  return { gpus, flops, gpuHours, days: gpuHours / gpus / 24,
    price: input.price === null ? null : gpuHours * input.price };
}

const MODEL_CARD = "https://github.com/meta-llama/llama-models/blob/main/models/llama3_1/MODEL_CARD.md";

/* The values are in the units of the input fields: billions, TFLOP/s, percent. */
const COST_PRESETS = [
  { name: "Llama 3, 405 billion, 15.6 trillion tokens", source: "Llama Team 2024, tables 3 and 4",
    link: "https://arxiv.org/abs/2407.21783", note: "MFU of 16,384 H100 with sequences of 8,192 tokens.",
    values: { parameters: 405.85, tokens: 15600, layers: 126, hiddenSize: 16384, sequence: 8192, gpus: 16384,
      peak: 989, utilization: 41 } },
  { name: "Llama 3, 8 billion, 15 trillion tokens", source: "model card of Llama 3.1", link: MODEL_CARD,
    note: "The MFU follows from the published 1.46 million GPU hours. The number of GPUs is an example.",
    values: { parameters: 8.03, tokens: 15000, layers: 32, hiddenSize: 4096, sequence: 8192, gpus: 2048, peak: 989,
      utilization: 17.6 } },
  { name: "LLaMA, 65 billion, 1.4 trillion tokens", source: "Touvron et al. 2023, section 2.4",
    link: "https://arxiv.org/abs/2302.13971", note: "380 tokens/s on each of 2,048 A100 are an MFU of 49.6 %.",
    values: { parameters: 65.2, tokens: 1400, layers: 80, hiddenSize: 8192, sequence: 2048, gpus: 2048, peak: 312,
      utilization: 49.6 } },
  { name: "GPT-3, 175 billion, 300 billion tokens", source: "Korthikanti et al. 2022, table 5",
    link: "https://arxiv.org/abs/2205.05198", note: "MFU of 64 A100 with selective checkpointing.",
    values: { parameters: 175, tokens: 300, layers: 96, hiddenSize: 12288, sequence: 2048, gpus: 1024, peak: 312,
      utilization: 51.4 } },
  { name: "DeepSeek-V3, 37 of 671 billion active, 14.8 trillion tokens", source: "DeepSeek-AI 2024, table 1",
    link: "https://arxiv.org/abs/2412.19437",
    note: "Partly in 8 bits. The MFU relative to the 16-bit peak follows from the published GPU hours, without attention.",
    values: { parameters: 37, tokens: 14800, layers: 0, hiddenSize: 0, sequence: 0, gpus: 2048, peak: 989,
      utilization: 34.6 } },
  { name: "One H100 for a day: 1 billion parameters", source: "NVIDIA", note: "Tokens and MFU are examples.",
    link: "https://www.nvidia.com/en-us/data-center/h100/",
    values: { parameters: 1.24, tokens: 4, layers: 16, hiddenSize: 2048, sequence: 2048, gpus: 1, peak: 989,
      utilization: 40 } },
];
