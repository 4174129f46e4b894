// The door through which JupyterLab loads this extension: what a bundler would write, by hand.
//
// JupyterLab runs this file, hands `init` the packages that it shares (name -> version -> {get}),
// and asks `get` for the module "./extension". Nothing is built and nothing is bundled.
(() => {
  const here = document.currentScript.src;
  let packages;

  async function shared(name) {
    const versions = Object.values(packages[name]);
    const chosen = versions.find((version) => version.loaded) ?? versions[0]; // JupyterLab's own
    return (await chosen.get())();
  }

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB["hvdlab-course"] = {
    init(scope) {
      packages = scope;
    },
    async get() {
      const { makePlugin } = await import(new URL("course.js", here));
      const lab = {
        application: await shared("@jupyterlab/application"),
        coreutils: await shared("@jupyterlab/coreutils"),
        docmanager: await shared("@jupyterlab/docmanager"),
        notebook: await shared("@jupyterlab/notebook"),
        services: await shared("@jupyterlab/services"),
        ui: await shared("@jupyterlab/ui-components"),
        widgets: await shared("@lumino/widgets"),
      };
      return () => ({ __esModule: true, default: makePlugin(lab) });
    },
  };
})();
