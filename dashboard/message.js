// A message in a list and in full: fields, properties, and the body as text, JSON or hex.

import { TEXT_MAX, bytesOf, hexDump, prettyJson, preview, textOf } from "./body.js";
import { copy } from "./components.js";
import { age, bytes, duration, time } from "./format.js";
import { html } from "./html.js";

/** Fields that a message may have, in the order in which they are shown. */
const FIELDS = [
  ["id", "Id"],
  ["origin_id", "First id"],
  ["session", "Session"],
  ["key", "Key"],
  ["subject", "Subject"],
  ["to", "To"],
  ["reply_to", "Reply to"],
  ["reply_to_session", "Reply session"],
  ["correlation_id", "Correlation id"],
  ["content_type", "Content type"],
  ["content_encoding", "Content encoding"],
  ["user_id", "User"],
  ["app_id", "Application"],
  ["dedup_id", "De-duplication key"],
  ["priority", "Priority"],
];

/** A property of the API as text, with its type if it is not plain JSON. */
export function propertyText(value) {
  if (value && typeof value === "object" && "$type" in value) return `${JSON.stringify(value.value)} (${value.$type})`;
  return typeof value === "string" ? value : JSON.stringify(value);
}

/**
 * A list of messages, each of which can be opened. `opened` is a set of sequence numbers, `kinds` how bodies are shown;
 * `select` makes the messages selectable, `actions` are buttons for an opened message.
 */
export function messageList({ messages, opened, kinds, update, now, select, actions, shows = ["state", "age"] }) {
  const toggle = (seq) => {
    if (!opened.delete(seq)) opened.add(seq);
    update();
  };
  return html`
    <ul class="messages">
      ${messages.map((message) => {
        const isOpen = opened.has(message.seq);
        return html`
          <li key=${message.seq} class="message ${isOpen ? "open" : ""}">
            <div class="message-line">
              ${select &&
              html`
                <input
                  type="checkbox"
                  aria-label="Select message ${message.seq}"
                  .checked=${select.has(message.seq)}
                  @change=${() => {
                    if (!select.delete(message.seq)) select.add(message.seq);
                    update();
                  }}
                />
              `}
              <button class="message-head" aria-expanded=${String(isOpen)} @click=${() => toggle(message.seq)}>
                <span class="seq">${message.seq}</span>
                <span class="message-text">
                  ${message.dead_letter &&
                  html`
                    <span class="reason">${message.dead_letter.reason || "No reason"}</span>
                    ${message.dead_letter.text && html`<span class="reason-text">${message.dead_letter.text}</span>`}
                  `}
                  <span class="preview">${preview(message) || html`<em>empty body</em>`}</span>
                </span>
                <span class="message-facts">
                  ${message.session && html`<span class="tag" title="Session">${message.session}</span>`}
                  ${shows.includes("state") && html`<span class="state ${message.state}">${message.state}</span>`}
                  ${shows.includes("due") && html`<span class="nowrap">in ${duration(Math.max(0, message.due - now))}</span>`}
                  ${shows.includes("age") && html`<span class="nowrap dim">${age(now - message.enqueued_at)}</span>`}
                </span>
              </button>
            </div>
            ${isOpen && messageDetails(message, kinds, update, actions)}
          </li>
        `;
      })}
    </ul>
  `;
}

function messageDetails(message, kinds, update, actions) {
  const facts = FIELDS.filter(([name]) => message[name] !== undefined && !(name === "origin_id" && message.origin_id === message.id));
  const size = bytesOf(message).length;
  const dead = message.dead_letter;
  return html`
    <div class="details">
      ${dead &&
      html`
        <div class="why">
          <p><strong>${dead.reason || "No reason given"}</strong>${dead.text ? `: ${dead.text}` : ""}</p>
          <p class="dim">
            Dead-lettered ${time(dead.at)} from ${dead.from}, after ${dead.receives === 1 ? "1 delivery" : `${dead.receives} deliveries`},
            ${dead.failed} failed.
          </p>
        </div>
      `}
      ${message.damaged && html`<p class="problem">This message is damaged on disk: ${message.problem}</p>`}
      <dl class="facts">
        ${facts.map(
          ([name, label]) => html`
            <div key=${name}>
              <dt>${label}</dt>
              <dd>${message[name]}</dd>
            </div>
          `,
        )}
        <div key="enqueued"><dt>Enqueued</dt><dd>${time(message.enqueued_at)}</dd></div>
        ${message.due && html`<div key="due"><dt>Due</dt><dd>${time(message.due)}</dd></div>`}
        ${message.ttl_ms && html`<div key="ttl"><dt>Time to live</dt><dd>${duration(message.ttl_ms)}</dd></div>`}
        ${!dead && html`<div key="receives"><dt>Deliveries</dt><dd>${message.receives}, ${message.failed} failed</dd></div>`}
      </dl>
      ${message.properties &&
      Object.keys(message.properties).length > 0 &&
      html`
        <h4>Properties</h4>
        <dl class="facts">
          ${Object.entries(message.properties).map(
            ([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${propertyText(value)}</dd></div>`,
          )}
        </dl>
      `}
      ${bodyView(message, size, kinds, update)}
      ${actions && html`<div class="buttons left">${actions(message)}</div>`}
    </div>
  `;
}

function bodyView(message, size, kinds, update) {
  if (message.damaged) return null;
  const text = textOf(message);
  const json = text === undefined ? undefined : prettyJson(text);
  const available = [json !== undefined && "JSON", text !== undefined && "Text", "Hex"].filter(Boolean);
  const kind = available.includes(kinds.get(message.seq)) ? kinds.get(message.seq) : available[0];
  const shown = kind === "JSON" ? json : kind === "Text" ? text.slice(0, TEXT_MAX) : hexDump(bytesOf(message));
  return html`
    <div class="body-head">
      <h4>Body <span class="dim">${bytes(size)}</span></h4>
      <div class="choice" role="group" aria-label="Show the body as">
        ${available.map(
          (one) => html`
            <button
              key=${one}
              aria-pressed=${String(one === kind)}
              @click=${() => {
                kinds.set(message.seq, one);
                update();
              }}
            >
              ${one}
            </button>
          `,
        )}
      </div>
      <button class="quiet" @click=${() => copy(shown)}>Copy</button>
    </div>
    <pre class="body" tabindex="0" aria-label="Body">${shown || " "}</pre>
    ${kind === "Text" && text.length > TEXT_MAX && html`<p class="dim">The rest is not shown.</p>`}
  `;
}

/** Whether a message contains a text: in its body, its fields or its properties. */
export function contains(message, wanted) {
  if (!wanted) return true;
  const low = wanted.toLowerCase();
  const texts = [textOf(message) ?? "", message.dead_letter?.reason ?? "", message.dead_letter?.text ?? ""];
  for (const [name] of FIELDS) if (message[name] !== undefined) texts.push(String(message[name]));
  for (const [name, value] of Object.entries(message.properties ?? {})) texts.push(`${name}=${propertyText(value)}`);
  return texts.some((text) => text.toLowerCase().includes(low));
}
