// The frame around every page: its content, the state of the connection, and what ends when a page is left.

import { failure, markup } from "./markup.js";
import { ask } from "./session.js";
import { ages } from "./ages.js";

export const main = document.getElementById("main");
export const connection = document.getElementById("connection");
export const trouble = document.getElementById("trouble");

export let leaving = new AbortController();

export function leave() {
  leaving.abort();
  leaving = new AbortController();
}

export function show(name) {
  main.replaceChildren(document.getElementById(`page-${name}`).content.cloneNode(true));
}

export function lock(reason) {
  leave();
  show("locked");
  document.getElementById("locked").textContent = reason;
  connection.textContent = "";
  connection.className = "";
}

/** The answer as markup, or the error as text; null if the page was left. */
export async function answered(path, signal) {
  try {
    const answer = await ask(path, { signal });
    if (answer.status === 401) { lock("The session has ended."); return null; }
    if (answer.ok) return markup(await answer.text());
    const told = await answer.json().catch(() => ({ error: "the dashboard has failed; see its output in the terminal" }));
    return failure(told.error);
  } catch {
    return signal.aborted ? null : failure("the dashboard does not answer; is `unwind dashboard` still running?");
  }
}

export async function load(path, place, then = () => {}) {
  const signal = leaving.signal;
  place.setAttribute("aria-busy", "true");
  const html = await answered(path, signal);
  if (html === null) return;
  place.removeAttribute("aria-busy");
  place.replaceChildren(html);
  ages(place);
  then();
}
