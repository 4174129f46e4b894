// The button Hand in: sends the script on disk to the service of the course, by the Jupyter server, which reads
// the file and has the token (hvdgrade/jupyter/hand_in.py).

const LONGEST_PAUSE = 30; // seconds between two attempts

// `save(path)` writes what the editor has to disk. `there` says whether a service is configured; `known` is
// settled once that is known.
export function makeHandIn(lab, settings, address, panel, save) {
  let busy = false;

  async function ask(body) {
    const request = { method: body ? "POST" : "GET", body: body && JSON.stringify(body) };
    const response = await lab.services.ServerConnection.makeRequest(address, request, settings);
    const answer = await response.json().catch(() => ({}));
    if (response.ok) return answer;
    const again = response.status >= 502; // 503: no answer of the service; 502, 504: of a proxy
    const why = answer.message ?? `The answer of the server: ${response.status}.`;
    throw Object.assign(new Error(why), { final: !again });
  }

  // Send until there is an answer. The key says that it is the same press.
  async function send(path) {
    const key = crypto.getRandomValues(new Uint32Array(4)).join("-");
    for (let pause = 1; ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
      try {
        return await ask({ path, key });
      } catch (error) {
        if (error.final) throw error;
        panel.sayHanded(`No answer yet; the script is sent again. ${error.message}`);
        await new Promise((done) => setTimeout(done, 1000 * pause));
      }
    }
  }

  async function handIn(path) {
    if (busy) return; // the second click of two
    busy = true;
    panel.sayHanded(`Handing in ${path} …`);
    try {
      await save(path);
      const status = await send(path);
      panel.sayHanded(`Handed in: ${path} is submission ${status.number}. ${placeOf(status)}`, status.link);
    } catch (error) {
      panel.sayHanded(`Not handed in: ${error.message}`);
    } finally {
      busy = false;
    }
  }

  const service = { there: false, handIn };
  service.known = ask()
    .then(({ page }) => (service.there = Boolean(page)))
    .catch(() => {}); // the server has no such route: an older one, or one that is logged out
  return service;
}

function placeOf({ state, place, estimate_s, workers }) {
  if (state !== "queued" || !place) return "";
  const wait = workers
    ? estimate_s && ` Its result is expected in about ${Math.ceil(estimate_s / 60)} min.`
    : " No worker is online.";
  return `It has place ${place} in the queue.${wait || ""}`;
}
