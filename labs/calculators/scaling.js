/* Efficiency of data-parallel training: the formulas of hvdlab.scaling and lab 18, in seconds and bytes.
 *
 * Input: gradientBytes, compute (seconds per step), overlap (fraction of compute that can hide communication),
 * perHost (GPUs per node), networkLatency, networkBandwidth, insideLatency, insideBandwidth, ranks.
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
    network: { latency: input.networkLatency, bandwidth: input.networkBandwidth },
    inside: { latency: input.insideLatency, bandwidth: input.insideBandwidth },
  };
}

function changed(cluster, better) {
  return { ...cluster, network: { ...cluster.network, ...better }, inside: { ...cluster.inside, ...better } };
}

/* One algorithm on one number of ranks: seconds, efficiency and limit. */
function forecast(input, ranks, algorithm) {
  const cluster = linksOf(input);
  const stepWith = (links) => {
    const communication = allReduce(input.gradientBytes, ranks, algorithm, links);
    return input.compute + Math.max(0, communication - input.overlap * input.compute);
  };
  const communication = allReduce(input.gradientBytes, ranks, algorithm, cluster);
  const step = stepWith(cluster);
  return {
    ranks, algorithm, communication, step,
    exposed: step - input.compute,
    efficiency: stepEfficiency(input.compute, communication, input.overlap),
    limit: limit(step, {
      latency: stepWith(changed(cluster, { latency: 0 })),
      bandwidth: stepWith(changed(cluster, { bandwidth: Infinity })),
    }),
  };
}

/* Return, for each algorithm, the forecast for input.ranks, and the efficiencies of the curve. */
function scaling(input) {
  const counts = [];
  for (let i = 0; i <= 120; i++) counts.push(Math.round(Math.pow(MOST_RANKS, i / 120)));
  const distinct = [...new Set(counts)];
  return Object.fromEntries(ALGORITHMS.map((algorithm) => [algorithm, {
    ...forecast(input, input.ranks, algorithm),
    curve: distinct.map((ranks) => ({ ranks, efficiency: forecast(input, ranks, algorithm).efficiency })),
  }]));
}

/* The values are in the units of the input fields: MB, ms, percent, microseconds, GB/s. */
const HOROVOD_2018 = { overlap: 66.7, perHost: 4, networkLatency: 14, networkBandwidth: 2.625, insideLatency: 5,
  insideBandwidth: 12 };
const UBER = { source: "Sergeev and Del Balso 2018", link: "https://arxiv.org/abs/1802.05799",
  note: "Lab 18 fitted the latency and the bandwidth of the network to its results." };
const SCALING_PRESETS = [
  { name: "VGG-16, Pascal GPUs, 25 Gbit/s", ...UBER,
    values: { gradientBytes: 553, compute: 489, ...HOROVOD_2018 } },
  { name: "ResNet-101, Pascal GPUs, 25 Gbit/s", ...UBER,
    values: { gradientBytes: 178, compute: 536, ...HOROVOD_2018 } },
  { name: "VGG-16, GPUs ten times as fast", ...UBER,
    note: "Prediction 3 of lab 18: the step takes a tenth of the time.",
    values: { gradientBytes: 553, compute: 48.9, ...HOROVOD_2018 } },
  { name: "Nodes with 8 H100 and 8 NDR network cards", link: "https://www.nvidia.com/en-us/data-center/h100/",
    source: "NVIDIA",
    note: "Peak bandwidths as in lab 1. The gradients, the step time and the latencies are examples.",
    values: { gradientBytes: 2000, compute: 250, overlap: 66.7, perHost: 8, networkLatency: 10,
      networkBandwidth: 400, insideLatency: 3, insideBandwidth: 450 } },
];
