// One session: who holds it, its state, its messages, and why nothing happens.

import { get, path, post, request } from "../api.js";
import { hexDump, prettyJson } from "../body.js";
import { command, confirm, empty, failure, loaded, loading, notice, stat } from "../components.js";
import { bytes, count, duration, plural, shell, time } from "../format.js";
import { html } from "../html.js";
import { messageList } from "../message.js";
import { queueAddress } from "../router.js";

const PAGE = 50;

export function open({ params, update, now }) {
  const { queue, session } = params;
  const facts = { value: undefined, error: null };
  const messages = { value: undefined, error: null };
  const content = { value: undefined, error: null };
  const opened = new Set();
  const kinds = new Map();
  let closed = false;
  let loadedAt = 0;
  let paused = false;

  async function into(state, ask) {
    try {
      Object.assign(state, { value: await ask, error: null });
    } catch (error) {
      Object.assign(state, { error, value: undefined });
    }
    if (!closed) update();
  }

  function load() {
    loadedAt = Date.now();
    into(facts, get(path("queues", queue, "sessions", session)));
    into(messages, get(path("queues", queue, "messages"), { session, max: PAGE }));
    into(content, stateOf());
  }

  async function stateOf() {
    const response = await request("GET", path("queues", queue, "sessions", session, "state"));
    return response.status === 204 ? null : new Uint8Array(await response.arrayBuffer());
  }
  load();

  function live(overview) {
    paused = overview.rows[0]?.paused ?? false;
    if (Date.now() - loadedAt > 2000) into(facts, get(path("queues", queue, "sessions", session)));
  }

  function breakHold() {
    confirm({
      title: `Take session ${session} from its holder`,
      text: "Its holder cannot settle any more, and its messages are delivered again. Do this if the holder is stuck.",
      action: "Break the hold",
      run: async () => {
        await post(path("queues", queue, "sessions", session, "break"));
        notice("The session is free");
        load();
      },
    });
  }

  /** Why the next message is not delivered, in order of importance. */
  function why(session) {
    const first = messages.value?.messages[0];
    if (paused) return "The queue is paused. Resume it to go on.";
    if (session.held_until && session.held_until > now()) {
      const out = session.locked > 0 ? `It processes ${plural(session.locked, "message")}.` : "It has no message in progress.";
      return `A receiver holds the session for another ${duration(session.held_until - now())}, unless it renews its hold. ${out}`;
    }
    if (session.delayed_until && session.delayed_until > now()) {
      return `A failed message is retried in ${duration(session.delayed_until - now())}. Later messages wait, so that the order is kept.`;
    }
    if (session.locked > 0) return `A receiver processes ${plural(session.locked, "message")}. The next one follows when it is settled.`;
    if (session.messages === 0) return "Nothing to deliver: the session has a state and no messages.";
    if (first?.state === "deferred") return "Its first message is deferred. A receiver must ask for it by its number.";
    return "Ready: it is delivered to the next receiver that accepts a session.";
  }

  function stateView(value) {
    if (value === null) return html`<p class="dim">The session has no state.</p>`;
    let text;
    try {
      text = new TextDecoder("utf-8", { fatal: true }).decode(value);
    } catch {
      text = undefined;
    }
    const shown = text === undefined ? hexDump(value) : (prettyJson(text) ?? text);
    return html`<pre class="body" tabindex="0" aria-label="State">${shown}</pre>`;
  }

  function view() {
    const head = html`
      <p class="crumbs"><a href="/ui/queues">Queues</a> / <a href=${queueAddress(queue, "sessions")}>${queue}</a></p>
    `;
    if (facts.error) {
      const gone = facts.error.status === 404;
      return html`
        ${head}
        <div class="title"><h1>Session ${session}</h1></div>
        ${gone ? empty("The session does not exist any more", "It has no message, holder or state.") : failure(facts.error, load)}
      `;
    }
    if (!facts.value) return loading("the session");
    const shown = facts.value;
    const held = shown.held_until && shown.held_until > now();
    return html`
      ${head}
      <div class="title">
        <h1>Session ${session}</h1>
        <div class="actions">
          <button @click=${load}>Refresh</button>
          ${held && html`<button class="danger" @click=${breakHold}>Break hold</button>`}
        </div>
      </div>
      <p class="lead">${why(shown)}</p>
      <section class="stats" aria-label="Counts">
        ${stat("Messages", count(shown.messages))} ${stat("Locked", count(shown.locked))}
        ${stat("Held until", held ? time(shown.held_until) : "not held")}
        ${stat("Retry at", shown.delayed_until && shown.delayed_until > now() ? time(shown.delayed_until) : "–")}
        ${stat("State", shown.state_bytes ? bytes(shown.state_bytes) : "none")}
      </section>
      <div class="columns uneven">
        <section class="panel" aria-labelledby="messages">
          <div class="panel-head"><h2 id="messages">Messages in order</h2></div>
          ${loaded(messages, "the messages", (page) =>
            page.messages.length === 0
              ? empty("No messages")
              : html`
                  ${messageList({ messages: page.messages, opened, kinds, update, now: now() })}
                  ${page.next && html`<p class="dim">More follow.</p>`}
                `, load)}
        </section>
        <section class="panel" aria-labelledby="state">
          <div class="panel-head"><h2 id="state">State</h2></div>
          ${loaded(content, "the state", stateView, load)}
        </section>
      </div>
      ${command(`malote session show ${shell(queue)} ${shell(session)}`)}
    `;
  }

  return { title: `Session ${session}`, query: { queue, max: 1 }, view, live, close: () => (closed = true) };
}
