// The settings of a queue: the usual ones can be changed, all are shown.

import { patch, path } from "../api.js";
import { command, failure, loading, notice, openDialog } from "../components.js";
import { bytes, count, duration, shell } from "../format.js";
import { html } from "../html.js";
import { time } from "./queues.js";

/** Names as people say them, in the order in which they are shown. The others follow under their API names. */
const LABELS = {
  sessions: "Sessions",
  session_from: "Session from",
  lock_ms: "Lock time",
  failed_max: "Failures before dead-letter",
  receives_max: "Deliveries before dead-letter",
  dead_letter: "Dead letters go to",
  ttl_ms: "Messages expire after",
  on_expiry: "Expired messages",
  delay_ms: "Delay",
  priority_max: "Highest priority",
  dedup: "De-duplication",
  length_max: "Most messages",
  bytes_max: "Most bytes",
  overflow: "When it is full",
  status: "Open for",
  durability: "Durability",
  retry: "Order of retries",
  forward_to: "Forwarded to",
  backlog_warning: "Warning above",
  message_bytes_max: "Largest message",
  fair: "Fair to tenants",
  single_active: "One consumer at a time",
  auto_delete: "Deleted with its last consumer",
  idle_ms_max: "Deleted when unused for",
  exclusive: "For one connection only",
  transient: "Gone after a restart",
  dead_letters_keep_age: "Dead letters keep their age",
  discard_unroutable: "Unroutable dead letters",
};

/** Words of the API that need an explanation. */
const WORDS = {
  dead_letter: { own: "this queue's own set", drop: "nowhere: dropped" },
  status: { active: "sending and receiving", send_disabled: "receiving only", receive_disabled: "sending only", disabled: "nothing" },
  durability: { fsync: "on disk before the answer", relaxed: "written, synced soon" },
  retry: { hold: "the session waits", skip: "later messages overtake" },
  on_expiry: { drop: "dropped", dead_letter: "dead-lettered" },
  session_from: { null: "the sender's session id" },
  discard_unroutable: { true: "deleted", false: "kept in the own set" },
  idle_ms_max: { null: "never" },
  ttl_ms: { null: "never" },
};

/** A setting as text. */
export function settingText(name, value) {
  const word = WORDS[name]?.[String(value)];
  if (word) return word;
  if (name.endsWith("bytes_max") && value) return bytes(value);
  if (value === null || value === undefined) return name === "failed_max" || name.endsWith("_max") ? "no limit" : "none";
  if (name.endsWith("_ms") || name === "idle_ms_max") return value === 0 ? "none" : duration(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return count(value);
  if (Array.isArray(value)) return `${value.length} fixed: ${value.slice(0, 8).join(", ")}${value.length > 8 ? " …" : ""}`;
  if (typeof value === "object") {
    return Object.entries(value)
      .map(([key, inner]) => `${key.replace(/_ms$/, "").replaceAll("_", " ")} ${key.endsWith("_ms") ? duration(inner) : inner}`)
      .join(", ");
  }
  return name === "session_from" ? value : value.replaceAll("_", " ");
}

export function open({ name, info, reload }) {
  function edit() {
    const { spec } = info.value;
    const text = (ms) => (ms ? duration(ms).replaceAll(" ", "") : "");
    openDialog({
      title: `Settings of ${name}`,
      action: "Save",
      view: () => html`
        <div class="fields">
          <label><span>Lock time</span><input name="lock" value=${String(spec.lock_ms / 1000) + "s"} /></label>
          <label>
            <span>Failures before dead-letter</span>
            <input name="failed_max" type="number" min="1" placeholder="no limit" value=${spec.failed_max ?? ""} />
          </label>
          <label>
            <span>Messages expire after</span>
            <input name="ttl" placeholder="never" value=${spec.ttl_ms ? `${spec.ttl_ms / 1000}s` : text(spec.ttl_ms)} />
          </label>
          <label>
            <span>Most messages</span>
            <input name="length_max" type="number" min="1" placeholder="no limit" value=${spec.length_max ?? ""} />
          </label>
          <label>
            <span>Warning above</span>
            <input name="backlog_warning" type="number" min="0" required value=${spec.backlog_warning} />
          </label>
          <label>
            <span>Open for</span>
            <select name="status">
              ${[
                ["active", "sending and receiving"],
                ["send_disabled", "receiving only"],
                ["receive_disabled", "sending only"],
                ["disabled", "nothing"],
              ].map(([value, label]) => html`<option key=${value} value=${value} ?selected=${spec.status === value}>${label}</option>`)}
            </select>
          </label>
        </div>
      `,
      run: async (form) => {
        const number = (field) => (form.get(field) ? Number(form.get(field)) : null);
        await patch(path("queues", name), {
          lock_ms: time(form, "lock", "Lock time"),
          failed_max: number("failed_max"),
          ttl_ms: form.get("ttl").trim() ? time(form, "ttl", "Messages expire after") : null,
          length_max: number("length_max"),
          backlog_warning: Number(form.get("backlog_warning")),
          status: form.get("status"),
        });
        notice("Settings saved");
        await reload();
      },
    });
  }

  function view() {
    if (info.error && !info.value) return failure(info.error, reload);
    if (!info.value) return loading("the settings");
    const { spec } = info.value;
    const others = Object.keys(spec).filter((key) => !(key in LABELS));
    const rows = (names, label) =>
      names.map((key) => html`<div key=${key}><dt>${label(key)}</dt><dd>${settingText(key, spec[key])}</dd></div>`);
    return html`
      <div class="filters"><span class="grow"></span><button @click=${edit}>Change settings</button></div>
      <dl class="facts settings">
        ${rows(Object.keys(LABELS).filter((key) => key in spec), (key) => LABELS[key])}
        ${rows(others, (key) => key.replaceAll("_", " ").replace(/^./, (c) => c.toUpperCase()))}
      </dl>
      ${command(`malote queue get ${shell(name)}`)}
    `;
  }

  return { view, refresh: reload };
}
