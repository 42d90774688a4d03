// Numbers, times and sizes as text. Nothing here touches the page.

const grouped = new Intl.NumberFormat("en");

/** 12345 → "12,345" */
export const count = (n) => grouped.format(n ?? 0);

/** A number with its noun: "1 message", "2 messages". */
export const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

/** A rate per second, with two significant digits when it is small. */
export function rate(perSecond) {
  const n = perSecond ?? 0;
  if (n === 0) return "0";
  if (n < 0.01) return "<0.01";
  if (n < 10) return n.toFixed(n < 1 ? 2 : 1).replace(/\.?0+$/, "");
  return count(Math.round(n));
}

/** 1536 → "1.5 KiB" */
export function bytes(n) {
  if (!n) return "0 B";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const power = Math.min(Math.floor(Math.log2(n) / 10), units.length - 1);
  const value = n / 1024 ** power;
  return `${power === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[power]}`;
}

/** A duration in its two largest units: "2 h 5 min". */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const seconds = Math.floor(ms / 1000);
  const parts = [
    [Math.floor(seconds / 86400), "d"],
    [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [seconds % 60, "s"],
  ];
  const first = parts.findIndex(([value]) => value > 0);
  const shown = parts.slice(first, first + 2).filter(([value]) => value > 0);
  return shown.map(([value, unit]) => `${value} ${unit}`).join(" ");
}

/** Whole seconds and larger, for ages that change every second. */
export const age = (ms) => (ms < 1000 ? "now" : duration(ms));

const two = (n) => String(n).padStart(2, "0");

/** Local time with seconds; with the date unless it is today. */
export function time(ms, now = Date.now()) {
  if (!ms) return "–";
  const at = new Date(ms);
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  if (at.toDateString() === new Date(now).toDateString()) return clock;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock}`;
}

/** A text for a POSIX shell, quoted if necessary. */
export function shell(text) {
  const word = String(text);
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** A duration that a person typed, in milliseconds: "30s", "5 min", "2h", "1500ms". Undefined if it is none. */
export function parseDuration(text) {
  const match = /^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?\s*$/.exec(text);
  if (!match) return undefined;
  const unit = { ms: 1, s: 1e3, m: 6e4, min: 6e4, h: 36e5, d: 864e5 }[match[2] ?? "s"];
  return Math.round(Number(match[1]) * unit);
}
