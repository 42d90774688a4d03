// Bodies of messages: text, JSON and bytes, and how to show them. Nothing here touches the page.

/** Bytes that are shown as hex; the rest is counted. */
const HEX_MAX = 4096;
/** Characters that are shown as text; the rest is counted. */
export const TEXT_MAX = 100_000;

/** The bytes of a message of the API. */
export function bytesOf(message) {
  if (message.body_base64 !== undefined) {
    return Uint8Array.from(atob(message.body_base64), (c) => c.charCodeAt(0));
  }
  const { body } = message;
  if (body === undefined) return new Uint8Array();
  return new TextEncoder().encode(typeof body === "string" ? body : JSON.stringify(body));
}

/** The text of a message, or undefined if its bytes are not text. */
export function textOf(message) {
  if (message.body_base64 === undefined) {
    const { body } = message;
    if (body === undefined) return "";
    return typeof body === "string" ? body : JSON.stringify(body);
  }
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytesOf(message));
  } catch {
    return undefined;
  }
}

/** JSON with indentation, or undefined if the text is no JSON object or list. */
export function prettyJson(text) {
  if (!/^\s*[[{]/.test(text) || text.length > TEXT_MAX) return undefined;
  try {
    const value = JSON.parse(text);
    // Numbers beyond the precision of JavaScript would be shown wrongly.
    const digits = text.match(/-?\d[\d.eE+-]{15,}/g);
    return digits ? undefined : JSON.stringify(value, null, 2);
  } catch {
    return undefined;
  }
}

/** Sixteen bytes a line: offset, hex, characters. */
export function hexDump(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_MAX); at += 16) {
    const line = [...bytes.subarray(at, at + 16)];
    const hex = line.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = line.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  if (bytes.length > HEX_MAX) lines.push(`… ${bytes.length - HEX_MAX} more bytes`);
  return lines.join("\n");
}

/** One line of a body for a list. */
export function preview(message, max = 140) {
  if (message.damaged) return "damaged on disk";
  const text = textOf(message);
  if (text === undefined) return `${bytesOf(message).length} bytes`;
  return text.slice(0, max).replace(/\s+/g, " ");
}
