/* Memory of a GPU that generates text: weights and KV cache, and published sizes to compare with.
 *
 * Input: that of transformer.js, and sequences (at the same time), number and weight (bytes of a key or value and of
 * a weight), tensor (degree), gpuMemory (bytes), margin (fraction kept free).
 */
"use strict";

function kvProblem(input) {
  if (input.heads % input.kvHeads) {
    return { field: "kvHeads", message: `The key and value heads must divide the ${input.heads} query heads. ` +
      `Received: ${input.kvHeads}. Choose a number such as ${largestDivisor(input.heads, input.kvHeads)}.` };
  }
  if (input.heads % input.tensor) {
    return { field: "tensor", message: `The tensor-parallel degree must divide the ${input.heads} query heads. ` +
      `Received: ${input.tensor}. Choose a degree such as ${largestDivisor(input.heads, input.tensor)}.` };
  }
  return null;
}

/* Return the bytes of a token, the cache and the weights of a GPU, and how many sequences and tokens fit. */
function kvCache(input, sequence = input.sequence) {
  const perToken = kvCacheBytes(input, 1, input.number, input.tensor);
  const cache = perToken * sequence * input.sequences;
  const weights = input.parameters * input.weight / input.tensor;
  const room = Math.max(0, input.gpuMemory * (1 - input.margin) - weights);
  return { sequence, perToken, cache, weights, total: cache + weights, tokensThatFit: Math.floor(room / perToken),
    sequencesThatFit: Math.floor(room / perToken / sequence) };
}

const KWON = { source: "Kwon et al. 2023, table 1", link: "https://arxiv.org/abs/2309.06180" };
const ZHAO = { source: "Zhao et al. 2025, table 1", link: "https://arxiv.org/abs/2505.09343" };
const VLLM = { source: "vLLM, issue 21348", link: "https://github.com/vllm-project/vllm/issues/21348" };

/* [name, layers, key and value heads, width of a head, bytes of a number, tokens, published bytes, divided by, unit,
 * source]. For numbers of tokens, the published bytes are the memory that they fill. */
const KV_PUBLISHED = [
  ["OPT 13B, bytes of a token", 40, 40, 128, 2, 1, 800 * 1024, 1024, "KiB", { ...KWON, source: "Kwon et al. 2023, section 3" }],
  ["OPT 13B, 15.7k tokens", 40, 40, 128, 2, 15700, 12 * 2 ** 30, 2 ** 30, "GiB", KWON],
  ["OPT 66B, 9.7k tokens", 64, 72, 128, 2, 9700, 21 * 2 ** 30, 2 ** 30, "GiB", KWON],
  ["OPT 175B, 60.1k tokens", 96, 96, 128, 2, 60100, 264 * 2 ** 30, 2 ** 30, "GiB", KWON],
  ["Qwen2.5 72B, a token", 80, 8, 128, 2, 1, 327680, 1000, "kB", ZHAO],
  ["Llama 3.1 405B, a token", 126, 8, 128, 2, 1, 516096, 1000, "kB", ZHAO],
  ["Llama 2 7B, 4,096 tokens", 32, 32, 128, 2, 4096, 2e9, 1e9, "GB",
    { source: "NVIDIA, Mastering LLM Techniques",
      link: "https://developer.nvidia.com/blog/mastering-llm-techniques-inference-optimization/" }],
  ["Llama 2 7B, 10,000 tokens", 32, 32, 128, 2, 10000, 5e9, 1e9, "GB",
    { source: "Hugging Face, KV cache quantization", link: "https://huggingface.co/blog/kv-cache-quantization" }],
  ["GPT-2 1.5B, a token", 48, 25, 64, 2, 1, 300 * 1024, 1024, "KiB",
    { source: "The weight of remembering", link: "https://news.future-shock.ai/the-weight-of-remembering/" }],
  ["Llama 3 8B, a token", 32, 8, 128, 2, 1, 128 * 1024, 1024, "KiB",
    { source: "The weight of remembering", link: "https://news.future-shock.ai/the-weight-of-remembering/" }],
  ["LLaMA 30B in llama.cpp, 512 tokens, float32", 60, 52, 128, 4, 512, 1560 * 2 ** 20, 2 ** 20, "MiB",
    { source: "llama-cpp-python, issue 66", link: "https://github.com/abetlen/llama-cpp-python/issues/66" }],
  ["Qwen3 235B in vLLM, 4 GPUs, 178,880 tokens", 94, 1, 128, 2, 178880, 8.11 * 2 ** 30, 2 ** 30, "GiB", VLLM],
  ["Qwen3 235B in SGLang, 4 GPUs, 367,404 tokens", 94, 1, 128, 2, 367404, 2 * 8.23 * 2 ** 30, 2 ** 30, "GiB", VLLM],
].map(([name, layers, kvHeads, headSize, number, tokens, bytes, divisor, unit, source]) => {
  const network = { layers, heads: kvHeads, kvHeads, headSize };
  return { name, ...source, network, number, tokens, unit, published: bytes / divisor,
    predicted: kvCacheBytes(network, tokens, number, 1) / divisor };
});
