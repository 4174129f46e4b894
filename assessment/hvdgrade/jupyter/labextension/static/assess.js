// The buttons Assess and Hand in on the editor of assessment.py and on lab 8, and a panel that shows the
// grading. The server does the work and knows the state (hvdgrade/jupyter/server.py), so a page that is
// loaded anew finds everything as it was.

import { makeHandIn } from "./hand_in.js";
import { Panel } from "./panel.js";

const COMMAND = "hvdgrade:assess";
const HAND_IN = "hvdgrade:hand-in";
const COMMAND_SELECTED = "hvdgrade:assess-selected";

export function makePlugin(lab) {
  const { PathExt, URLExt } = lab.coreutils;

  return {
    id: "hvdgrade-assess:plugin",
    description: "Grades a script as an instructor would, and shows how.",
    autoStart: true,
    requires: [lab.docmanager.IDocumentManager],
    optional: [
      lab.apputils.ICommandPalette,
      lab.application.ILayoutRestorer,
      lab.filebrowser.IFileBrowserFactory,
    ],
    activate,
  };

  function activate(app, documents, palette, restorer, browsers) {
    const settings = app.serviceManager.serverSettings;
    const address = (name) => URLExt.join(settings.baseUrl, "hvdgrade", name);

    // --- the server ------------------------------------------------------------------------------

    async function ask(method, body) {
      const request = { method, body: body && JSON.stringify(body) };
      const response = await lab.services.ServerConnection.makeRequest(
        address("assess"),
        request,
        settings,
      );
      const refused = [401, 403].includes(response.status);
      // A proxy in between answers with a page of its own.
      const answer = await response.json().catch(() => ({}));
      // 409 is the state too: that of the grading which is running.
      if ((response.ok || response.status === 409) && answer.state) return answer;
      const why = refused
        ? `The server refuses this (${response.status}). If you were logged out, load this page anew.`
        : (answer.message ?? `Its answer: ${response.status} ${response.statusText}.`);
      throw Object.assign(new Error(why), { refused });
    }

    // --- the panel -------------------------------------------------------------------------------

    const panel = new Panel({
      assess: (path) => assess(path),
      cancel: () => show(ask("DELETE")),
      open: openReport,
    });
    const side = new lab.widgets.Widget({ node: panel.node });
    side.id = "hvdgrade-assess";
    side.title.icon = lab.ui.checkIcon;
    side.title.caption = "Assess";
    app.shell.add(side, "right", { rank: 600 });
    restorer?.add(side, side.id);

    let timer;
    let starting = false; // asked for, and not yet answered
    let lost = false; // the server, in the middle of a grading

    // Show what the server answers, and ask again while a grading runs.
    async function show(answer) {
      try {
        const status = await answer;
        const found = lost;
        lost = false;
        panel.show(status);
        if (found && !panel.running && status.state === "idle")
          panel.say("The server was started anew, and with the old one the grading has ended: press Assess again.");
        else if (found && panel.running) panel.say("");
      } catch (error) {
        lost = panel.running;
        panel.say(lost && !error.refused ? `No news of the grading; asking again. ${error.message}` : error.message);
        if (error.refused) return clearTimeout(timer);
      }
      clearTimeout(timer);
      if (panel.running) timer = setTimeout(() => show(ask("GET")), 1000);
    }

    async function assess(path) {
      app.shell.activateById(side.id);
      if (starting) return; // the second click of two
      if (panel.running) return panel.mention("Another grading is running: wait for it, or cancel it first.");
      panel.prepare(path);
      starting = true;
      try {
        await show(save(path).then(() => ask("POST", panel.request())));
      } finally {
        starting = false;
      }
    }

    // What is graded or handed in is what is on disk: write what the editor has first.
    async function save(path) {
      const editor = documents.findWidget(path, null);
      const context = editor && documents.contextForWidget(editor);
      if (!context?.model.dirty) return;
      await context.save();
      if (context.model.dirty) throw new Error(`${path} could not be saved, so nothing was sent.`);
    }

    const service = makeHandIn(lab, settings, address("handin"), panel, save);

    function handIn(path) {
      app.shell.activateById(side.id);
      service.handIn(path);
    }

    let report;

    function openReport(status) {
      report?.dispose();
      const frame = new lab.ui.IFrame(); // without any permission: no script, no origin
      frame.url = `${address("report")}?${status.number}`;
      report = new lab.apputils.MainAreaWidget({ content: frame });
      report.id = "hvdgrade-report";
      report.title.label = `Report: ${PathExt.basename(status.path)}`;
      report.title.icon = lab.ui.checkIcon;
      report.title.closable = true;
      app.shell.add(report, "main");
      if (!report.isAttached) window.open(frame.url); // Notebook 7 shows one document a page
    }

    // --- the ways to it --------------------------------------------------------------------------

    // The script that a document stands for; lab 8 stands for the one next to it that its learner writes.
    function scriptOf(path = "") {
      if (path.endsWith(".py")) return path;
      if (!/^08_.*\.ipynb$/.test(PathExt.basename(path))) return null;
      const folder = PathExt.dirname(path).replace(/(^|\/)solutions$/, "");
      return PathExt.join(folder, "assessment.py");
    }

    const current = () => {
      const widget = app.shell.currentWidget;
      return scriptOf((widget && documents.contextForWidget(widget))?.localPath);
    };
    const selected = () => scriptOf(browsers?.tracker.currentWidget?.selectedItems().next().value?.path);

    app.commands.addCommand(COMMAND, {
      label: "Assess this script",
      caption: "Grade this script as an instructor would",
      icon: lab.ui.checkIcon,
      isEnabled: () => current() !== null,
      execute: () => assess(current()),
    });
    app.commands.addCommand(COMMAND_SELECTED, {
      label: "Assess this script",
      icon: lab.ui.checkIcon,
      isVisible: () => Boolean(selected()),
      execute: () => assess(selected()),
    });
    app.commands.addCommand(HAND_IN, {
      label: "Hand in this script",
      caption: "Send this script to the course",
      icon: lab.ui.fileUploadIcon,
      isVisible: () => service.there,
      isEnabled: () => service.there && current() !== null,
      execute: () => handIn(current()),
    });
    for (const command of [COMMAND, HAND_IN]) palette?.addItem({ command, category: "Assessment" });
    app.contextMenu.addItem({
      command: COMMAND_SELECTED,
      selector: '.jp-DirListing-item[data-file-type="python"]',
      rank: 4,
    });

    const extension = {
      createNew(widget, context) {
        const button = new lab.ui.ToolbarButton({
          label: "Assess",
          icon: lab.ui.checkIcon,
          tooltip: "Grade this script as an instructor would",
          onClick: () => assess(scriptOf(context.localPath)),
        });
        const second = new lab.ui.ToolbarButton({
          label: "Hand in",
          icon: lab.ui.fileUploadIcon,
          tooltip: "Send this script to the course",
          onClick: () => handIn(scriptOf(context.localPath)),
        });
        const fits = () => {
          const script = scriptOf(context.localPath);
          button.setHidden(!script?.endsWith("assessment.py"));
          second.setHidden(!service.there || !script?.endsWith("assessment.py"));
        };
        const { toolbar } = widget;
        for (const [name, item] of [["assess", button], ["hand-in", second]])
          if (!toolbar.insertBefore("spacer", name, item)) toolbar.addItem(name, item);
        service.known.then(fits);
        context.pathChanged.connect(fits);
        fits();
        return button;
      },
    };
    app.docRegistry.addWidgetExtension("Editor", extension);
    app.docRegistry.addWidgetExtension("Notebook", extension);

    // A grading may be running since before this page was loaded.
    app.restored.then(async () => {
      await show(ask("GET"));
      if (panel.running) app.shell.activateById(side.id);
    });
  }
}
