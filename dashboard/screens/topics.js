// The list of topics. RabbitMQ calls them exchanges.

import { get, path, put } from "../api.js";
import { command, empty, loaded, notice, openDialog } from "../components.js";
import { count } from "../format.js";
import { html } from "../html.js";
import { address } from "../router.js";

const PAGE = 200;

/** Kinds of topics, and which rules make copies. */
export const KINDS = {
  filter: "Subscriptions with filters",
  direct: "Rules with the exact key",
  fanout: "All rules",
  topic: "Rules with a pattern of the key",
  headers: "Rules with properties",
};

export function open({ update, navigate }) {
  const state = { value: undefined, error: null };
  let next = null;
  let closed = false;

  async function load(more = false) {
    try {
      const page = await get(path("topics"), { max: PAGE, after: more ? next : undefined });
      state.value = more ? [...state.value, ...page.topics] : page.topics;
      state.error = null;
      next = page.next ?? null;
    } catch (error) {
      state.error = error;
    }
    if (!closed) update();
  }
  load();

  function create() {
    openDialog({
      title: "Create topic",
      action: "Create",
      view: () => html`
        <label><span>Name</span><input name="name" required autocomplete="off" spellcheck="false" /></label>
        <label>
          <span>Which rules make copies</span>
          <select name="kind">
            ${Object.entries(KINDS).map(([kind, label]) => html`<option key=${kind} value=${kind}>${label}</option>`)}
          </select>
        </label>
      `,
      run: async (form) => {
        const name = form.get("name").trim();
        await put(path("topics", name), { kind: form.get("kind") });
        notice(`Topic ${name} created`);
        navigate(address(["topics", name]));
      },
    });
  }

  function list(topics) {
    if (topics.length === 0) {
      return empty("No topics", "A topic copies each message to the queues whose rules match it.");
    }
    return html`
      <div class="table-wrap">
        <table class="list">
          <thead>
            <tr>
              <th scope="col">Topic</th>
              <th scope="col">Kind</th>
              <th scope="col" class="number">Queues</th>
              <th scope="col" class="number">Rules</th>
              <th scope="col" class="number wide">Scheduled</th>
              <th scope="col" class="number wide">Copies made</th>
            </tr>
          </thead>
          <tbody>
            ${topics.map(
              ({ name, spec, queues, rules, scheduled, totals }) => html`
                <tr key=${name}>
                  <th scope="row"><a href=${address(["topics", name])}>${name}</a></th>
                  <td>${spec.kind}</td>
                  <td class="number">${count(queues)}</td>
                  <td class="number">${count(rules)}</td>
                  <td class="number wide ${scheduled ? "" : "zero"}">${count(scheduled)}</td>
                  <td class="number wide ${totals.copies ? "" : "zero"}">${count(totals.copies)}</td>
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
    <div class="title">
      <h1>Topics</h1>
      <div class="actions">
        <button @click=${() => load()}>Refresh</button>
        <button class="primary" @click=${create}>Create topic</button>
      </div>
    </div>
    <p class="lead dim">Topics copy messages to queues by rules. RabbitMQ calls them exchanges.</p>
    ${loaded(state, "the topics", list, () => load())} ${command("malote topic ls")}
  `;

  return { title: "Topics", query: { max: 0 }, view, close: () => (closed = true) };
}
