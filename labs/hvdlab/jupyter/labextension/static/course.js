// The panel Course, and links in notebooks that open the learner's script next to the notebook. The server
// knows what is solved (hvdlab/jupyter/server.py).

import { Panel } from "./panel.js";

const REFRESH_MS = 500; // after the last cell that was run, or the last button that was pressed

export function makePlugin(lab) {
  return {
    id: "hvdlab-course:plugin",
    description: "Shows the labs and the learner's progress, and opens notebooks and scripts at a place.",
    autoStart: true,
    requires: [lab.docmanager.IDocumentManager, lab.notebook.INotebookTracker],
    optional: [lab.application.ILayoutRestorer],
    activate,
  };

  function activate(app, documents, notebooks, restorer) {
    const settings = app.serviceManager.serverSettings;
    const panel = new Panel({ open: openExercise });
    const side = new lab.widgets.Widget({ node: panel.node });
    side.id = "hvdlab-course";
    side.title.icon = lab.ui.listIcon;
    side.title.caption = "Course";
    app.shell.add(side, "left", { rank: 50 });
    restorer?.add(side, side.id);
    // In a new workspace JupyterLab shows the files, and after that this shows the panel. Later JupyterLab restores
    // what the learner has left open.
    app.restored.then(async () => {
      const layout = await app.shell.restored;
      if (layout?.fresh) setTimeout(() => app.shell.activateById(side.id));
    });

    async function refresh() {
      const address = lab.coreutils.URLExt.join(settings.baseUrl, "hvdlab/course");
      try {
        const response = await lab.services.ServerConnection.makeRequest(address, {}, settings);
        const answer = await response.json().catch(() => ({}));
        if (!response.ok) throw new Error(answer.message ?? `The answer of the server: ${response.status}.`);
        panel.show(answer);
      } catch (error) {
        panel.say(error.message);
      }
    }

    let timer;
    function refreshSoon() {
      clearTimeout(timer);
      timer = setTimeout(refresh, REFRESH_MS);
    }
    lab.notebook.NotebookActions.executed.connect(refreshSoon);
    document.addEventListener("click", ({ target }) => target.closest?.(".jupyter-button") && refreshSoon());
    app.restored.then(refresh);

    // Open the notebook of an exercise at the heading of the exercise.
    async function openExercise({ notebook, heading }) {
      const widget = documents.openOrReveal(notebook);
      if (!widget) return panel.say(`There is no ${notebook} here: restart JupyterLab, which copies it.`);
      panel.say("");
      await widget.context.ready;
      await widget.revealed;
      const { content } = widget;
      const cells = Array.from(content.model.cells);
      const lines = (cell) => cell.sharedModel.getSource().split("\n");
      const index = cells.findIndex(
        (cell) => cell.type === "markdown" && lines(cell).some((line) => line.replace(/^#+ /, "") === heading),
      );
      if (index < 0) return;
      content.activeCellIndex = index;
      await content.scrollToItem(index, "start");
      (await rendered(content.widgets[index].node, heading)).scrollIntoView();
    }

    // Return the heading of a cell, as soon as the cell is rendered.
    function rendered(node, heading) {
      const find = () => [...node.querySelectorAll("h1, h2, h3, h4")].find((e) => e.textContent.startsWith(heading));
      return new Promise((found) => {
        const look = () => find() && (observer.disconnect(), found(find()));
        const observer = new MutationObserver(look);
        observer.observe(node, { childList: true, subtree: true });
        look();
      });
    }

    // A click on a link to a file opens the file in place of the notebook. A link of a check opens it next to the
    // notebook instead. This listener runs before that of JupyterLab, which has replaced the address of the link by
    // the address from which the file can be downloaded.
    document.addEventListener("click", openScript, true);
    const files = new URL(lab.coreutils.URLExt.join(settings.baseUrl, "files/")).href;

    function openScript(event) {
      const link = event.target.closest?.("a.hvdlab-script");
      if (!link?.href.startsWith(files)) return;
      event.preventDefault();
      event.stopPropagation();
      const path = decodeURIComponent(new URL(link.href).pathname.slice(new URL(files).pathname.length));
      const beside = { mode: "split-right", ref: notebooks.currentWidget?.id };
      const widget = documents.openOrReveal(path, "Editor", undefined, beside);
      if (link.hash) widget?.setFragment(link.hash);
    }
  }
}
