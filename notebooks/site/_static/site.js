// Calculators and players are pages in a frame. They follow the theme, and an address has the inputs of its calculator.
{
  const theme = document.documentElement.dataset;
  const tell = (frame) => {
    const message = { dark: theme.theme === "dark", whole: frame.classList.contains("whole-page") };
    frame.contentWindow.postMessage(message, "*");
  };
  addEventListener("message", ({ source, data }) => {
    const frame = [...document.querySelectorAll("iframe")].find((each) => each.contentWindow === source);
    if (frame && data.ready) tell(frame);
    if (frame?.classList.contains("whole-page") && typeof data.fragment === "string" && data.fragment) {
      history.replaceState(null, "", data.fragment);
    }
  });
  new MutationObserver(() => document.querySelectorAll("iframe").forEach(tell))
    .observe(document.documentElement, { attributeFilter: ["data-theme"] });
  document.addEventListener("DOMContentLoaded", () => {
    const frame = document.querySelector("iframe.whole-page");
    if (frame && location.hash) frame.src += location.hash;
  });
}

document.addEventListener("DOMContentLoaded", () => {
  // The theme's buttons that open a section of the navigation have no name that a screen reader could say.
  for (const button of document.querySelectorAll(".toctree-toggle")) {
    button.parentElement.setAttribute("aria-label", "Show the pages of this section");
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
