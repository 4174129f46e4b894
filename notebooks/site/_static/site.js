// The theme's buttons that open a section of the navigation have no name that a screen reader could say.
document.addEventListener("DOMContentLoaded", () => {
  for (const button of document.querySelectorAll(".toctree-toggle")) {
    button.parentElement.setAttribute("aria-label", "Show the pages of this section");
  }
});
