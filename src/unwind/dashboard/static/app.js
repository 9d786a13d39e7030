// The pages of the dashboard. All text from a cluster was escaped by the server's templates; nothing here builds markup.

const main = document.getElementById("main");
const connection = document.getElementById("connection");
const trouble = document.getElementById("trouble");
const policy = window.trustedTypes
  ? window.trustedTypes.createPolicy("unwind", { createHTML: (html) => html })
  : { createHTML: (html) => html };

// The session: in sessionStorage, which belongs to this origin and tab, so that a reload keeps it.

const KEY = "unwind-session";
const channel = new BroadcastChannel("unwind-session");

// Another tab of this origin may ask for it: a link that was opened in a new tab works.
channel.onmessage = (event) => {
  const session = sessionStorage.getItem(KEY);
  if (event.data === "session?" && session) channel.postMessage({ session });
};

function askOtherTabs() {
  return new Promise((resolve) => {
    const asking = new BroadcastChannel("unwind-session");
    const done = (session) => { asking.close(); resolve(session); };
    asking.onmessage = (event) => { if (event.data && event.data.session) done(event.data.session); };
    asking.postMessage("session?");
    setTimeout(() => done(""), 300);
  });
}

async function openSession() {
  const address = new URL(location.href);
  const token = address.searchParams.get("token");
  if (token !== null) {
    address.searchParams.delete("token");
    history.replaceState(null, "", address);
    const answer = await fetch("/api/session", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ token }),
    });
    if (answer.ok) {
      sessionStorage.setItem(KEY, (await answer.json()).session);
      return true;
    }
  }
  if (sessionStorage.getItem(KEY)) return true;
  const shared = await askOtherTabs();
  if (shared) sessionStorage.setItem(KEY, shared);
  return Boolean(shared);
}

function ask(path, options = {}) {
  const headers = { ...options.headers, "X-Unwind-Session": sessionStorage.getItem(KEY) || "" };
  return fetch(path, { ...options, headers, cache: "no-store" });
}

function lock(reason) {
  leave();
  show("locked");
  document.getElementById("locked").textContent = reason;
  connection.textContent = "";
  connection.className = "";
}

// Pages

const ROUTES = [
  [/^\/$/, "Teardowns", fleet],
  [/^\/teardowns\/([^/]+)$/, "Teardown", teardown],
  [/^\/stuck$/, "Stuck", stuck],
  [/^\/plan$/, "Plan", plan],
  [/^\/ledger$/, "Ledger", ledger],
];
let leaving = new AbortController();

function leave() {
  leaving.abort();
  leaving = new AbortController();
}

function show(name) {
  main.replaceChildren(document.getElementById(`page-${name}`).content.cloneNode(true));
}

function go(focus) {
  leave();
  trouble.hidden = true;
  connection.textContent = "";
  connection.className = "";
  for (const link of document.querySelectorAll("header nav a")) {
    const here = link.pathname === location.pathname || (link.pathname === "/" && location.pathname.startsWith("/teardowns/"));
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  for (const [path, title, page] of ROUTES) {
    const found = location.pathname.match(path);
    if (found) {
      document.title = `${title} · Unwind`;
      page(...found.slice(1).map(decodeURIComponent));
      if (focus) main.focus();
      return;
    }
  }
  history.replaceState(null, "", "/");
  go(focus);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-link]");
  if (link && event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey) {
    event.preventDefault();
    history.pushState(null, "", link.href);
    go(true);
    window.scrollTo(0, 0);
    return;
  }
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
});
window.addEventListener("popstate", () => go(true));

async function copy(button) {
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code);
    button.textContent = "Press Ctrl-C";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

function markup(html) {
  const template = document.createElement("template");
  template.innerHTML = policy.createHTML(html);
  return template.content;
}

// Live pages: server-sent events, read with fetch because an EventSource cannot send a header.

async function follow(path, handle) {
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
  trouble.textContent = message ? `The cluster cannot be followed, this page may be out of date: ${message}` : "";
}

