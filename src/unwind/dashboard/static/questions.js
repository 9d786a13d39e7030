// Pages that ask once: what is stuck, and what a deletion would remove.

import { filters, searchable } from "./filters.js";
import { load, show } from "./shell.js";

export function stuck() {
  show("stuck");
  const form = document.getElementById("ask");
  const place = document.getElementById("answer");
  const apply = searchable(form, place);
  const look = () => {
    const query = new URLSearchParams({ older: form.older.value, members: String(form.members.checked) });
    load(`/api/stuck?${query}`, place, apply);
  };
  filters(form, apply);
  form.addEventListener("submit", (event) => { event.preventDefault(); look(); });
  form.older.addEventListener("change", look);
  form.members.addEventListener("change", look);
  look();
}

export function plan() {
  show("plan");
  const form = document.getElementById("ask");
  const place = document.getElementById("answer");
  const look = () => load(`/api/plan?${new URLSearchParams(new FormData(form))}`, place);
  filters(form, () => {});
  form.addEventListener("submit", (event) => { event.preventDefault(); look(); });
  if (form.target.value) look();
  else form.target.focus();
}
