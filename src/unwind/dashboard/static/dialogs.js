// Release and cancel: what would be left is shown first, and the answer says what was requested.

import { closing, failure, line } from "./markup.js";
import { ask } from "./session.js";
import { answered, lock } from "./shell.js";

const dialog = document.getElementById("dialog");
const content = document.getElementById("dialog-content");
dialog.addEventListener("click", (event) => { if (event.target.closest("[data-close]")) dialog.close(); });

export async function confirmed(path, action, signal) {
  content.replaceChildren(line("minor", "Reading…"));
  dialog.showModal();
  signal.addEventListener("abort", () => dialog.close(), { once: true });
  const html = await answered(`${path}/${action}`, signal);
  if (html === null) return;
  content.replaceChildren(html);
  const form = content.querySelector("form");
  if (!form) return content.append(closing());
  form.elements[0].focus();
  form.typed.addEventListener("input", () => {
    const fits = form.typed.value.trim() === form.dataset.expected;
    form.typed.setCustomValidity(fits ? "" : `Type ${form.dataset.expected} to confirm.`);
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    for (const button of form.querySelectorAll("button")) button.disabled = true;
    const sent = { confirmation: form.dataset.confirmation, typed: form.typed.value.trim(), reason: form.reason?.value || "" };
    const told = await requested(`${path}/${action}`, sent);
    const heading = document.getElementById("dialog-title");
    content.replaceChildren(...(heading ? [heading] : []), told, closing());
    content.querySelector("[data-close]").focus();
  });
}

async function requested(path, sent) {
  try {
    const answer = await ask(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(sent),
    });
    if (answer.status === 401) { dialog.close(); lock("The session has ended."); }
    const told = await answer.json();
    return answer.ok ? line("verdict", told.message, "status") : failure(told.error);
  } catch {
    return failure("the dashboard does not answer: it is not known whether this was requested; see the page of the teardown");
  }
}
