/* Schedule of a pipeline: the simulation of hvdlab.scaling.pipeline, in units of time.
 *
 * Input: schedule ("GPipe" or "1F1B"), stages, microBatches, forward and backward (time of a pass).
 */
"use strict";

const SCHEDULES = ["GPipe", "1F1B"];

/* The passes of a stage in order. */
function passOrder(schedule, stages, microBatches, stage) {
  const early = schedule === "GPipe" ? microBatches : Math.min(microBatches, stages - stage);
  const passes = [];
  for (let m = 0; m < early; m++) passes.push({ stage, kind: "forward", microBatch: m });
  for (let m = 0; m < microBatches; m++) {
    passes.push({ stage, kind: "backward", microBatch: m });
    if (early + m < microBatches) passes.push({ stage, kind: "forward", microBatch: early + m });
  }
  return passes;
}

/* All passes with start and end. A stage does its passes in order and waits for what each of them needs. */
function simulate(schedule, stages, microBatches, forward, backward) {
  const waiting = [];
  for (let s = 0; s < stages; s++) waiting.push(passOrder(schedule, stages, microBatches, s));
  const free = new Array(stages).fill(0);
  const ends = new Map();
  const passes = [];
  while (waiting.some((mine) => mine.length)) {
    waiting.forEach((mine, stage) => {
      if (!mine.length) return;
      const { kind, microBatch } = mine[0];
      const source = kind === "forward" ? stage - 1 : stage + 1;
      const needed = `${source} ${kind} ${microBatch}`;
      if (source >= 0 && source < stages && !ends.has(needed)) return;
      const start = Math.max(free[stage], ends.get(needed) ?? 0);
      free[stage] = start + (kind === "forward" ? forward : backward);
      ends.set(`${stage} ${kind} ${microBatch}`, free[stage]);
      passes.push({ ...mine.shift(), start, end: free[stage] });
    });
  }
  return passes;
}

/* The idle fraction of the time of all stages. */
function bubble(passes, stages) {
  const busy = passes.reduce((sum, each) => sum + each.end - each.start, 0);
  const span = Math.max(...passes.map((each) => each.end)) - Math.min(...passes.map((each) => each.start));
  return 1 - busy / (stages * span);
}

/* The largest number of micro-batches whose activations a stage holds at the same time. */
function mostHeld(passes, stage) {
  const mine = passes.filter((each) => each.stage === stage).sort((a, b) => a.end - b.end);
  let now = 0, most = 0;
  for (const each of mine) {
    now += each.kind === "forward" ? 1 : -1;
    most = Math.max(most, now);
  }
  return most;
}

/* Return the passes, the total time, the bubble, and the activations that each stage holds. */
function pipeline(input) {
  const passes = simulate(input.schedule, input.stages, input.microBatches, input.forward, input.backward);
  const held = [];
  for (let stage = 0; stage < input.stages; stage++) held.push(mostHeld(passes, stage));
  const time = Math.max(...passes.map((each) => each.end));
  return { passes, time, bubble: bubble(passes, input.stages), held };
}
