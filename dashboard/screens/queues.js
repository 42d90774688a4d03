// The list of queues: live, sortable, searchable, page by page. The server sorts and filters, so that the page stays
// small with thousands of queues.

import { path, put } from "../api.js";
import { command, empty, loading, notice, openDialog, sortHead } from "../components.js";
import { age, count, parseDuration, rate } from "../format.js";
import { html } from "../html.js";
import { address, queueAddress } from "../router.js";

const PAGE = 100;

const COLUMNS = [
  { id: "name", label: "Queue" },
  { id: "ready", label: "Ready", kind: "number" },
  { id: "locked", label: "Locked", kind: "number", title: "Received, and not settled yet" },
  { id: "later", label: "Later", kind: "number wide", title: "Delayed and scheduled" },
  { id: "deferred", label: "Deferred", kind: "number wide" },
  { id: "dead_lettered", label: "Dead", kind: "number", title: "Dead letters" },
  { id: "sessions", label: "Sessions", kind: "number wide" },
  { id: "consumers", label: "Consumers", kind: "number wide", title: "Consumers that wait for messages" },
  { id: "in", label: "In/s", kind: "number wide", title: "Messages sent per second" },
  { id: "out", label: "Out/s", kind: "number wide", title: "Messages completed per second" },
  { id: "oldest", label: "Oldest", kind: "number wide", title: "Age of the oldest ready message" },
];

export function open({ query: given, update, navigate, overview, now, follow }) {
  let current = read(given);
  let typing = 0;

  function read(query) {
    const known = COLUMNS.some((column) => column.id === query.sort);
    return {
      search: query.search ?? "",
      by: known ? query.sort : "name",
      descending: query.descending === "true",
      offset: Math.max(0, Number.parseInt(query.offset, 10) || 0),
    };
  }

  const request = () => ({
    search: current.search,
    sort: current.by,
    descending: current.descending,
    offset: current.offset,
    max: PAGE,
  });

  /** Changes the address; the list follows. */
  function go(change) {
    const next = { ...current, offset: 0, ...change };
    const query = {
      search: next.search,
      sort: next.by === "name" && !next.descending ? "" : next.by,
      descending: next.descending || "",
      offset: next.offset || "",
    };
    navigate(address(["queues"], query), { replace: true });
  }

  function changed(query) {
    current = read(query);
    follow(request());
  }

  function search(event) {
    const { value } = event.target;
    clearTimeout(typing);
    typing = setTimeout(() => go({ search: value.trim() }), 200);
  }

  function view() {
    const shown = overview();
    if (!shown) return loading("the queues");
    const last = Math.min(current.offset + PAGE, shown.matched);
    return html`
      <div class="title">
        <h1>Queues <span class="dim">${count(shown.queues)}</span></h1>
        <div class="actions">
          <input
            type="search"
            class="search"
            aria-label="Search queues"
            placeholder="Search, e.g. orders-*"
            value=${current.search}
            @input=${search}
          />
          <button class="primary" @click=${() => createQueue(navigate)}>Create queue</button>
        </div>
      </div>
      ${shown.matched === 0
        ? shown.queues === 0
          ? empty("No queues yet", "Create one here, or send a message: the overview shows how.")
          : empty("No queue matches", `No name matches “${current.search}”.`)
        : html`
            <div class="table-wrap">
              <table class="list">
                ${sortHead(COLUMNS, current, (sort) => go(sort))}
                <tbody>
                  ${shown.rows.map((row) => queueRow(row, now()))}
                </tbody>
              </table>
            </div>
            ${shown.matched > PAGE &&
            html`
              <div class="pages">
                <button ?disabled=${current.offset === 0} @click=${() => go({ offset: Math.max(0, current.offset - PAGE) })}>
                  Previous
                </button>
                <span>${count(current.offset + 1)}–${count(last)} of ${count(shown.matched)}</span>
                <button ?disabled=${last >= shown.matched} @click=${() => go({ offset: current.offset + PAGE })}>Next</button>
              </div>
            `}
          `}
      ${command("malote queue ls --watch")}
    `;
  }

  return { title: "Queues", query: request(), view, changed, close: () => clearTimeout(typing) };
}

function queueRow({ name, paused, status, with_sessions, counts, rates }, now) {
  const dim = (n) => (n === 0 ? "zero" : "");
  const number = (n, kind = "") => html`<td class="number ${kind} ${dim(n)}">${count(n)}</td>`;
  return html`
    <tr key=${name}>
      <th scope="row">
        <a href=${queueAddress(name)}>${name}</a>
        ${paused && html`<span class="tag warn">paused</span>`}
        ${status && html`<span class="tag warn">${status.replace("_", " ")}</span>`}
      </th>
      ${number(counts.ready)} ${number(counts.locked)} ${number(counts.delayed + counts.scheduled, "wide")}
      ${number(counts.deferred, "wide")}
      <td class="number ${counts.dead_lettered ? "bad" : "zero"}">
        ${counts.dead_lettered
          ? html`<a href=${queueAddress(name, "dead-letters")}>${count(counts.dead_lettered)}</a>`
          : "0"}
      </td>
      <td class="number wide ${dim(counts.sessions)}">${with_sessions ? count(counts.sessions) : "–"}</td>
      ${number(counts.consumers, "wide")}
      <td class="number wide ${dim(rates.sent)}">${rate(rates.sent)}</td>
      <td class="number wide ${dim(rates.completed)}">${rate(rates.completed)}</td>
      <td class="number wide nowrap ${counts.oldest_at ? "" : "zero"}">${counts.oldest_at ? age(now - counts.oldest_at) : "–"}</td>
    </tr>
  `;
}

function createQueue(navigate) {
  openDialog({
    title: "Create queue",
    action: "Create",
    view: () => html`
      <label><span>Name</span><input name="name" required autocomplete="off" spellcheck="false" /></label>
      <label>
        <span>Order</span>
        <select name="sessions">
          <option value="none">First in, first out for the whole queue</option>
          <option value="dynamic">Sessions: in order for each customer, order, …</option>
        </select>
      </label>
      <div class="fields">
        <label><span>Lock time</span><input name="lock" value="30s" /></label>
        <label><span>Failures before dead-letter</span><input name="failed_max" type="number" min="1" value="10" /></label>
        <label><span>Messages expire after</span><input name="ttl" placeholder="never" /></label>
      </div>
    `,
    run: async (form) => {
      const name = form.get("name").trim();
      const settings = {
        sessions: form.get("sessions"),
        lock_ms: time(form, "lock", "Lock time"),
        failed_max: form.get("failed_max") ? Number(form.get("failed_max")) : null,
        ttl_ms: form.get("ttl").trim() ? time(form, "ttl", "Messages expire after") : null,
      };
      await put(path("queues", name), settings);
      notice(`Queue ${name} created`);
      navigate(queueAddress(name));
    },
  });
}

/** A duration of a form. */
export function time(form, name, label) {
  const ms = parseDuration(form.get(name));
  if (ms === undefined) throw new Error(`${label}: write a duration such as 30s, 5min or 2h`);
  return ms;
}
