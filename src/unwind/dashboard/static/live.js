// Live pages: server-sent events, read with fetch because an EventSource cannot send a header.

import { ages } from "./ages.js";
import { markup } from "./markup.js";
import { ask } from "./session.js";
import { connection, leaving, lock, trouble } from "./shell.js";

export async function follow(path, handle) {
  const signal = leaving.signal;
  let wait = 500;
  let attempt = new AbortController();
  // A browser opens six connections to a host, for all of its tabs: a hidden one gives its connection back.
  document.addEventListener("visibilitychange", () => { if (document.hidden) attempt.abort(); }, { signal });
  while (!signal.aborted) {
    await untilVisible(signal);
    attempt = new AbortController();
    try {
      const answer = await ask(path, { signal: AbortSignal.any([signal, attempt.signal]) });
      if (answer.status === 401) return lock("The session has ended.");
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      connection.textContent = "Live";
      connection.className = "live";
      for await (const [event, data] of events(answer.body)) {
        wait = 500;
        if (signal.aborted) return;
        if (event === "end") break;
        if (event === "trouble") showTrouble(data);
        if (event === "update") handle(data);
      }
    } catch {
      // The next attempt tells whether it is over.
    }
    if (signal.aborted) return;
    if (attempt.signal.aborted) continue;
    connection.textContent = "Not connected, trying again";
    connection.className = "lost";
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(wait * 2, 10000);
  }
}

async function untilVisible(signal) {
  while (document.hidden && !signal.aborted) {
    await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true, signal }));
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map((line) => {
        const at = line.indexOf(": ");
        return [line.slice(0, at), line.slice(at + 2)];
      }));
      if (fields.event) yield [fields.event, JSON.parse(fields.data)];
    }
  }
}

function showTrouble(message) {
  trouble.hidden = !message;
  connection.textContent = message ? "Not live" : "Live";
  connection.className = message ? "lost" : "live";
  trouble.textContent = message ? `The cluster cannot be followed, this page may be out of date: ${message}` : "";
}

/** Replace the parts that changed, and put all parts into their order. Others keep focus and selection. */
export function update(container, { order, parts }) {
  const keyed = [...container.children].filter((child) => child.dataset.key);
  const known = new Map(keyed.map((child) => [child.dataset.key, child]));
  for (const [key, html] of Object.entries(parts)) {
    const fresh = markup(html).firstElementChild;
    const old = known.get(key);
    if (old) {
      const focused = old.contains(document.activeElement) ? focusables(old).indexOf(document.activeElement) : -1;
      const scrolled = old.querySelector(".picture")?.scrollLeft;
      old.replaceWith(fresh);
      if (scrolled) fresh.querySelector(".picture")?.scrollTo(scrolled, 0);
      if (focused >= 0) focusables(fresh)[focused]?.focus();
    }
    known.set(key, fresh);
  }
  // Parts that are in their place are not touched: moving one would lose its focus.
  const next = (part) => { while (part && !part.dataset.key) part = part.nextElementSibling; return part; };
  let place = next(container.firstElementChild);
  for (const key of order) {
    const part = known.get(key);
    known.delete(key);
    if (part === place) place = next(place.nextElementSibling);
    else container.insertBefore(part, place);
  }
  for (const part of known.values()) part.remove();
  ages(container);
}

function focusables(element) {
  return [...element.querySelectorAll("a, button, summary, [tabindex]")];
}
