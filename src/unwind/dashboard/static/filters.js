// Filters of lists: their values are in the address, so that a reload keeps them.

export function filters(form, apply) {
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
    for (const field of fields) {
      setQuery(field.name, field.type === "checkbox" ? (field.checked ? field.value : "false") : field.value);
    }
    apply();
  });
}

/** Set a value in the query of the address; an empty one removes it. */
export function setQuery(name, value) {
  const address = new URL(location.href);
  if (value) address.searchParams.set(name, value);
  else address.searchParams.delete(name);
  history.replaceState(null, "", address);
}

export function matches(element, words) {
  const text = element.dataset.search || "";
  return words.every((word) => text.includes(word));
}

export function words(field) {
  return field.value.toLowerCase().split(/\s+/).filter(Boolean);
}

/** Offer every value of the rows, with its number. A value that was chosen stays, also if no row has it. */
export function choices(select, values) {
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
export function labelled(text, labels) {
  const found = new Set(labels.split(" "));
  const keys = new Set([...found].map((label) => label.split("=")[0]));
  return text.split(",").map((part) => part.trim().replace(/\s*(!?=)=?\s*/, "$1")).filter(Boolean).every((part) => {
    if (part.includes("!=")) return !found.has(part.replace("!=", "="));
    if (part.includes("=")) return found.has(part);
    return part.startsWith("!") ? !keys.has(part.slice(1)) : keys.has(part);
  });
}

export function searchable(form, place, names = []) {
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
