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

export async function openSession() {
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

export function ask(path, options = {}) {
  const headers = { ...options.headers, "X-Unwind-Session": sessionStorage.getItem(KEY) || "" };
  return fetch(path, { ...options, headers, cache: "no-store" });
}
