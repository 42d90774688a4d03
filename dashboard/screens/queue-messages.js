// Messages of a queue, without receiving them: all, or those that are scheduled.

import { get, path, post } from "../api.js";
import { command, confirm, empty, loaded, notice } from "../components.js";
import { plural, shell } from "../format.js";
import { html } from "../html.js";
import { contains, messageList } from "../message.js";

const PAGE = 50;

const STATES = ["ready", "locked", "delayed", "scheduled", "deferred"];

/** `only` is the state of the messages that the tab shows. */
export function open({ name, update, now }, only) {
  const state = { value: undefined, error: null };
  const filter = { state: only ?? "", session: "", text: "" };
  const opened = new Set();
  const kinds = new Map();
  let next = null;
  let loading = 0;
  let typing = 0;

  async function load({ more = false } = {}) {
    const own = (loading += 1);
    try {
      const query = { max: PAGE, state: filter.state, session: filter.session, from: more ? next : undefined };
      const page = await get(path("queues", name, "messages"), query);
      if (own !== loading) return;
      state.value = more ? [...state.value, ...page.messages] : page.messages;
      state.error = null;
      next = page.next ?? null;
    } catch (error) {
      if (own !== loading) return;
      state.error = error;
    }
    update();
  }
  load();

  const changed = (field) => (event) => {
    filter[field] = event.target.value.trim();
    clearTimeout(typing);
    typing = setTimeout(load, field === "session" ? 300 : 0);
  };

  function cancel(message) {
    confirm({
      title: `Cancel message ${message.seq}`,
      text: "The message is deleted before it is enqueued. This cannot be undone.",
      action: "Cancel the message",
      run: async () => {
        await post(path("queues", name, "scheduled", "cancel"), { seqs: [message.seq] });
        notice("The message is cancelled");
        await load();
      },
    });
  }

  function list(messages) {
    const shown = messages.filter((message) => contains(message, filter.text));
    if (shown.length === 0) {
      if (next !== null) return more("No message found so far");
      if (filter.text || filter.session || (filter.state && !only)) return empty("No message matches");
      return only
        ? empty("No scheduled messages", "Messages that are sent with a future time wait here until they are due.")
        : empty("The queue is empty", "Publish a message, or connect a client.");
    }
    const actions = (message) =>
      message.state === "scheduled" ? html`<button @click=${() => cancel(message)}>Cancel message</button>` : null;
    return html`
      ${messageList({ messages: shown, opened, kinds, update, now: now(), actions, shows: only ? ["due"] : ["state", "age"] })}
      ${next !== null ? more(`${plural(messages.length, "message")} loaded`) : null}
    `;
  }

  const more = (text) => html`
    <div class="pages">
      <span>${text}</span>
      <button @click=${() => load({ more: true })}>Load more</button>
    </div>
  `;

  function view() {
    const flags = [only && `--state ${only}`, !only && filter.state && `--state ${filter.state}`, filter.session && `--session ${shell(filter.session)}`];
    return html`
      <div class="filters">
        ${!only &&
        html`
          <label>
            <span>State</span>
            <select @change=${changed("state")}>
              <option value="">All</option>
              ${STATES.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}
            </select>
          </label>
        `}
        <label><span>Session</span><input autocomplete="off" spellcheck="false" @input=${changed("session")} /></label>
        <label class="grow">
          <span>Text in the loaded messages</span>
          <input
            type="search"
            placeholder="Body, id, property …"
            @input=${(event) => {
              filter.text = event.target.value.trim();
              update();
            }}
          />
        </label>
        <button @click=${() => load()}>Refresh</button>
      </div>
      ${loaded(state, "the messages", list, load)}
      ${command(["malote peek", shell(name), ...flags].filter(Boolean).join(" "))}
    `;
  }

  return { view, refresh: () => load(), close: () => clearTimeout(typing) };
}
