// The program of the dashboard: which page an address shows, and what every page has. All text from a cluster was escaped
// by the server's templates; nothing here builds markup.

import { fleet } from "./fleet.js";
import { ledger } from "./ledger.js";
import { plan, stuck } from "./questions.js";
import { openSession } from "./session.js";
import { connection, leave, lock, main, trouble } from "./shell.js";
import { teardown } from "./teardown.js";

const ROUTES = [
  [/^\/$/, "Teardowns", fleet],
  [/^\/teardowns\/([^/]+)$/, "Teardown", teardown],
  [/^\/stuck$/, "Stuck", stuck],
  [/^\/plan$/, "Plan", plan],
  [/^\/ledger$/, "Ledger", ledger],
];

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

if (await openSession().catch(() => false)) go(false);
else lock("This tab has no session.");
