// One teardown: its live sections, why it is blocked, the objects of a step, and what may be done.

import { ages } from "./ages.js";
import { confirmed } from "./dialogs.js";
import { setQuery } from "./filters.js";
import { follow, update } from "./live.js";
import { answered, leaving, show } from "./shell.js";

export function teardown(name) {
  show("teardown");
  const live = document.getElementById("live");
  const [why, actions, objects] = ["why", "actions", "objects"].map((id) => document.getElementById(id));
  const signal = leaving.signal;
  const path = `/api/teardowns/${encodeURIComponent(name)}`;
  let explained = "";
  let offered = "";
  let step = new URLSearchParams(location.search).get("step") || "";

  async function explain(signature) {
    if (signature === explained) return;
    explained = signature;
    if (!signature) {
      why.hidden = true;
      why.replaceChildren();
      return;
    }
    const html = await answered(`${path}/why`, signal);
    if (html === null || explained !== signature) return;
    why.replaceChildren(html);
    why.hidden = false;
    ages(why);
  }

  follow(path, (change) => {
    update(live, change);
    const heading = live.querySelector("h1");
    if (heading) document.title = `${heading.textContent.replace(/\s+/g, " ").trim()} · Unwind`;
    const blockers = live.querySelector('[data-key="blockers"]');
    const above = live.querySelector('[data-key="picture"]') || blockers;
    if (above && above.nextElementSibling !== why) above.after(why);
    explain(blockers?.dataset.signature || "");
    const head = live.querySelector('[data-key="head"]');
    if (head && head.nextElementSibling !== actions) head.after(actions);
    offer(head?.dataset.action || "");
    const steps = live.querySelector('[data-key="steps"]');
    if (!steps) objects.hidden = true;
    else if (steps.nextElementSibling !== objects) steps.after(objects);
    if (step && change.parts.steps) list();
    mark();
  });

  // What may be done: asked once for each state, and not at each object that is gone.
  async function offer(action) {
    if (action === offered) return;
    offered = action;
    const html = action ? await answered(`${path}/actions`, signal) : "";
    if (html === null || offered !== action) return;
    actions.replaceChildren(html);
    actions.hidden = !actions.childElementCount;
  }
  actions.addEventListener("click", (event) => {
    const button = event.target.closest("[data-action]");
    if (button) confirmed(path, button.dataset.action, signal);
  });

  // The objects of one step. Which one is in the address, so that a reload keeps it.
  function mark() {
    for (const button of live.querySelectorAll("[data-step]")) {
      button.setAttribute("aria-expanded", String(button.dataset.step === step));
    }
  }
  async function list() {
    const asked = step;
    if (!step) {
      objects.hidden = true;
      return;
    }
    const html = await answered(`${path}/objects?${new URLSearchParams({ step })}`, signal);
    if (html === null || step !== asked) return;
    const scrolled = objects.querySelector(".scroll")?.scrollTop;
    objects.replaceChildren(html);
    objects.hidden = false;
    if (scrolled) objects.querySelector(".scroll")?.scrollTo(0, scrolled);
  }
  live.addEventListener("click", (event) => {
    const button = event.target.closest("[data-step]");
    if (!button) return;
    step = step === button.dataset.step ? "" : button.dataset.step;
    setQuery("step", step);
    mark();
    list();
  });
}
