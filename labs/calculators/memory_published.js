/* Measured memory of public runs: the largest number over all GPUs of a run.
 *
 * A row has the inputs that differ from UNSPLIT, and `gb` or `gib`. torchtitan reports memory that PyTorch has
 * reserved, and LitGPT memory that tensors use.
 */
"use strict";

const UNSPLIT = { ranks: 1, tensor: 1, pipeline: 1, context: 1, expert: 1, zeroStage: 0, precision: "bfloat16",
  optimizer: "Adam", method: "full", loraRank: 8, microBatch: 1, microBatches: 1, checkpointing: "none",
  sequenceParallel: false, fusedAttention: true, fusedLoss: true };

const TITAN_LINK = "https://github.com/pytorch/torchtitan/blob/31a17bfdb70bab6f62a13d21816a5339b911d6e3/" +
  "benchmarks/llama3_h100_202412_torchtitan.md";
// FSDP2: float32 shards, bfloat16 layers.
const TITAN = { ranks: 8, zeroStage: 3, precision: "autocast", checkpointing: "full", fusedLoss: false };
// With a pipeline, torchtitan keeps the gathered weights and whole float32 gradients until the update.
const TITAN_405 = { ranks: 512, tensor: 8, pipeline: 8, zeroStage: 1, precision: "mixed, float32 gradients",
  checkpointing: "full", fusedLoss: false, sequenceParallel: true, microBatches: 8 };

const LITGPT_LINK = "https://github.com/Lightning-AI/litgpt/blob/4839345a97a0a90bc5f2361664b04d665c9a0e89/" +
  "tutorials/resource-tables.md";
const HUB_LINK = "https://github.com/Lightning-AI/litgpt/blob/03ffc5515b251fb7e3a461efd0e3c163e45b6b3b/" +
  "config_hub/finetune/README.md";
const LORA = { method: "LoRA" }, QLORA = { method: "QLoRA" };

/* Shapes that are no presets, from the published configurations of the networks. Parameters in billions. */
const SMALL = {
  "Llama 2, 13 billion": { parameters: 13.016, layers: 40, hiddenSize: 5120, heads: 40, kvHeads: 40,
    feedForward: 13824, gated: 1, vocabulary: 32000 },
  "phi-1.5": { parameters: 1.418, layers: 24, hiddenSize: 2048, heads: 32, kvHeads: 32, feedForward: 8192, gated: 0,
    vocabulary: 51200 },
  "StableLM Alpha, 3 billion": { parameters: 3.638, layers: 16, hiddenSize: 4096, heads: 32, kvHeads: 32,
    feedForward: 16384, gated: 0, vocabulary: 50688 },
  "Mistral, 7 billion": { parameters: 7.242, layers: 32, hiddenSize: 4096, heads: 32, kvHeads: 8,
    feedForward: 14336, gated: 1, vocabulary: 32000 },
  "TinyLlama": { parameters: 1.1, layers: 22, hiddenSize: 2048, heads: 32, kvHeads: 4, feedForward: 5632, gated: 1,
    vocabulary: 32000 },
  "phi-2": { parameters: 2.78, layers: 32, hiddenSize: 2560, heads: 32, kvHeads: 32, feedForward: 10240, gated: 0,
    vocabulary: 51200 },
  "Gemma, 2 billion": { parameters: 2.506, layers: 18, hiddenSize: 2048, heads: 8, kvHeads: 1, feedForward: 16384,
    gated: 1, vocabulary: 256000, headSize: 256 },
  "Falcon, 7 billion": { parameters: 7.217, layers: 32, hiddenSize: 4544, heads: 71, kvHeads: 1, feedForward: 18176,
    gated: 0, vocabulary: 65024 },
};

function titan(table, network, gib, setting, values) {
  return { network, setting, gib, values, source: `torchtitan 2024, table ${table}`, link: TITAN_LINK };
}

function litgpt(network, sequence, microBatch, gb, values) {
  const setting = `${values.method}, ${microBatch} x ${sequence} tokens`;
  return { network, setting, gb, values: { ...values, sequence, microBatch }, source: "LitGPT 2023, resource tables",
    link: LITGPT_LINK };
}

