/* The table that compares a page's formulas with published numbers.
 *
 * A row has name, source, link, published, predicted and unit. The error is predicted / published - 1.
 */
"use strict";

function relativeError(row) {
  return row.predicted / row.published - 1;
}

function signedPercent(fraction) {
  const text = (100 * Math.abs(fraction)).toFixed(1);
  return `${text === "0.0" ? "" : fraction < 0 ? "\u2212" : "+"}${text}\u00a0%`;
}

/* A link to the source of a row. */
function sourceOf(row) {
  const link = document.createElement("a");
  link.href = row.link;
  link.textContent = row.source;
  return link;
}

/* Return a sentence with the number of rows, the range of their errors and the median of their sizes. */
function errorSummary(rows) {
  const errors = rows.map(relativeError).sort((a, b) => a - b);
  const sizes = errors.map(Math.abs).sort((a, b) => a - b);
  const middle = (sizes[Math.floor((sizes.length - 1) / 2)] + sizes[Math.ceil((sizes.length - 1) / 2)]) / 2;
  return `${rows.length} rows, errors from ${signedPercent(errors[0])} to ${signedPercent(errors.at(-1))}. ` +
    `Half of them are at most ${(100 * middle).toFixed(1)}\u00a0% in size.`;
}

/* Fill the table with the id "published", and the sentence with the id "errors". */
function showPublished(rows, groups = { "All": () => true }) {
  fillTable(document.getElementById("published"), rows.map((row) => [row.name,
    signedPercent(relativeError(row)), `${large(row.published, 4)}\u00a0${row.unit}`,
    `${large(row.predicted, 4)}\u00a0${row.unit}`, sourceOf(row)]));
  document.getElementById("errors").textContent = Object.entries(groups)
    .map(([name, belongs]) => `${name}: ${errorSummary(rows.filter(belongs))}`).join(" ");
}
