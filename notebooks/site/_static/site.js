document.addEventListener("DOMContentLoaded", () => {
  // The theme's buttons that open a section of the navigation have no name that a screen reader could say.
  for (const button of document.querySelectorAll(".toctree-toggle")) {
    button.parentElement.setAttribute("aria-label", "Show the pages of this section");
  }
  // The address of a page with a calculator has its inputs, so that it can be shared.
  const frame = document.querySelector("iframe.whole-page");
  if (frame) {
    if (location.hash) frame.src += location.hash;
    addEventListener("message", ({ source, data }) => {
      if (source === frame.contentWindow && typeof data.fragment === "string" && data.fragment) {
        history.replaceState(null, "", data.fragment);
      }
    });
  }
  // Printed pages are black on white, and show what a click would open.
  const page = document.documentElement.dataset;
  addEventListener("beforeprint", () => {
    page.onScreen = page.theme;
    page.theme = "light";
    for (const hidden of document.querySelectorAll("details")) hidden.open = true;
  });
  addEventListener("afterprint", () => { page.theme = page.onScreen; });
});
