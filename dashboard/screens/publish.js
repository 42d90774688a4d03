// Sends messages to a queue by a form, and shows the same as commands.

import { path, post } from "../api.js";
import { codeBlock, notice, openDialog } from "../components.js";
import { parseDuration, plural, shell } from "../format.js";
import { html } from "../html.js";

/** Messages of one request. */
const STEP = 500;
const COUNT_MAX = 100_000;

/** The fields that stay filled while the page is open. */
const draft = { body: "", type: "", session: "", id: "", dedup: "", delay: "", ttl: "", priority: "", properties: "", count: "1" };

/** The message of a draft; throws an error for people. */
export function messageOf(fields) {
  const message = { body: fields.body };
  if (fields.type) message.content_type = fields.type;
  if (fields.session) message.session = fields.session;
  if (fields.id) message.id = fields.id;
  if (fields.dedup) message.dedup_id = fields.dedup;
  for (const [field, name, label] of [["delay", "delay_ms", "Delay"], ["ttl", "ttl_ms", "Expires after"]]) {
    if (!fields[field]) continue;
    const ms = parseDuration(fields[field]);
    if (ms === undefined) throw new Error(`${label}: write a duration such as 30s, 5min or 2h`);
    message[name] = ms;
  }
  if (fields.priority) message.priority = Number(fields.priority);
  const properties = propertiesOf(fields.properties);
  if (Object.keys(properties).length) message.properties = properties;
  return message;
}

/** Lines `name=value`: numbers, `true` and `false` have their type, everything else is text. */
export function propertiesOf(text) {
  const properties = {};
  for (const line of text.split("\n").filter((one) => one.trim())) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`Properties: write one name=value on each line, not “${line.trim()}”`);
    const value = line.slice(at + 1).trim();
    const isPlain = value === "true" || value === "false" || /^-?(0|[1-9]\d{0,14})(\.\d{1,10})?$/.test(value);
    properties[line.slice(0, at).trim()] = isPlain ? JSON.parse(value) : value;
  }
  return properties;
}

/** The message as a request with curl. */
export function asCurl(origin, queue, message, open) {
  const url = `${origin}/api/v1/queues/${encodeURIComponent(queue)}/messages/batch`;
  return `curl${open ? "" : " -u NAME"} --json ${shell(JSON.stringify({ messages: [message] }))} ${shell(url)}`;
}

/** The message as a command. */
export function asCommand(queue, message, count) {
  const flags = [
    ["--session", message.session],
    ["--id", message.id],
    ["--dedup-id", message.dedup_id],
    ["--delay", message.delay_ms && `${message.delay_ms}ms`],
    ["--ttl", message.ttl_ms && `${message.ttl_ms}ms`],
    ["--priority", message.priority],
    ["--content-type", message.content_type],
    ["--count", count > 1 ? count : undefined],
  ].filter(([, value]) => value !== undefined && value !== "");
  const properties = Object.entries(message.properties ?? {}).map(([name, value]) => [
    "--prop",
    typeof value === "string" ? `${name}=${value}` : `${name}:=${JSON.stringify(value)}`,
  ]);
  const words = [...flags, ...properties].flatMap(([flag, value]) => [flag, shell(value)]);
  return ["malote send", shell(queue), ...words, shell(message.body)].join(" ");
}

export function publish({ name, withSessions, done, overview, update }) {
  const set = (field) => (event) => {
    draft[field] = event.target.value;
    update();
  };
  const input = (field, label, attributes = {}) => html`
    <label>
      <span>${label}</span>
      <input
        name=${field}
        value=${draft[field]}
        placeholder=${attributes.placeholder}
        type=${attributes.type ?? "text"}
        min=${attributes.min}
        max=${attributes.max}
        ?required=${attributes.required}
        autocomplete="off"
        spellcheck="false"
        @input=${set(field)}
      />
    </label>
  `;
  const same = () => {
    try {
      const message = messageOf(draft);
      const count = Number(draft.count) || 1;
      return html`
        <details>
          <summary>As curl and as a command</summary>
          ${codeBlock(asCurl(location.origin, name, message, overview()?.open ?? true))} ${codeBlock(asCommand(name, message, count))}
        </details>
      `;
    } catch (error) {
      return html`<p class="dim">${error.message}</p>`;
    }
  };
  openDialog({
    title: `Publish to ${name}`,
    action: "Publish",
    wide: true,
    view: () => html`
      <label>
        <span>Body</span>
        <textarea name="body" rows="6" spellcheck="false" .defaultValue=${draft.body} @input=${set("body")}></textarea>
      </label>
      <div class="fields">
        ${input("session", "Session", { required: withSessions })} ${input("type", "Content type", { placeholder: "e.g. application/json" })}
        ${input("count", "Copies", { type: "number", min: 1, max: COUNT_MAX, required: true })}
      </div>
      <label>
        <span>Properties, one <code>name=value</code> on each line</span>
        <textarea name="properties" rows="2" spellcheck="false" .defaultValue=${draft.properties} @input=${set("properties")}></textarea>
      </label>
      <details>
        <summary>More fields</summary>
        <div class="fields">
          ${input("delay", "Delay", { placeholder: "e.g. 30s" })} ${input("ttl", "Expires after", { placeholder: "e.g. 1h" })}
          ${input("priority", "Priority", { type: "number", min: 0, max: 255 })} ${input("id", "Id")} ${input("dedup", "De-duplication key")}
        </div>
      </details>
      ${same()}
    `,
    run: async () => {
      const message = messageOf(draft);
      const total = Math.min(Math.max(1, Number(draft.count) || 1), COUNT_MAX);
      for (let sent = 0; sent < total; sent += STEP) {
        const messages = Array.from({ length: Math.min(STEP, total - sent) }, () => message);
        await post(path("queues", name, "messages", "batch"), { messages });
      }
      notice(`${plural(total, "message")} sent`);
      done();
    },
  });
}
