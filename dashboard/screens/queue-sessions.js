// The sessions of a queue, page by page.

import { get, path } from "../api.js";
import { command, empty, loaded } from "../components.js";
import { bytes, count, duration, shell } from "../format.js";
import { html } from "../html.js";
import { address } from "../router.js";

const PAGE = 100;

export function open({ name, update, now }) {
  const state = { value: undefined, error: null };
  let next = null;

  async function load(more = false) {
    try {
      const page = await get(path("queues", name, "sessions"), { max: PAGE, after: more ? next : undefined });
      state.value = more ? [...state.value, ...page.sessions] : page.sessions;
      state.error = null;
      next = page.next ?? null;
    } catch (error) {
      state.error = error;
    }
    update();
  }
  load();

  function list(sessions) {
    if (sessions.length === 0 && next === null) {
      return empty("No sessions", "A session exists while it has messages, a holder or a state.");
    }
    return html`
      <div class="table-wrap">
        <table class="list">
          <thead>
            <tr>
              <th scope="col">Session</th>
              <th scope="col" class="number">Messages</th>
              <th scope="col" class="number wide">Locked</th>
              <th scope="col">What happens</th>
              <th scope="col" class="number wide">State</th>
            </tr>
          </thead>
          <tbody>
            ${sessions.map(
              (session) => html`
                <tr key=${session.session}>
                  <th scope="row"><a href=${address(["queues", name, "sessions", session.session])}>${session.session}</a></th>
                  <td class="number">${count(session.messages)}</td>
                  <td class="number wide ${session.locked ? "" : "zero"}">${count(session.locked)}</td>
                  <td>${sessionState(session, now())}</td>
                  <td class="number wide ${session.state_bytes ? "" : "zero"}">${session.state_bytes ? bytes(session.state_bytes) : "–"}</td>
                </tr>
              `,
            )}
          </tbody>
        </table>
      </div>
      ${next !== null && html`<div class="pages"><button @click=${() => load(true)}>Load more</button></div>`}
    `;
  }

  const view = () => html`
    <div class="filters"><span class="grow dim">Each session is delivered in order, to one receiver at a time.</span><button @click=${() => load()}>Refresh</button></div>
    ${loaded(state, "the sessions", list, () => load())} ${command(`malote session ls ${shell(name)}`)}
  `;

  return { view, refresh: () => load() };
}

/** What happens to a session now, in a few words. */
export function sessionState({ held_until, delayed_until, messages, locked }, now) {
  if (held_until && held_until > now) return `held for ${duration(held_until - now)}`;
  if (delayed_until && delayed_until > now) return `waits ${duration(delayed_until - now)} to retry`;
  if (locked > 0) return "a message is being processed";
  return messages > 0 ? "waits for a receiver" : "no messages";
}
