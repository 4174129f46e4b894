// Draw the charts of the gallery when they come into view, show a text at the focus of the keyboard, and filter by topic.
"use strict";

async function draw(place) {
  const { rows, spec } = GALLERY.charts[place.id];
  const legend = { ...GALLERY.config.legend, columns: Math.max(1, Math.floor(place.clientWidth / 190)) };
  await vegaEmbed(place, { ...spec, data: GALLERY.tables[rows] },
    { actions: false, renderer: "svg", config: { ...GALLERY.config, legend }, tooltip: { theme: "course" } });
  const reachable = () => {
    for (const point of place.querySelectorAll(".mark-symbol.role-mark path[aria-label]")) point.setAttribute("tabindex", "0");
  };
  reachable();
  new MutationObserver(reachable).observe(place, { childList: true, subtree: true }); // after another choice
}

// A point that has the focus shows what it shows when the mouse is on it.
function point(event, kind) {
  const mark = event.target.closest?.(".mark-symbol.role-mark path");
  if (!mark) return;
  const box = mark.getBoundingClientRect();
  const at = { bubbles: true, clientX: box.x + box.width / 2, clientY: box.y + box.height / 2 };
  mark.dispatchEvent(new PointerEvent(kind, at));
}
addEventListener("focusin", (event) => point(event, "pointermove"));
addEventListener("focusout", (event) => point(event, "pointerout"));

const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    seen.unobserve(target);
    draw(target);
  }
}, { rootMargin: "400px" });
for (const place of document.querySelectorAll(".chart")) seen.observe(place);

for (const button of document.querySelectorAll(".topics button")) {
  button.addEventListener("click", () => {
    for (const each of document.querySelectorAll(".topics button")) each.setAttribute("aria-pressed", each === button);
    for (const claim of document.querySelectorAll(".claim")) {
      claim.hidden = button.dataset.topic && !claim.classList.contains(button.dataset.topic);
    }
  });
}