function hub(network, microBatch, gb) {
  return { ...litgpt(network, 512, microBatch, gb, LORA), source: "LitGPT, table of configurations", link: HUB_LINK };
}

const MEMORY_PUBLISHED = [
  titan(2, "Llama 3, 8 billion", 83.9, "8 GPUs, 32,768 tokens", { ...TITAN, sequence: 32768 }),
  titan(2, "Llama 3, 8 billion", 84.2, "8 GPUs, context 2", { ...TITAN, sequence: 65536, context: 2 }),
  titan(2, "Llama 3, 8 billion", 84.0, "8 GPUs, context 4", { ...TITAN, sequence: 131072, context: 4 }),
  titan(2, "Llama 3, 8 billion", 84.5, "8 GPUs, context 8", { ...TITAN, sequence: 262144, context: 8 }),
  titan(4, "Llama 3, 70 billion", 71.9, "256 GPUs, tensor 8",
    { ...TITAN, ranks: 256, tensor: 8, sequenceParallel: true, sequence: 8192, microBatch: 16 }),
  titan(5, "Llama 3, 405 billion", 82.5, "512 GPUs, tensor 8, pipeline 8",
    { ...TITAN_405, sequence: 8192, microBatch: 4 }),
  titan(6, "Llama 3, 405 billion", 75.3, "512 GPUs, tensor 8, pipeline 8, 32,768 tokens", { ...TITAN_405, sequence: 32768 }),
  titan(6, "Llama 3, 405 billion", 75.9, "512 GPUs, tensor 8, pipeline 8, context 2", { ...TITAN_405, sequence: 65536, context: 2 }),
  titan(6, "Llama 3, 405 billion", 77.1, "512 GPUs, tensor 8, pipeline 8, context 4", { ...TITAN_405, sequence: 131072, context: 4 }),
  titan(6, "Llama 3, 405 billion", 84.9, "512 GPUs, tensor 8, pipeline 8, context 8", { ...TITAN_405, sequence: 262144, context: 8 }),
  litgpt("phi-1.5", 1044, 1, 4.82, LORA),
  litgpt("phi-1.5", 1044, 2, 6.76, LORA),
  litgpt("phi-1.5", 1044, 4, 10.68, LORA),
  litgpt("StableLM Alpha, 3 billion", 1034, 1, 9.69, LORA),
  litgpt("StableLM Alpha, 3 billion", 1034, 2, 12.10, LORA),
  litgpt("StableLM Alpha, 3 billion", 1034, 4, 16.92, LORA),
  litgpt("Llama 2, 7 billion", 1304, 1, 21.30, LORA),
  litgpt("Llama 2, 7 billion", 1304, 2, 29.07, LORA),
  litgpt("Llama 2, 13 billion", 1304, 1, 38.12, LORA),
  hub("Llama 2, 7 billion", 2, 19.77),
  hub("Llama 3, 8 billion", 1, 19.73),
  hub("Mistral, 7 billion", 2, 20.66),
  hub("Falcon, 7 billion", 1, 16.69),
  hub("StableLM Alpha, 3 billion", 1, 8.58),
  hub("phi-2", 4, 13.98),
  hub("Gemma, 2 billion", 2, 12.62),
  hub("TinyLlama", 8, 13.50),
  litgpt("phi-1.5", 1044, 1, 3.72, QLORA),
  litgpt("StableLM Alpha, 3 billion", 1034, 1, 6.19, QLORA),
  litgpt("Llama 2, 7 billion", 1304, 1, 13.84, QLORA),
  litgpt("Llama 2, 13 billion", 1304, 1, 22.55, QLORA),
].map((row) => {
  const shape = SMALL[row.network] ?? NETWORKS.find((each) => each.name === row.network).values;
  const input = { ...UNSPLIT, ...DENSE, ...shape, ...row.values, parameters: 1e9 * shape.parameters };
  return { ...row, input, unit: "GB", published: row.gb ?? row.gib * 2 ** 30 / 1e9,
    predicted: memory(input).largest.total / 1e9, name: `${row.network}: ${row.setting}` };
});
