// The one place where text becomes markup. All text from a cluster was escaped by the server's templates.

const policy = window.trustedTypes
  ? window.trustedTypes.createPolicy("unwind", { createHTML: (html) => html })
  : { createHTML: (html) => html };

export function markup(html) {
  const template = document.createElement("template");
  template.innerHTML = policy.createHTML(html);
  return template.content;
}

export function line(style, text, role) {
  const made = document.createElement("p");
  made.className = style;
  made.textContent = text;
  if (role) made.setAttribute("role", role);
  return made;
}

export function closing() {
  const button = document.createElement("button");
  button.type = "button";
  button.dataset.close = "";
  button.textContent = "Close";
  return button;
}

export function failure(message) {
  return line("failure", message, "alert");
}
