/* Steps, examples, hours and GPU hours to a goal over the batch size: hvdlab.noise_scale and labs 6 and 18.
 *
 * Input: sMin (steps), bCrit (examples), perGpu (examples per GPU and step), speed (examples per second of one
 * GPU), efficiency (0 to 1, from two GPUs on), price (per GPU hour), ranks.
 */
"use strict";

/* S(B) = s_min (1 + b_crit / B). */
function stepsToGoal(batch, sMin, bCrit) {
  return sMin * (1 + bCrit / batch);
}

/* Lab 6, exercise 3: steps, examples, and the fraction of the steps that twice the batch saves. */
function scalingLaw(batch, sMin, bCrit) {
  const steps = stepsToGoal(batch, sMin, bCrit);
  return { steps, examples: steps * batch, saved: bCrit / (2 * (batch + bCrit)) };
}

/* Lab 18, exercise 6. `speed` is that of all GPUs together. */
function hoursToGoal(speed, batch, sMin, bCrit) {
  return stepsToGoal(batch, sMin, bCrit) * batch / speed / 3600;
}

/* Return everything for a number of GPUs. */
function batch(input, ranks = input.ranks) {
  const size = input.perGpu * ranks;
  const speed = ranks * input.speed * (ranks > 1 ? input.efficiency : 1);
  const hours = hoursToGoal(speed, size, input.sMin, input.bCrit);
  return {
    ranks, batch: size, hours, gpuHours: hours * ranks, cost: hours * ranks * input.price,
    ...scalingLaw(size, input.sMin, input.bCrit),
    criticalRanks: input.bCrit / input.perGpu,
  };
}

/* Fits and speeds of public results: lab 6 and labs/results/scaling_records. */
const PUBLIC_RUNS = { link: "https://github.com/mlcommons/logging", source: "public logs of MLCommons",
  note: "Lab 6 fits B_crit and S_min to public points. Speed of NVIDIA's smallest run in the table; efficiency of a larger one. " +
    "Derived, not verified by MLCommons Association." };
const BATCH_PRESETS = [
  { name: "ResNet-101 on ImageNet", link: "https://arxiv.org/abs/1812.06162",
    source: "McCandlish et al. 2018", note: "Lab 18 assumes S_min x B_crit = 90 epochs. Speed of a Pascal GPU.",
    values: { bCrit: 15000, sMin: 7680, perGpu: 64, speed: 119.4, efficiency: 90 } },
  { name: "Small network on Fashion-MNIST (lab 6)", link: "https://arxiv.org/abs/1812.06162",
    source: "McCandlish et al. 2018",
    note: "Lab 6 fitted B_crit and S_min (n = 5). Speed and efficiency are examples.",
    values: { bCrit: 190, sMin: 161, perGpu: 16, speed: 30000, efficiency: 90 } },
  { name: "ResNet-50 on ImageNet, A100", ...PUBLIC_RUNS,
    values: { bCrit: 47100, sMin: 950, perGpu: 51, speed: 3290, efficiency: 79 } },
  { name: "GPT-3 from a checkpoint, H100", ...PUBLIC_RUNS,
    values: { bCrit: 16100, sMin: 31.6, perGpu: 4, speed: 0.361, efficiency: 72 } },
];
