// Ages count on by themselves: as kubectl writes them.

function span(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "m"]]) {
    if (whole >= 2 * size) return `${Math.floor(whole / size)}${unit}`;
  }
  return `${whole}s`;
}

export function ages(root) {
  const now = Date.now();
  for (const time of root.querySelectorAll("time[data-age]")) {
    const text = span((now - Date.parse(time.dateTime)) / 1000);
    if (time.textContent !== text) time.textContent = text;
    if (!time.title) time.title = new Date(time.dateTime).toLocaleString();
  }
}
setInterval(() => ages(document), 1000);
