/* Public trainings, as data. The formula gets the published utilization, and predicts the published time.
 *
 * A row: [name, parameters / 1e9, layers, width, tokens of a sequence, tokens / 1e9, GPUs, peak TFLOP/s,
 * utilization in %, published number, its unit, source]. `recomputed` sources count the operations of
 * checkpointing in their utilization; they are a third more.
 */
"use strict";

const A100 = 312, H100 = 989;
const ARXIV = "https://arxiv.org/abs/";
const COST_SOURCES = {
  narayanan: { source: "Narayanan et al. 2021, table 2", link: `${ARXIV}2104.04473`, recomputed: true },
  trillion: { source: "Narayanan et al. 2021, section 5.1", link: `${ARXIV}2104.04473`, recomputed: true },
  smith: { source: "Smith et al. 2022, section 2.4", link: `${ARXIV}2201.11990`, recomputed: true },
  korthikanti: { source: "Korthikanti et al. 2022, table 5", link: `${ARXIV}2205.05198` },
  palm: { source: "Chowdhery et al. 2022, section 4.1", link: `${ARXIV}2204.02311` },
  mosaic: { source: "LLM Foundry, MPT benchmarks", link: "https://github.com/mosaicml/llm-foundry/blob/" +
    "061f2c7ce64e655100286584a7629e2a09f827ba/scripts/train/benchmarking/README.md" },
  bloom: { source: "BigScience 2022, section 3.4; model card", link: `${ARXIV}2211.05100`, recomputed: true },
  llama3: { source: "Llama Team 2024, table 4; model card", link: MODEL_CARD },
};

function teraflops(achieved, peak) {
  return 100 * achieved / peak;
}

const COST_ROWS = [
  ["GPT with pipeline and tensor parallelism", 174.6, 96, 12288, 2048, 300, 384, A100, teraflops(153, A100), 84, "days", "narayanan"],
  ["GPT with pipeline and tensor parallelism", 174.6, 96, 12288, 2048, 300, 768, A100, teraflops(149, A100), 43, "days", "narayanan"],
  ["GPT with pipeline and tensor parallelism", 174.6, 96, 12288, 2048, 300, 1536, A100, teraflops(141, A100), 23, "days", "narayanan"],
  ["GPT with pipeline and tensor parallelism", 529.6, 105, 20480, 2048, 300, 560, A100, teraflops(171, A100), 156, "days", "narayanan"],
  ["GPT with pipeline and tensor parallelism", 529.6, 105, 20480, 2048, 300, 1120, A100, teraflops(167, A100), 80, "days", "narayanan"],
  ["GPT with pipeline and tensor parallelism", 529.6, 105, 20480, 2048, 300, 2240, A100, teraflops(159, A100), 42, "days", "narayanan"],
  ["GPT with ZeRO stage 3", 174.6, 96, 12288, 2048, 300, 384, A100, teraflops(144, A100), 90, "days", "narayanan"],
  ["GPT with ZeRO stage 3", 174.6, 96, 12288, 2048, 300, 768, A100, teraflops(88, A100), 74, "days", "narayanan"],
  ["GPT with ZeRO stage 3", 174.6, 96, 12288, 2048, 300, 1536, A100, teraflops(44, A100), 74, "days", "narayanan"],
  ["GPT with ZeRO stage 3", 529.6, 105, 20480, 2048, 300, 640, A100, teraflops(138, A100), 169, "days", "narayanan"],
  ["GPT with ZeRO stage 3", 529.6, 105, 20480, 2048, 300, 1120, A100, teraflops(98, A100), 137, "days", "narayanan"],
  ["GPT with ZeRO stage 3", 529.6, 105, 20480, 2048, 300, 2240, A100, teraflops(48, A100), 140, "days", "narayanan"],
  ["GPT", 1008, 128, 25600, 2048, 450, 3072, A100, teraflops(163, A100), 84, "days", "trillion"],
  ["MT-NLG, a step", 530, 105, 20480, 2048, 1920 * 2048 / 1e9, 2240, A100, teraflops(126, A100), 60.1, "s", "smith"],
  ["MT-NLG, a step", 530, 105, 20480, 2048, 1920 * 2048 / 1e9, 2800, A100, teraflops(121, A100), 50.2, "s", "smith"],
  ["MT-NLG, a step", 530, 105, 20480, 2048, 1920 * 2048 / 1e9, 3360, A100, teraflops(113, A100), 44.4, "s", "smith"],
  ["GPT, a step", 22, 48, 6144, 2048, 4 * 2048 / 1e9, 8, A100, 41.5, 1.10, "s", "korthikanti"],
  ["GPT, a step", 175, 96, 12288, 2048, 64 * 2048 / 1e9, 64, A100, 51.4, 13.75, "s", "korthikanti"],
  ["GPT, a step", 530, 105, 20480, 2048, 280 * 2048 / 1e9, 280, A100, 56.0, 37.83, "s", "korthikanti"],
  ["GPT, a step", 1008, 128, 25600, 2048, 512 * 2048 / 1e9, 512, A100, 56.3, 71.49, "s", "korthikanti"],
  ["PaLM", 540.35, 118, 12288, 2048, 0, 6144, 275, 46.2, 238300, "tokens/s", "palm"],
  ["MPT", 64.862, 80, 8192, 2048, 0, 64, H100, 42.57, 66523, "tokens/s", "mosaic"],
  ["MPT", 29.975, 48, 7168, 2048, 0, 32, H100, 43.92, 73860, "tokens/s", "mosaic"],
  ["MPT", 13.011, 40, 5120, 32768, 0, 8, H100, 31.68, 15812, "tokens/s", "mosaic"],
  ["MPT", 6.6589, 32, 4096, 2048, 0, 8, H100, 46.44, 85144, "tokens/s", "mosaic"],
  ["MPT", 6.9189, 32, 4096, 65536, 0, 8, H100, 28.59, 15654, "tokens/s", "mosaic"],
  ["BLOOM, whole training", 176.2, 70, 14336, 2048, 366, 384, A100, teraflops(150, A100), 1082990, "GPU hours", "bloom"],
  ["Llama 3.1, whole training", 405.85, 126, 16384, 8192, 15600, 16384, H100, 41, 30.84e6, "GPU hours", "llama3"],
];

