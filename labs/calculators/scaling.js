/* Efficiency of data-parallel training: the formulas of hvdlab.scaling and lab 18, in seconds and bytes.
 *
 * Input: gradientBytes, compute (seconds per step), measuredRanks (GPUs on which it was measured), overlap (fraction
 * of compute that can hide communication), jitter (standard deviation of a GPU's compute time, as a fraction), mode
 * ("weak" or "strong"), for strong scaling growth (batch of all GPUs, relative to the measured one) and fixed (seconds
 * of the compute time that a smaller batch does not save), perHost (GPUs per node), networkLatency, networkBandwidth
 * (peak), networkEfficiency (fraction of the peak that an all-reduce reaches), insideLatency, insideBandwidth,
 * insideEfficiency, ranks.
 */
"use strict";

const ALGORITHMS = ["ring", "hierarchical", "tree"];
const MOST_RANKS = 10000;

/* 2(N-1) steps, each with a chunk of S/N bytes. */
function ring(nbytes, ranks, link) {
  return 2 * (ranks - 1) * (link.latency + nbytes / ranks / link.bandwidth);
}

/* A double binary tree across the hosts and a chain in each host; as many bytes as a ring. */
function tree(nbytes, hosts, perHost, network, inside) {
  const ranks = hosts * perHost;
  const levels = Math.ceil(Math.log2(hosts));
  const latency = 2 * (levels * network.latency + (perHost - 1) * inside.latency);
  const slowest = Math.min(hosts > 1 ? network.bandwidth : Infinity, perHost > 1 ? inside.bandwidth : Infinity);
  return latency + 2 * (ranks - 1) / ranks * nbytes / slowest;
}

/* Reduce-scatter in each host, a ring across the hosts for each shard, all-gather in each host. */
function hierarchical(nbytes, hosts, perHost, network, inside) {
  const shardLink = { latency: network.latency, bandwidth: network.bandwidth / perHost };
  return ring(nbytes, perHost, inside) + ring(nbytes / perHost, hosts, shardLink);
}

/* Seconds of one all-reduce. The ranks fill one host after another (Cluster.all_reduce). */
function allReduce(nbytes, ranks, algorithm, cluster) {
  const { network, inside, perHost } = cluster;
  const hosts = Math.ceil(ranks / perHost);
  if (algorithm === "tree") return tree(nbytes, hosts, Math.min(ranks, perHost), network, inside);
  if (hosts === 1) return ring(nbytes, ranks, inside);
  if (algorithm === "hierarchical") return hierarchical(nbytes, hosts, perHost, network, inside);
  return ring(nbytes, ranks, { latency: Math.max(network.latency, inside.latency),
    bandwidth: Math.min(network.bandwidth, inside.bandwidth) });
}

/* The value that a normal number stays below with a probability: Marsaglia 2004 and bisection. */
function normalQuantile(probability) {
  const below = (x) => {
    let sum = x, term = x;
    for (let i = 3; Math.abs(term) > 1e-17 * Math.abs(sum); i += 2) sum += (term *= x * x / i);
    return 0.5 + sum * Math.exp(-x * x / 2) / Math.sqrt(2 * Math.PI);
  };
  let low = -6, high = 6;
  while (high - low > 1e-12) {
    const middle = (low + high) / 2;
    if (below(middle) < probability) low = middle;
    else high = middle;
  }
  return (low + high) / 2;
}

/* The compute time of the slowest of N GPUs, divided by the mean (Cluster.slowest). */
const expectedMaxima = new Map(); // by number of GPUs, because a curve needs each of them many times
function slowest(jitter, ranks) {
  if (!expectedMaxima.has(ranks)) expectedMaxima.set(ranks, normalQuantile((ranks - 0.375) / (ranks + 0.25)));
  return 1 + jitter * expectedMaxima.get(ranks);
}

/* The batch of a GPU, relative to that of the measurement. */
function batchRatio(input, ranks) {
  return input.mode === "weak" ? 1 : input.growth * input.measuredRanks / ranks;
}

/* Compute time of a step of an average GPU: hvdlab.scaling.step_compute. */
function stepCompute(input, ranks) {
  const fixed = input.mode === "weak" ? 0 : input.fixed;
  return fixed + (input.compute - fixed) * batchRatio(input, ranks);
}

/* Lab 18, exercise 4. */
function stepEfficiency(compute, communication, overlap) {
  const exposed = Math.max(0, communication - overlap * compute);
  return compute / (compute + exposed);
}

/* Lab 18, exercise 5: the cost whose removal saves most, or "compute" if it saves less than 5 %. */
function limit(step, without) {
  const worst = Object.keys(without).reduce((most, name) => (without[name] < without[most] ? name : most));
  return step - without[worst] < 0.05 * step ? "compute" : worst;
}

function linksOf(input) {
  return {
    perHost: input.perHost,
    network: { latency: input.networkLatency, bandwidth: input.networkBandwidth * input.networkEfficiency },
    inside: { latency: input.insideLatency, bandwidth: input.insideBandwidth * input.insideEfficiency },
  };
}

function changed(cluster, better) {
  return { ...cluster, network: { ...cluster.network, ...better }, inside: { ...cluster.inside, ...better } };
}

