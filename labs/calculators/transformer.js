/* The shape of a transformer: the formulas of hvdlab.scaling.transformer.
 *
 * Input: parameters, layers, hiddenSize, heads, kvHeads, headSize (0: hiddenSize / heads), feedForward, gated,
 * experts, expertsPerToken, vocabulary.
 */
"use strict";

function queryWidth(network) {
  return network.headSize ? network.heads * network.headSize : network.hiddenSize;
}

function kvWidth(network) {
  return queryWidth(network) * network.kvHeads / network.heads;
}

/* Weights of the four matrices of attention in a layer. */
function attentionWeights(network) {
  return 2 * network.hiddenSize * (queryWidth(network) + kvWidth(network));
}

/* Weights of one feed-forward network: two matrices, or three with a gate. */
function expertWeights(network) {
  return (network.gated ? 3 : 2) * network.hiddenSize * network.feedForward;
}

/* Weights of all experts of all layers, or 0. */
function routedWeights(network) {
  return network.experts > 1 ? network.layers * network.experts * expertWeights(network) : 0;
}

/* Weights of the matrices with that many experts per layer. */
function countedParameters(network, experts, tied = false) {
  const router = network.experts > 1 ? network.hiddenSize * network.experts : 0;
  const layer = attentionWeights(network) + experts * expertWeights(network) + router;
  return network.layers * layer + (tied ? 1 : 2) * network.vocabulary * network.hiddenSize;
}

/* Bytes of the keys and values that one GPU stores for generating text. `number` is bytes of a number. */
function kvCacheBytes(network, tokens, number, tensor) {
  return 2 * network.layers * kvWidth(network) / Math.min(tensor, network.kvHeads) * number * tokens;
}

/* The largest divisor of a number, or of two, that is at most the limit. */
function largestDivisor(number, limit, other = number) {
  let divisor = Math.min(number, limit);
  while (number % divisor || other % divisor) divisor -= 1;
  return divisor;
}

const LLAMA_3 = { source: "Llama Team 2024, table 3", link: "https://arxiv.org/abs/2407.21783" };
const QWEN_3 = { source: "Qwen Team 2025, table 2; shape as in the published configuration",
  link: "https://arxiv.org/abs/2505.09388" };
const DENSE = { headSize: 0, experts: 1, expertsPerToken: 1 };

/* Shapes of published networks. The parameters are in billions, as the input field has them. */
const NETWORKS = [
  { name: "BERT-large, 340 million", source: "Devlin et al. 2018", link: "https://arxiv.org/abs/1810.04805",
    values: { parameters: 0.34, layers: 24, hiddenSize: 1024, heads: 16, kvHeads: 16, feedForward: 4096, gated: 0,
      vocabulary: 30000, sequence: 512, ...DENSE } },
  { name: "GPT-2, 1.5 billion", source: "Radford et al. 2019, table 2; heads as in the published code",
    link: "https://github.com/openai/gpt-2",
    values: { parameters: 1.542, layers: 48, hiddenSize: 1600, heads: 25, kvHeads: 25, feedForward: 6400, gated: 0,
      vocabulary: 50257, sequence: 1024, ...DENSE } },
  { name: "Llama 2, 7 billion", source: "Touvron et al. 2023; shape as in the published configuration",
    link: "https://arxiv.org/abs/2307.09288",
    values: { parameters: 6.738, layers: 32, hiddenSize: 4096, heads: 32, kvHeads: 32, feedForward: 11008, gated: 1,
      vocabulary: 32000, sequence: 4096, ...DENSE } },
  { name: "Llama 3, 8 billion", ...LLAMA_3,
    values: { parameters: 8.03, layers: 32, hiddenSize: 4096, heads: 32, kvHeads: 8, feedForward: 14336, gated: 1,
      vocabulary: 128256, sequence: 8192, ...DENSE } },
  { name: "Llama 3, 70 billion", ...LLAMA_3,
    values: { parameters: 70.55, layers: 80, hiddenSize: 8192, heads: 64, kvHeads: 8, feedForward: 28672, gated: 1,
      vocabulary: 128256, sequence: 8192, ...DENSE } },
  { name: "Llama 3, 405 billion", ...LLAMA_3,
    values: { parameters: 405.85, layers: 126, hiddenSize: 16384, heads: 128, kvHeads: 8, feedForward: 53248,
      gated: 1, vocabulary: 128256, sequence: 8192, ...DENSE } },
  { name: "Mixtral, 8 experts, 47 billion", source: "Jiang et al. 2024, table 1",
    link: "https://arxiv.org/abs/2401.04088",
    values: { parameters: 46.7, layers: 32, hiddenSize: 4096, heads: 32, kvHeads: 8, feedForward: 14336, gated: 1,
      vocabulary: 32000, sequence: 32768, headSize: 0, experts: 8, expertsPerToken: 2 } },
  { name: "Qwen3, 128 experts, 235 billion", ...QWEN_3,
    values: { parameters: 235, layers: 94, hiddenSize: 4096, heads: 64, kvHeads: 4, feedForward: 1536, gated: 1,
      vocabulary: 151936, sequence: 4096, headSize: 128, experts: 128, expertsPerToken: 8 } },
  { name: "GPT-3, 175 billion", source: "Brown et al. 2020, table 2.1", link: "https://arxiv.org/abs/2005.14165",
    values: { parameters: 175, layers: 96, hiddenSize: 12288, heads: 96, kvHeads: 96, feedForward: 49152, gated: 0,
      vocabulary: 50257, sequence: 2048, ...DENSE } },
  { name: "Megatron-Turing NLG, 530 billion", source: "Korthikanti et al. 2022, table 3",
    link: "https://arxiv.org/abs/2205.05198",
    values: { parameters: 530, layers: 105, hiddenSize: 20480, heads: 128, kvHeads: 128, feedForward: 81920,
      gated: 0, vocabulary: 51200, sequence: 2048, ...DENSE } },
];
