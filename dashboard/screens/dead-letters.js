// Dead letters of all queues, grouped by queue, reason and text: what fails, how often, and its redrive.

import { get, path } from "../api.js";
import { command, empty, loaded } from "../components.js";
import { age, count, plural, shell } from "../format.js";
import { html } from "../html.js";
import { messageList } from "../message.js";
import { isRunning, steps } from "../redrive.js";
import { address, queueAddress } from "../router.js";
import { askForRedrive } from "./queue-dead.js";

/** Messages that an opened group shows. */
const SHOWN = 10;

export function open({ query, update, now }) {
  let only = query.queue ?? "";
  let closed = false;
  let seenSteps = steps;
  let seenCount = null;
  let loadedAt = 0;
  const state = { value: undefined, error: null };
  const groupsOpen = new Map();
  const opened = new Set();
  const kinds = new Map();

  async function load() {
    loadedAt = Date.now();
    try {
      Object.assign(state, { value: await get(path("dead-letters"), { queue: only }), error: null });
    } catch (error) {
      state.error = error;
    }
    if (!closed) update();
  }
  load();

  const keyOf = (group) => `${group.queue}\n${group.reason}\n${group.seqs[0]}`;

  async function toggle(group) {
    const key = keyOf(group);
    if (groupsOpen.delete(key)) return update();
    const shown = { value: undefined, error: null };
    groupsOpen.set(key, shown);
    update();
    try {
      const messages = [];
      // The newest ones: they are the most likely to be of interest.
      for (const seq of group.seqs.slice(-SHOWN).reverse()) {
        const page = await get(path("queues", group.queue, "dead-letters"), { from: seq, max: 1 });
        messages.push(...page.messages.filter((message) => message.seq === seq));
      }
      shown.value = messages;
    } catch (error) {
      shown.error = error;
    }
    update();
  }

  function live(overview) {
    const changed = seenCount !== null && seenCount !== overview.counts.dead_lettered;
    seenCount = overview.counts.dead_lettered;
    const moved = steps !== seenSteps && !isRunning();
    if ((changed && Date.now() - loadedAt > 3000) || moved) {
      seenSteps = steps;
      load();
    }
  }

  const redriveGroup = (group) => askForRedrive({ queue: group.queue, seqs: group.seqs, total: group.seqs.length, after: load });

  function list({ groups, read, total, hidden_queues }) {
    const notes = [];
    if (read < total) notes.push(`${count(read)} of ${count(total)} dead letters were read; redrive them to see the others.`);
    if (hidden_queues > 0) notes.push(`${plural(hidden_queues, "queue")} with dead letters need permission to receive.`);
    return html`
      ${notes.length > 0 && html`<p class="dim">${notes.join(" ")}</p>`}
      ${groups.length === 0
        ? empty("No dead letters", only ? `Nothing has failed in ${only}.` : "Nothing has failed in any queue.")
        : html`
            <ul class="groups">
              ${groups.map((group) => groupView(group))}
            </ul>
          `}
    `;
  }

  function groupView(group) {
    const key = keyOf(group);
    const shown = groupsOpen.get(key);
    return html`
      <li key=${key} class="panel group">
        <div class="group-line">
          <div class="group-text">
            <h2><span class="count-big">${count(group.seqs.length)}</span> ${group.reason || "No reason given"}</h2>
            ${group.text && html`<p class="reason-text">${group.text}</p>`}
            <p class="dim">
              in <a href=${queueAddress(group.queue, "dead-letters")}>${group.queue}</a> · newest ${age(now() - group.last_at)} ago
              ${group.last_at - group.first_at > 1000 && html`· oldest ${age(now() - group.first_at)} ago`}
            </p>
          </div>
          <div class="actions">
            <button aria-expanded=${String(Boolean(shown))} @click=${() => toggle(group)}>${shown ? "Hide" : "Show"} messages</button>
            <button class="primary" ?disabled=${isRunning()} @click=${() => redriveGroup(group)}>Redrive</button>
          </div>
        </div>
        ${shown &&
        loaded(shown, "the messages", (messages) => html`
          ${messageList({ messages, opened, kinds, update, now: now(), shows: ["age"] })}
          ${group.seqs.length > SHOWN && html`<p class="dim">The newest ${SHOWN}. <a href=${queueAddress(group.queue, "dead-letters")}>All dead letters of ${group.queue}</a></p>`}
        `)}
      </li>
    `;
  }

  function view() {
    return html`
      <div class="title">
        <h1>Dead letters ${only && html`<span class="dim">of ${only}</span>`}</h1>
        <div class="actions">
          ${only && html`<a class="button" href="/ui/dead-letters">All queues</a>`}
          <button @click=${load}>Refresh</button>
        </div>
      </div>
      ${loaded(state, "the dead letters", list, load)}
      ${command(only ? `malote dlq groups ${shell(only)}` : "malote dlq groups")}
    `;
  }

  function changed(next) {
    only = next.queue ?? "";
    state.value = undefined;
    load();
  }

  return { title: "Dead letters", query: { max: 0 }, view, live, changed, close: () => (closed = true) };
}
