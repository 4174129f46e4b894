/* The page pipeline.html: draw both schedules as time charts. */
"use strict";

const CHARTS = { "GPipe": "gpipe", "1F1B": "one-f-one-b" };

function scheduleSentence(results) {
  const [gpipe, oneF] = [results.GPipe, results["1F1B"]];
  return `The bubble is ${(100 * gpipe.bubble).toFixed(1)}\u00a0% of the time with both schedules, ` +
    `and a step takes ${shown(gpipe.time, 4)} times a forward pass of a stage. Stage 0 holds the activations of ${gpipe.held[0]} ` +
    `micro-batch${gpipe.held[0] === 1 ? "" : "es"} with GPipe and of ${oneF.held[0]} with 1F1B.`;
}

/* The times at which a stage has nothing to do: [from, to]. */
function idleTimes(result, stage) {
  const mine = result.passes.filter((each) => each.stage === stage).sort((a, b) => a.start - b.start);
  const starts = [...mine.map((each) => each.start), result.time];
  const ends = [0, ...mine.map((each) => each.end)];
  return starts.map((start, i) => [ends[i], start]).filter(([from, to]) => to > from);
}

function drawSchedule(name, result, input) {
  const pitch = input.stages <= 8 ? 34 : 24;
  const drawing = chart(document.getElementById(CHARTS[name]), 22 + input.stages * pitch + 42,
    `Time chart of ${name} with a row for each of ${input.stages} stages and a box for each pass of ` +
    `${input.microBatches} micro-batches. It takes ${shown(result.time, 4)} forward passes, and ` +
    `${(100 * result.bubble).toFixed(1)}\u00a0% of it is idle. ` +
    `The stages hold at most ${result.held.join(", ")} micro-batches.`);
  const area = { left: 66, right: drawing.width - 42, top: 22, bottom: 22 + input.stages * pitch };
  const x = linearAxis(result.time, area.left, area.right, drawing.width < 500 ? 4 : 8);
  words(drawing, drawing.width - 2, 14, "held", { "text-anchor": "end" });
  for (let stage = 0; stage < input.stages; stage++) {
    const middle = area.top + stage * pitch + (pitch - 5) / 2 + 4;
    words(drawing, area.left - 8, middle, `stage ${stage}`, { "text-anchor": "end" });
    words(drawing, drawing.width - 2, middle, `${result.held[stage]}`, { "text-anchor": "end", class: "strong" });
    for (const [from, to] of idleTimes(result, stage)) {
      box(drawing, x.at(from), area.top + stage * pitch, x.at(to) - x.at(from), pitch - 5, "idle");
    }
  }
  for (const each of result.passes) {
    const left = x.at(each.start), top = area.top + each.stage * pitch;
    const wide = x.at(each.end) - left;
    const number = `${each.microBatch + 1}`;
    box(drawing, left, top, wide, pitch - 5, each.kind,
      `stage ${each.stage}, ${each.kind} pass of micro-batch ${number}`);
    if (wide >= 8 * number.length + 4) {
      words(drawing, left + wide / 2, top + (pitch - 5) / 2 + 4, number, { "text-anchor": "middle" });
    }
  }
  for (const tick of x.ticks) {
    words(drawing, x.at(tick), area.bottom + 15, shown(tick), { "text-anchor": "middle" });
  }
  words(drawing, (area.left + area.right) / 2, area.bottom + 33, "time, in forward passes of a stage",
    { "text-anchor": "middle" });
}

startCalculator({
  show(input) {
    const results = {};
    for (const schedule of SCHEDULES) {
      results[schedule] = pipeline({ ...input, schedule, forward: 1 });
      drawSchedule(schedule, results[schedule], input);
    }
    fillTable(document.getElementById("table"), results.GPipe.held.map((most, stage) =>
      [`${stage}`, `${most}`, `${results["1F1B"].held[stage]}`]));
    return { headline: `${(100 * results.GPipe.bubble).toFixed(1)}\u00a0% of the time is idle`,
      sentence: scheduleSentence(results) };
  },
});
