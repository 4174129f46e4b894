// Keeps a page current: when the server says "changed", fetch the page again and replace its live parts.
"use strict";

const parts = document.querySelectorAll("[data-live]");
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
document.cookie = `zone=${encodeURIComponent(zone)}; path=/; max-age=31536000; samesite=lax`;

async function refresh() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of parts) {
    const newer = page.getElementById(part.id);
    if (!newer) continue;
    const open = [...part.querySelectorAll("details")].map((each) => each.open);
    newer.querySelectorAll("details").forEach((each, i) => { each.open = open[i] ?? each.open; });
    if (newer.innerHTML === part.innerHTML) continue;
    const focus = [...part.querySelectorAll("a, summary")].indexOf(document.activeElement);
    part.replaceChildren(...newer.childNodes);
    part.querySelectorAll("a, summary")[focus]?.focus();
  }
}

function listen() {
  const stream = new EventSource(document.body.dataset.events);
  stream.onopen = stream.onmessage = () => refresh().catch(() => {});
  stream.onerror = () => { // a browser connects again by itself, but not after an answer with an error
    if (stream.readyState === EventSource.CLOSED) setTimeout(() => { refresh().catch(() => {}); listen(); }, 15000);
  };
}

if (parts.length) listen();
