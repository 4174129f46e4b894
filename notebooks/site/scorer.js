/* How the search orders its results. Sphinx reads this file in place of its own numbers, which it repeats but for `score`.
 * Whoever searches by a symptom wants the page that explains the mistake: it comes before other pages with the same words. */
var Scorer = {
  score: ([page, , , , score]) =>
    page.startsWith("mistakes/") || page === "assessment/failed_checks" ? score + 20 : score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
