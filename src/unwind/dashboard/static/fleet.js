// All teardowns: held ones first, with filters.

import { choices, filters, labelled, matches, setQuery, words } from "./filters.js";
import { follow, update } from "./live.js";
import { main, show } from "./shell.js";

export function fleet() {
  show("fleet");
  const rows = document.getElementById("live");
  const form = main.querySelector("form");
  const tiles = [...main.querySelectorAll("[data-tile]")];
  let state = new URLSearchParams(location.search).get("state") || "";

  function apply() {
    const wanted = words(form.q);
    const counts = { held: 0, running: 0, finished: 0 };
    let shown = 0;
    for (const row of rows.children) {
      const it = row.dataset;
      const fits = matches(row, wanted)
        && (!form.cluster.value || it.cluster === form.cluster.value)
        && labelled(form.label.value, it.labels)
        && (!form.namespace.value || it.namespace === form.namespace.value)
        && (!form.cause.value || it.cause === form.cause.value);
      if (fits) counts[it.state] = (counts[it.state] || 0) + 1;
      row.hidden = !fits || Boolean(state && it.state !== state);
      shown += row.hidden ? 0 : 1;
    }
    for (const tile of tiles) {
      tile.firstElementChild.textContent = counts[tile.dataset.tile];
      tile.setAttribute("aria-pressed", String(tile.dataset.tile === state));
    }
    const count = document.getElementById("count");
    const told = shown < rows.children.length ? `${shown} of ${rows.children.length} teardowns` : "";
    if (count.textContent !== told) count.textContent = told;
    const empty = document.getElementById("empty");
    empty.hidden = shown > 0;
    empty.textContent = rows.children.length ? "No teardown matches." : "No teardowns. A deletion that Unwind carries out appears here, live.";
  }

  for (const tile of tiles) {
    tile.addEventListener("click", () => {
      state = state === tile.dataset.tile ? "" : tile.dataset.tile;
      setQuery("state", state);
      apply();
    });
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  filters(form, apply);
  follow("/api/fleet", (change) => {
    update(rows, change);
    for (const name of ["cluster", "namespace", "cause"]) {
      choices(form[name], [...rows.children].map((row) => row.dataset[name]));
    }
    apply();
  });
}
