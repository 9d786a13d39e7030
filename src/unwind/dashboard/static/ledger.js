// What was left behind, and its export.

import { choices, filters, searchable } from "./filters.js";
import { failure } from "./markup.js";
import { ask } from "./session.js";
import { load, main, show } from "./shell.js";

export function ledger() {
  show("ledger");
  const form = main.querySelector("form");
  const place = document.getElementById("answer");
  const names = ["cluster", "by", "reason"];
  const apply = searchable(form, place, names);
  filters(form, apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const button of form.querySelectorAll("[data-export]")) {
    // What is exported is what is shown.
    button.addEventListener("click", () => download(button.dataset.export, new URLSearchParams(new FormData(form)), place));
  }
  load("/api/ledger", place, () => {
    const items = [...place.querySelectorAll("[data-filter]")];
    for (const name of names) choices(form[name], items.map((item) => item.dataset[name]));
    apply();
  });
}

async function download(form, query, place) {
  query.set("form", form);
  const answer = await ask(`/api/ledger?${query}`).catch(() => null);
  if (!answer || !answer.ok) {
    place.prepend(failure("the ledger could not be read"));
    return;
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = `unwind-ledger.${form}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