/** Replace the parts that changed, and put all parts into their order. Others keep focus and selection. */
function update(container, { order, parts }) {
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

// Filters: their values are in the address, so that a reload keeps them.

function filters(form, apply) {
  const fields = [...form.elements].filter((field) => field.name);
  // The values after a reset are known after this event.
  form.addEventListener("reset", () => setTimeout(() => form.dispatchEvent(new Event("input"))));
  const given = new URLSearchParams(location.search);
  for (const field of fields) {
    if (!given.has(field.name)) continue;
    if (field.type === "checkbox") field.checked = given.get(field.name) === field.value;
    else {
      if (field.tagName === "SELECT" && ![...field.options].some((option) => option.value === given.get(field.name))) {
        field.add(new Option(given.get(field.name), given.get(field.name)));
      }
      field.value = given.get(field.name);
    }
  }
  form.addEventListener("input", () => {
    const address = new URL(location.href);
    for (const field of fields) {
      const value = field.type === "checkbox" ? (field.checked ? field.value : "false") : field.value;
      if (value) address.searchParams.set(field.name, value);
      else address.searchParams.delete(field.name);
    }
    history.replaceState(null, "", address);
    apply();
  });
}

function matches(element, words) {
  const text = element.dataset.search || "";
  return words.every((word) => text.includes(word));
}

function words(field) {
  return field.value.toLowerCase().split(/\s+/).filter(Boolean);
}

/** Offer every value of the rows, with its number. A value that was chosen stays, also if no row has it. */
function choices(select, values) {
  const counts = new Map();
  for (const value of values) if (value) counts.set(value, (counts.get(value) || 0) + 1);
  const known = new Map([...select.options].slice(1).map((option) => [option.value, option]));
  for (const [value, option] of known) {
    if (!counts.has(value) && value !== select.value) option.remove();
  }
  for (const value of [...counts.keys()].sort()) {
    const option = known.get(value) || select.appendChild(new Option(value, value));
    const text = `${value} (${counts.get(value)})`;
    if (option.text !== text) option.text = text;
  }
}

/** As a selector of kubectl: key, !key, key=value and key!=value, separated by commas; all must match. */
function labelled(text, labels) {
  const found = new Set(labels.split(" "));
  const keys = new Set([...found].map((label) => label.split("=")[0]));
  return text.split(",").map((part) => part.trim().replace(/\s*(!?=)=?\s*/, "$1")).filter(Boolean).every((part) => {
    if (part.includes("!=")) return !found.has(part.replace("!=", "="));
    if (part.includes("=")) return found.has(part);
    return part.startsWith("!") ? !keys.has(part.slice(1)) : keys.has(part);
  });
}

// The pages

function fleet() {
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
    empty.textContent = rows.children.length ? "No teardown matches." : "No teardowns.";
  }

  for (const tile of tiles) {
    tile.addEventListener("click", () => {
      state = state === tile.dataset.tile ? "" : tile.dataset.tile;
      const address = new URL(location.href);
      if (state) address.searchParams.set("state", state);
      else address.searchParams.delete("state");
      history.replaceState(null, "", address);
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

function teardown(name) {
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
    const address = new URL(location.href);
    if (step) address.searchParams.set("step", step);
    else address.searchParams.delete("step");
    history.replaceState(null, "", address);
    mark();
    list();
  });
}

// Release and cancel: what would be left is shown first, and the answer says what was requested.

const dialog = document.getElementById("dialog");
const content = document.getElementById("dialog-content");
dialog.addEventListener("click", (event) => { if (event.target.closest("[data-close]")) dialog.close(); });

async function confirmed(path, action, signal) {
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

function line(style, text, role) {
  const made = document.createElement("p");
  made.className = style;
  made.textContent = text;
  if (role) made.setAttribute("role", role);
  return made;
}

function closing() {
  const button = document.createElement("button");
  button.type = "button";
  button.dataset.close = "";
  button.textContent = "Close";
  return button;
}

/** The answer as markup, or the error as text; null if the page was left. */
async function answered(path, signal) {
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

function failure(message) {
  return line("failure", message, "alert");
}

async function load(path, place, then = () => {}) {
  const signal = leaving.signal;
  place.setAttribute("aria-busy", "true");
  const html = await answered(path, signal);
  if (html === null) return;
  place.removeAttribute("aria-busy");
  place.replaceChildren(html);
  ages(place);
  then();
}

function searchable(form, place, names = []) {
  return () => {
    const wanted = words(form.q);
    const items = [...place.querySelectorAll("[data-filter]")];
    for (const item of items) {
      item.hidden = !matches(item, wanted) || names.some((name) => form[name].value && item.dataset[name] !== form[name].value);
    }
    const count = document.getElementById("count");
    const shown = items.filter((item) => !item.hidden).length;
    if (count) count.textContent = shown < items.length ? `${shown} of ${items.length} entries` : "";
  };
}

function stuck() {
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

function plan() {
  show("plan");
  const form = document.getElementById("ask");
  const place = document.getElementById("answer");
  const look = () => load(`/api/plan?${new URLSearchParams(new FormData(form))}`, place);
  filters(form, () => {});
  form.addEventListener("submit", (event) => { event.preventDefault(); look(); });
  if (form.target.value) look();
  else form.target.focus();
}

function ledger() {
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

// Ages count on by themselves: as kubectl writes them.

function span(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "m"]]) {
    if (whole >= 2 * size) return `${Math.floor(whole / size)}${unit}`;
  }
  return `${whole}s`;
}

function ages(root) {
  const now = Date.now();
  for (const time of root.querySelectorAll("time[data-age]")) {
    const text = span((now - Date.parse(time.dateTime)) / 1000);
    if (time.textContent !== text) time.textContent = text;
    if (!time.title) time.title = new Date(time.dateTime).toLocaleString();
  }
}
setInterval(() => ages(document), 1000);

if (await openSession().catch(() => false)) go(false);
else lock("This tab has no session.");
