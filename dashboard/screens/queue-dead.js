// The dead letters of a queue: why, redrive, edit and send again, purge.

import { del, get, path, post } from "../api.js";
import { bytesOf, textOf } from "../body.js";
import { command, confirm, empty, loaded, notice, openDialog } from "../components.js";
import { plural, shell } from "../format.js";
import { html } from "../html.js";
import { contains, messageList } from "../message.js";
import { isRunning, redrive, steps } from "../redrive.js";

const PAGE = 100;

/** Fields of a dead letter that its corrected copy keeps. */
const KEPT = [
  "session", "key", "more_keys", "subject", "to", "reply_to", "reply_to_session", "correlation_id", "content_type",
  "content_encoding", "user_id", "app_id", "priority",
];

export function open({ name, update, now, row, query }) {
  const state = { value: undefined, error: null };
  const opened = new Set();
  const kinds = new Map();
  const selected = new Set();
  let text = query.text ?? "";
  let next = null;
  let seenSteps = steps;

  async function load(more = false) {
    try {
      const page = await get(path("queues", name, "dead-letters"), { max: PAGE, from: more ? next : undefined });
      state.value = more ? [...state.value, ...page.messages] : page.messages;
      state.error = null;
      next = page.next ?? null;
      const seqs = new Set(state.value.map((message) => message.seq));
      for (const seq of selected) if (!seqs.has(seq)) selected.delete(seq);
    } catch (error) {
      state.error = error;
    }
    update();
  }
  load();

  /** `seqs` undefined: all of them. */
  function askRedrive(seqs) {
    const total = seqs ? seqs.length : (row()?.counts.dead_lettered ?? state.value.length);
    askForRedrive({ queue: name, seqs, total, after: () => load() });
  }

  function purge() {
    confirm({
      title: `Delete the dead letters of ${name}`,
      text: "This deletes all dead letters of the queue. It cannot be undone.",
      action: "Delete the dead letters",
      word: name,
      run: async () => {
        const { removed } = await del(path("queues", name, "dead-letters"));
        notice(`${plural(removed, "dead letter")} deleted`);
        await load();
      },
    });
  }

  function resend(message) {
    const body = textOf(message);
    openDialog({
      title: `Edit and resend message ${message.seq}`,
      action: "Resend",
      wide: true,
      view: () => html`
        <p class="dim">
          The corrected message replaces the dead letter in one step. Fields that are not shown stay as they are.
        </p>
        <div class="fields">
          <label><span>To</span><input name="to" value=${message.dead_letter?.from ?? name} required spellcheck="false" /></label>
          <label><span>Id, which links it to the original</span><input name="id" value=${message.id ?? ""} placeholder="a new one" spellcheck="false" /></label>
        </div>
        <label>
          <span>Properties as JSON</span>
          <textarea name="properties" rows="3" spellcheck="false" .defaultValue=${JSON.stringify(message.properties ?? {}, null, 2)}></textarea>
        </label>
        <label>
          <span>Body ${body === undefined ? "as base64" : ""}</span>
          <textarea name="body" rows="10" spellcheck="false" .defaultValue=${body ?? message.body_base64}></textarea>
        </label>
      `,
      run: async (form) => {
        const copy = {};
        for (const field of KEPT) if (message[field] !== undefined) copy[field] = message[field];
        if (form.get("id").trim()) copy.id = form.get("id").trim();
        let properties;
        try {
          properties = JSON.parse(form.get("properties") || "{}");
        } catch (error) {
          throw new Error(`The properties are not valid JSON: ${error.message}`);
        }
        if (Object.keys(properties).length) copy.properties = properties;
        if (body === undefined) copy.body_base64 = form.get("body");
        else copy.body = form.get("body").replaceAll("\r\n", "\n");
        const asked = { message: copy, to: form.get("to").trim() };
        const sent = await post(path("queues", name, "dead-letters", String(message.seq), "resend"), asked);
        notice(sent.duplicate ? `The queue has this message already, with number ${sent.seq}` : "The corrected message is sent");
        await load();
      },
    });
  }

  function list(messages) {
    const shown = messages.filter((message) => contains(message, text));
    if (messages.length === 0 && next === null) {
      return empty("No dead letters", "Messages that fail too often, expire or are rejected wait here with their reason.");
    }
    const actions = (message) => html`
      <button class="primary" ?disabled=${isRunning()} @click=${() => askRedrive([message.seq])}>Redrive</button>
      ${!message.damaged && html`<button @click=${() => resend(message)}>Edit and resend</button>`}
    `;
    const all = shown.length > 0 && shown.every((message) => selected.has(message.seq));
    return html`
      <div class="selection">
        <label class="check">
          <input
            type="checkbox"
            .checked=${all}
            @change=${() => {
              for (const message of shown) {
                if (all) selected.delete(message.seq);
                else selected.add(message.seq);
              }
              update();
            }}
          />
          <span>${selected.size ? `${selected.size} selected` : "Select all shown"}</span>
        </label>
        <span class="grow"></span>
        ${selected.size > 0
          ? html`<button class="primary" ?disabled=${isRunning()} @click=${() => askRedrive([...selected].sort((a, b) => a - b))}>
              Redrive selection
            </button>`
          : html`<button class="primary" ?disabled=${isRunning()} @click=${() => askRedrive()}>Redrive all</button>`}
        <button @click=${purge}>Purge</button>
      </div>
      ${shown.length === 0
        ? empty("No loaded dead letter matches")
        : messageList({ messages: shown, opened, kinds, update, now: now(), select: selected, actions, shows: ["age"] })}
      ${next !== null &&
      html`<div class="pages"><span>${plural(messages.length, "dead letter")} loaded</span><button @click=${() => load(true)}>Load more</button></div>`}
    `;
  }

  function view() {
    const seqs = [...selected].sort((a, b) => a - b);
    return html`
      <div class="filters">
        <label class="grow">
          <span>Text in the loaded dead letters</span>
          <input
            type="search"
            placeholder="Reason, body, id, property …"
            value=${text}
            @input=${(event) => {
              text = event.target.value.trim();
              update();
            }}
          />
        </label>
        <button @click=${() => load()}>Refresh</button>
      </div>
      ${loaded(state, "the dead letters", list, () => load())}
      ${command(`malote dlq redrive ${shell(name)}${seqs.length ? ` --seq ${seqs.join(",")}` : ""}`)}
    `;
  }

  function live() {
    // A redrive, here or started elsewhere, changes the list.
    if (steps !== seenSteps && !isRunning()) {
      seenSteps = steps;
      load();
    }
  }

  return { view, live, refresh: () => load() };
}

/** Asks where dead letters should go, and starts the redrive. */
export function askForRedrive({ queue, seqs, total, after }) {
  openDialog({
    title: `Redrive ${plural(total, "message")}`,
    action: "Redrive",
    view: () => html`
      <p>The messages of <strong>${queue}</strong> go back to the queue that each came from, to be processed again.</p>
      <details>
        <summary>Send them to another queue</summary>
        <label><span>Queue</span><input name="to" placeholder="where they came from" autocomplete="off" spellcheck="false" /></label>
      </details>
    `,
    run: async (form) => {
      redrive({ queue, seqs, total, to: form.get("to")?.trim() || undefined }).then(after);
    },
  });
}
