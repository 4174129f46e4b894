/* Draw SVG charts in the visual language of the labs' pictures (labs/pictures/drawing.py).
 *
 * Colours are CSS classes: activations, gradients, weights, state, communication, idle. Letters are at least
 * 12 pixels high, and a unit of a chart is a CSS pixel.
 */
"use strict";

const SVG = "http://www.w3.org/2000/svg";

/* Append an element to a parent and return it. */
function add(parent, tag, attributes = {}, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    element.setAttribute(name, typeof value === "number" ? String(Math.round(value * 100) / 100) : value);
  }
  if (text !== "") element.textContent = text;
  parent.append(element);
  return element;
}

/* Replace what a container holds by an empty chart as wide as the container, and return the chart. */
function chart(container, height, description) {
  const width = container.clientWidth;
  container.replaceChildren();
  const svg = add(container, "svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    "aria-label": description });
  const definitions = add(svg, "defs");
  for (const name of ["gradients", "communication"]) {
    const stripes = add(definitions, "pattern", { id: `${container.id}-${name}`, width: 8, height: 8,
      patternUnits: "userSpaceOnUse", class: name });
    add(stripes, "path", { d: "M-2,2 L2,-2 M0,8 L8,0 M6,10 L10,6", class: "stroke" });
  }
  const dots = add(definitions, "pattern", { id: `${container.id}-state`, width: 9, height: 9,
    patternUnits: "userSpaceOnUse", class: "state" });
  add(dots, "circle", { cx: 3, cy: 3, r: 1.3, class: "dot" });
  return { svg, width, height, id: container.id };
}

/* A box with a tinted inside, as in the pictures. Gradients and communication are hatched, the state is dotted. */
function box(chart, x, y, width, height, name, title = "") {
  const group = add(chart.svg, "g", { class: name });
  const place = { x, y, width: Math.max(0, width), height };
  add(group, "rect", { ...place, class: "under" });
  add(group, "rect", { ...place, class: width < 6 ? "box thin" : "box" });
  if (["gradients", "communication", "state"].includes(name)) {
    add(group, "rect", { ...place, fill: `url(#${chart.id}-${name})` });
  }
  if (title) add(group, "title", {}, title);
  return group;
}

function words(chart, x, y, text, attributes = {}) {
  return add(chart.svg, "text", { x, y, ...attributes }, text);
}

/* Return a function from values to pixels, and the values that get a number on the axis. */
function linearAxis(most, from, to, count = 5) {
  const rough = most / count;
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = [1, 2, 5, 10].map((times) => times * power).find((each) => each >= rough);
  const ticks = [];
  for (let i = 0; i * step <= most * 1.0001; i++) ticks.push(i * step);
  return { at: (value) => from + (to - from) * value / most, ticks };
}

function logAxis(least, most, from, to, subs = [1]) {
  const span = Math.log10(most / least);
  const ticks = [];
  for (let power = Math.floor(Math.log10(least)); power <= Math.log10(most) + 1e-9; power++) {
    for (const sub of subs) {
      const tick = sub * Math.pow(10, power);
      if (tick >= least * 0.9999 && tick <= most * 1.0001) ticks.push(tick);
    }
  }
  const at = (value) => from + (to - from) * Math.log10(value / least) / span;
  return { at, ticks, value: (pixel) => least * Math.pow(10, span * (pixel - from) / (to - from)) };
}

/* Draw grid lines, numbers and titles of both axes around the area of a plot. */
function axes(chart, area, x, y, titles) {
  for (const tick of y.ticks) {
    add(chart.svg, "line", { x1: area.left, x2: area.right, y1: y.at(tick), y2: y.at(tick), class: "grid" });
    words(chart, area.left - 8, y.at(tick) + 4, titles.yNumber(tick), { "text-anchor": "end" });
  }
  for (const tick of x.ticks) {
    add(chart.svg, "line", { x1: x.at(tick), x2: x.at(tick), y1: area.top, y2: area.bottom, class: "grid" });
    words(chart, x.at(tick), area.bottom + 18, titles.xNumber(tick), { "text-anchor": "middle" });
  }
  add(chart.svg, "path", { class: "axis", d: `M${area.left},${area.top} V${area.bottom} H${area.right}` });
  words(chart, (area.left + area.right) / 2, area.bottom + 38, titles.x, { "text-anchor": "middle" });
  words(chart, 2, 14, titles.y, {});
}

function curve(chart, points, name) {
  const path = points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(2)},${y.toFixed(2)}`).join("");
  return add(chart.svg, "path", { d: path, class: `curve ${name}` });
}

function marker(chart, x, y, name) {
  return add(chart.svg, "circle", { cx: x, cy: y, r: 5, class: `marker ${name}` });
}

/* A vertical line with words at its upper end, on the side where there is room. */
function verticalLine(chart, area, x, text, name) {
  add(chart.svg, "line", { x1: x, x2: x, y1: area.top, y2: area.bottom, class: `mark ${name}` });
  const left = x > (area.left + area.right) / 2;
  words(chart, x + (left ? -6 : 6), area.top + 14, text, { "text-anchor": left ? "end" : "start",
    class: "halo" });
}

/* A number with two or three significant digits and thousands separators. */
function shown(value, digits = 3) {
  if (value === 0 || !Number.isFinite(value)) return value === 0 ? "0" : "infinite";
  if (Math.abs(value) >= 100) return Math.round(Number(value.toPrecision(digits))).toLocaleString("en-US");
  return String(Number(value.toPrecision(digits)));
}

/* A number in a sentence: 28.2 million. */
function large(value, digits = 3) {
  if (value >= 1e9) return `${shown(value / 1e9, digits)}\u00a0billion`;
  return value >= 1e6 ? `${shown(value / 1e6, digits)}\u00a0million` : shown(value, digits);
}

/* A number on a logarithmic axis: 10k, 1M. */
function short(value) {
  for (const [unit, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (value >= size * 0.9999) return `${Number((value / size).toPrecision(3))}${unit}`;
  }
  return String(Number(value.toPrecision(3)));
}

/* Fill the body of a table. A row is a list of texts or elements, and its first cell is the heading of the row. */
function fillTable(body, rows) {
  body.replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    cells.forEach((cell, i) => {
      const element = document.createElement(i ? "td" : "th");
      if (!i) element.scope = "row";
      element.append(cell);
      row.append(element);
    });
    return row;
  }));
}