const COST_PUBLISHED = COST_ROWS.map(([name, billion, layers, hiddenSize, sequence, tokens, gpus, peak, utilization,
  published, unit, key]) => {
  const { source, link, recomputed } = COST_SOURCES[key];
  if (unit === "tokens/s") tokens = published / 1e9; // those of a second
  const input = { parameters: 1e9 * billion, layers, hiddenSize, sequence, tokens: 1e9 * tokens, gpus,
    peak: 1e12 * peak, utilization: utilization / 100 * (recomputed ? 3 / 4 : 1), lost: 0, price: null };
  const cost = trainingCost(input);
  const predicted = { "days": cost.days, "s": 86400 * cost.days, "GPU hours": cost.gpuHours,
    "tokens/s": input.tokens / (86400 * cost.days) }[unit];
  return { name: `${name}, ${shown(billion, 4)} billion, ${grouped(gpus)} GPUs`, source, link, input, published,
    unit, predicted };
});

/* What whole trainings reached, from their start to their end: [name, parameters / 1e9 that a token uses, tokens /
 * 1e9, published GPU hours, peak TFLOP/s, source, link]. */
const LLAMA_2 = ["Touvron et al. 2023b, table 2", `${ARXIV}2307.09288`];
const LLAMA_1 = ["Touvron et al. 2023a, table 15", `${ARXIV}2302.13971`];
const REACHED = [
  ["LLaMA 7B", 6.7, 1000, 82432, A100, ...LLAMA_1],
  ["LLaMA 13B", 13.0, 1000, 135168, A100, ...LLAMA_1],
  ["LLaMA 33B", 32.5, 1400, 530432, A100, ...LLAMA_1],
  ["LLaMA 65B", 65.2, 1400, 1022362, A100, ...LLAMA_1],
  ["Llama 2 7B", 6.74, 2000, 184320, A100, ...LLAMA_2],
  ["Llama 2 13B", 13.0, 2000, 368640, A100, ...LLAMA_2],
  ["Llama 2 70B", 69.0, 2000, 1720320, A100, ...LLAMA_2],
  ["MPT 7B", 6.65, 1000, 9.5 * 24 * 440, A100, "MosaicML 2023", "https://www.databricks.com/blog/mpt-7b"],
  ["BLOOM 176B", 176.2, 366, 1082990, A100, "BigScience 2022, section 3.4", `${ARXIV}2211.05100`],
  ["Llama 3.1 8B", 8.03, 15000, 1.46e6, H100, "model card", MODEL_CARD],
  ["Llama 3.1 70B", 70.6, 15000, 7.0e6, H100, "model card", MODEL_CARD],
  ["Llama 3.1 405B", 405.85, 15600, 30.84e6, H100, "model card", MODEL_CARD],
  ["DeepSeek-V3 671B, 37B active", 37, 14800, 2.664e6, H100, "DeepSeek-AI 2024, table 1", `${ARXIV}2412.19437`],
].map(([name, billion, tokens, hours, peak, source, link]) => ({ name, source, link, tokens, hours, peak,
  utilization: 6 * 1e18 * billion * tokens / (3600 * hours * 1e12 * peak) }));