/* One algorithm on one number of ranks: seconds, efficiency and limit. */
function forecast(input, ranks, algorithm) {
  const cluster = linksOf(input);
  const stepWith = (links, given = input) => {
    const waited = stepCompute(given, ranks) * slowest(given.jitter, ranks) / slowest(given.jitter, input.measuredRanks);
    return waited / stepEfficiency(waited, allReduce(input.gradientBytes, ranks, algorithm, links), input.overlap);
  };
  const compute = stepCompute(input, ranks), step = stepWith(cluster);
  const waiting = compute * (slowest(input.jitter, ranks) / slowest(input.jitter, input.measuredRanks) - 1);
  const without = {
    stragglers: stepWith(cluster, { ...input, jitter: 0 }),
    latency: stepWith(changed(cluster, { latency: 0 })),
    bandwidth: stepWith(changed(cluster, { bandwidth: Infinity })),
  };
  if (input.mode === "strong") without["fixed time"] = stepWith(cluster, { ...input, fixed: 0 });
  const ratio = batchRatio(input, ranks);
  return {
    ranks, algorithm, compute, waiting, step,
    communication: allReduce(input.gradientBytes, ranks, algorithm, cluster),
    exposed: step - compute - waiting,
    efficiency: input.compute * ratio / step,
    faster: input.compute / step * ratio * ranks / input.measuredRanks,
    limit: limit(step, without),
  };
}

/* Return, for each algorithm, the forecast for input.ranks, and the efficiencies of the curve. */
function scaling(input) {
  const counts = [];
  for (let i = 0; i <= 120; i++) counts.push(Math.round(Math.pow(MOST_RANKS, i / 120)));
  const least = input.measuredRanks;
  const distinct = [...new Set([least, ...counts.filter((ranks) => ranks > least)])];
  return Object.fromEntries(ALGORITHMS.map((algorithm) => [algorithm, {
    ...forecast(input, input.ranks, algorithm),
    curve: distinct.map((ranks) => ({ ranks, efficiency: forecast(input, ranks, algorithm).efficiency })),
  }]));
}

/* The values are in the units of the input fields: MB, ms, percent, microseconds, GB/s. */
const WEAK = { mode: "weak", measuredRanks: 1, growth: 1, fixed: 0 };
const HOROVOD_2018 = { overlap: 66.7, jitter: 4, perHost: 4, networkLatency: 14, networkBandwidth: 3.125, networkEfficiency: 84,
  insideLatency: 5, insideBandwidth: 12, insideEfficiency: 100, ...WEAK };
const UBER = { source: "Sergeev and Del Balso 2018", link: "https://arxiv.org/abs/1802.05799",
  note: "Lab 18 fitted latency, network and jitter to its results." };
const NCCL_NOTE = "370 of 450 GB/s of NVLink: NVIDIA, nccl-tests, issue 212. 47 of 50 GB/s of a network card: issue 290. ";
const NCCL = { source: "NVIDIA, nccl-tests", link: "https://github.com/NVIDIA/nccl-tests/issues/212" };
const H100_NDR = { overlap: 66.7, jitter: 4, perHost: 8, networkLatency: 10, networkBandwidth: 400, networkEfficiency: 94,
  insideLatency: 3, insideBandwidth: 450, insideEfficiency: 82 };
const A100_HDR = { ...H100_NDR, networkBandwidth: 200, insideBandwidth: 300 };
const FIXED_A100 = 3.91; // ms, fitted to 64 GPUs: scaling_published.js
const MLCOMMONS = { source: "public logs of MLCommons", link: "https://github.com/mlcommons/training_results_v2.0",
  note: "Derived, not verified by MLCommons Association. The compute time of 8 GPUs is measured, and the fixed part fitted " +
    "to 64. Links reach what NVIDIA reports. Jitter as Horovod's in lab 18; latencies are examples." };
const SCALING_PRESETS = [
  { name: "VGG-16, Pascal GPUs, 25 Gbit/s", ...UBER,
    values: { gradientBytes: 553, compute: 489, ...HOROVOD_2018 } },
  { name: "ResNet-101, Pascal GPUs, 25 Gbit/s", ...UBER,
    values: { gradientBytes: 178, compute: 536, ...HOROVOD_2018 } },
  { name: "VGG-16, GPUs ten times as fast", ...UBER,
    note: "Prediction 3 of lab 18: the step takes a tenth of the time.",
    values: { gradientBytes: 553, compute: 48.9, ...HOROVOD_2018 } },
  { name: "ResNet-50, A100, strong scaling from 8 GPUs", ...MLCOMMONS,
    values: { gradientBytes: 51.1, compute: 123.9, ...A100_HDR, mode: "strong", measuredRanks: 8, growth: 1, fixed: FIXED_A100 } },
  { name: "8 billion parameters, H100, 400 Gbit/s per GPU", ...NCCL,
    note: `${NCCL_NOTE}The step time (about 1,200 tokens per GPU at an MFU of 40 %), the jitter and the latencies are examples.`,
    values: { gradientBytes: 16060, compute: 150, ...H100_NDR, ...WEAK } },
  { name: "The same on a badly configured network", source: "NCCL, issue 2409",
    link: "https://github.com/NVIDIA/nccl/issues/2409",
    note: "Two nodes reached 231 in place of about 470 GB/s. The network gets the same fraction of its 94 %.",
    values: { gradientBytes: 16060, compute: 150, ...H100_NDR, networkEfficiency: 46, ...WEAK } },
];
