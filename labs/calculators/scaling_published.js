/* Published efficiencies of data parallelism, as data. The formulas of the page predict them.
 *
 * Weak scaling: hvdlab.scaling.published. Strong scaling: labs/results/scaling_records, where the batch per GPU falls;
 * the efficiency is examples per second and GPU, divided by those of 8 or 16 GPUs of the same round.
 */
"use strict";

/* [network, MB of gradients, images/s of one GPU, efficiency at 16, 128 and 512 GPUs]. */
const HOROVOD_ROWS = [
  ["Inception V3", 95.4, 134.4, 2022.6 / 16 / 134.4, 0.90, 0.90],
  ["ResNet-101", 178.2, 119.4, 1746.2 / 16 / 119.4, 0.90, 0.90],
  ["VGG-16", 553.5, 130.9, 1787.4 / 16 / 130.9, 0.79, 0.68],
];

const FIXED_V100 = 9.49; // ms
const V100_EDR = { ...A100_HDR, perHost: 16, networkBandwidth: 100, insideBandwidth: 150 };

/* [round, GPU, id of the row of the smallest run, its GPUs, batch and examples/s, fixed ms, rows]. A row: [id, GPUs,
 * batch, examples/s]. */
const RECORD_ROWS = [
  ["1.0", "A100", "r0336", 8, 3264, 26217, FIXED_A100, [["r0332", 64, 13056, 196556]]],
  ["1.1", "A100", "r0560", 8, 3264, 25875, FIXED_A100, [["r0554", 64, 3264, 165771], ["r0551", 4320, 64800, 5478929]]],
  ["2.0", "A100", "r0795", 8, 3264, 26334, FIXED_A100,
    [["r0786", 64, 3264, 166899], ["r0776", 1024, 35840, 2281541], ["r0784", 4216, 67456, 6033313]]],
  ["0.6", "V100", "r0087", 16, 3328, 22385, FIXED_V100, [["r0099", 512, 33280, 599871], ["r0102", 1536, 59904, 1464302]]],
];
const FITTED_RECORDS = ["r0786", "r0099"]; // the two that determine the fixed time

/* The input of the page in the units of the formulas. */
function scaledInput(values) {
  const units = { gradientBytes: 1e6, compute: 1e-3, fixed: 1e-3, overlap: 0.01, jitter: 0.01, networkLatency: 1e-6,
    networkBandwidth: 1e9, networkEfficiency: 0.01, insideLatency: 1e-6, insideBandwidth: 1e9,
    insideEfficiency: 0.01 };
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, value * (units[name] ?? 1) || value]));
}

const HOROVOD_PUBLISHED = HOROVOD_ROWS.flatMap(([network, gradientBytes, speed, ...efficiencies]) =>
  efficiencies.map((published, i) => ({ ...UBER, network, ranks: [16, 128, 512][i], published, fitted: i < 2,
    mode: "weak", algorithm: "ring",
    input: scaledInput({ ...HOROVOD_2018, gradientBytes, compute: 1e3 * 64 / speed }) })));

const RECORD_PUBLISHED = RECORD_ROWS.flatMap(([round, gpu, first, few, batch, speed, fixed, rows]) =>
  rows.map(([id, ranks, larger, faster]) => ({ network: `ResNet-50, ${gpu}, round ${round}`, ranks,
    source: `scaling_records, ${first} and ${id}`,
    link: "https://github.com/mlcommons/training_results_v" + round, mode: "strong", algorithm: "tree",
    published: faster / ranks / (speed / few), fitted: FITTED_RECORDS.includes(id),
    input: scaledInput({ ...(gpu === "A100" ? A100_HDR : V100_EDR), gradientBytes: 51.1, compute: 1e3 * batch / speed, fixed, mode: "strong",
      measuredRanks: few, growth: larger / batch }) })));

const SCALING_PUBLISHED = [...HOROVOD_PUBLISHED, ...RECORD_PUBLISHED].map((row) => {
  const { efficiency } = forecast(row.input, row.ranks, row.algorithm);
  return { ...row, name: `${row.network}, ${row.mode}, ${grouped(row.ranks)} GPUs${row.fitted ? ", fitted" : ""}`,
    published: 100 * row.published, predicted: 100 * efficiency, unit: "%" };
});
