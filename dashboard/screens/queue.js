// One queue: what happens in it, and tabs with its contents and settings.

import { del, get, path, post } from "../api.js";
import { command, confirm, failure, loading, notice, noticeError, stat, tabs } from "../components.js";
import { age, bytes, count, plural, rate, shell } from "../format.js";
import { html } from "../html.js";
import { queueAddress } from "../router.js";
import { snippets } from "../snippets.js";
import { compact, plotPanel, snippetView } from "./overview.js";
import { publish } from "./publish.js";
import { open as dead } from "./queue-dead.js";
import { open as messages } from "./queue-messages.js";
import { open as sessions } from "./queue-sessions.js";
import { open as settings } from "./queue-settings.js";

const HOUR_MS = 3_600_000;

/** The panels behind the tabs. */
const TABS = {
  messages: (context) => messages(context, undefined),
  sessions,
  scheduled: (context) => messages(context, "scheduled"),
  "dead-letters": dead,
  settings,
  connect,
};

export function open(context) {
  const { params, update, overview, now, navigate } = context;
  const name = params.queue;
  const tab = TABS[params.tab] ? params.tab : "messages";
  let points = [];
  let closed = false;
  const info = { value: undefined, error: null };
  const panel = TABS[tab]({ ...context, name, info, reload: load, row });

  function load() {
    return get(path("queues", name)).then(
      (value) => {
        Object.assign(info, { value, error: null });
        if (!closed) update();
      },
      (error) => {
        Object.assign(info, { error });
        if (!closed) update();
      },
    );
  }
  load();
  get(path("queues", name, "history")).then(
    (history) => {
      points = [...history.points, ...points];
      if (!closed) update();
    },
    // The plots then begin now.
    () => {},
  );

  /** The live counts of this queue. */
  function row() {
    return overview()?.rows.find((one) => one.name === name);
  }

  function live(current) {
    const { counts, rates } = row() ?? {};
    if (!counts) return;
    points.push({
      at: current.at,
      ready: counts.ready,
      locked: counts.locked,
      dead_lettered: counts.dead_lettered,
      in_per_s: rates.sent,
      out_per_s: rates.completed,
    });
    while (points.length && points[0].at < current.at - HOUR_MS) points.shift();
    panel.live?.();
  }

  async function pause(paused) {
    try {
      await post(path("queues", name, paused ? "pause" : "resume"));
      notice(paused ? "Delivery is paused" : "Delivery goes on");
      await load();
    } catch (error) {
      noticeError(error);
    }
  }

  function purge() {
    confirm({
      title: `Purge ${name}`,
      text: "This deletes all messages of the queue that are not locked. It cannot be undone. Dead letters stay.",
      action: "Delete the messages",
      word: name,
      run: async () => {
        const { removed } = await post(path("queues", name, "purge"));
        notice(`${plural(removed, "message")} deleted`);
        panel.refresh?.();
      },
    });
  }

  function remove() {
    confirm({
      title: `Delete ${name}`,
      text: "This deletes the queue with its messages and dead letters. It cannot be undone.",
      action: "Delete the queue",
      word: name,
      run: async () => {
        await del(path("queues", name));
        notice(`Queue ${name} deleted`);
        navigate("/ui/queues");
      },
    });
  }

  const plots = () => html`
    <div class="columns">
      ${plotPanel("Messages per second", points, [
        { name: "In", color: "--plot-1", values: points.map((point) => point.in_per_s) },
        { name: "Out", color: "--plot-2", values: points.map((point) => point.out_per_s) },
      ], rate)}
      ${plotPanel("Messages", points, [
        { name: "Ready", color: "--plot-1", values: points.map((point) => point.ready) },
        { name: "Locked", color: "--plot-2", values: points.map((point) => point.locked) },
        { name: "Dead letters", color: "--plot-3", values: points.map((point) => point.dead_lettered) },
      ], compact)}
    </div>
  `;

  function view() {
    if (info.error && !info.value) {
      return html`
        <div class="title"><h1>${name}</h1></div>
        ${failure(info.error, load)}
      `;
    }
    if (!info.value) return loading("the queue");
    const shown = row();
    const counts = shown?.counts ?? info.value.counts;
    const rates = shown?.rates ?? {};
    const paused = shown?.paused ?? info.value.paused;
    const withSessions = info.value.spec.sessions !== "none";
    const items = [
      { id: "messages", label: "Messages" },
      withSessions && { id: "sessions", label: "Sessions", count: counts.sessions && count(counts.sessions) },
      { id: "scheduled", label: "Scheduled", count: counts.scheduled && count(counts.scheduled) },
      { id: "dead-letters", label: "Dead letters", count: counts.dead_lettered && count(counts.dead_lettered) },
      { id: "settings", label: "Settings" },
      { id: "connect", label: "Connect" },
    ].filter(Boolean);
    return html`
      <p class="crumbs"><a href="/ui/queues">Queues</a></p>
      <div class="title">
        <h1>
          ${name} ${paused && html`<span class="tag warn">paused</span>`}
          ${withSessions && html`<span class="tag">sessions</span>`}
        </h1>
        <div class="actions">
          <button class="primary" @click=${() => publish({ ...context, name, withSessions, done: () => panel.refresh?.() })}>Publish</button>
          <button @click=${() => pause(!paused)}>${paused ? "Resume" : "Pause"}</button>
          <button @click=${purge}>Purge</button>
          <button @click=${remove}>Delete</button>
        </div>
      </div>
      <section class="stats" aria-label="Counts">
        ${stat("In", html`${rate(rates.sent)}<small>/s</small>`)} ${stat("Out", html`${rate(rates.completed)}<small>/s</small>`)}
        ${stat("Ready", count(counts.ready))} ${stat("Locked", count(counts.locked), { title: "Received, and not settled yet" })}
        ${stat("Delayed", count(counts.delayed))} ${stat("Deferred", count(counts.deferred))}
        ${stat("Oldest", counts.oldest_at ? age(now() - counts.oldest_at) : "–")} ${stat("Size", bytes(counts.bytes))}
      </section>
      ${tab === "messages" && plots()}
      ${tabs("Parts of the queue", items.map((item) => ({ ...item, href: queueAddress(name, item.id === "messages" ? undefined : item.id) })), tab)}
      <section class="tab-panel">${panel.view()}</section>
    `;
  }

  return {
    title: name,
    query: { queue: name, max: 1 },
    view,
    live,
    changed: (query) => panel.changed?.(query),
    close: () => {
      closed = true;
      panel.close?.();
    },
  };
}

/** Programs that use this queue. */
function connect({ name, info, update, overview }) {
  let chosen = { kind: 0, language: 0 };
  return {
    view() {
      if (!overview() || !info.value) return loading("the addresses");
      const queue = { name, with_sessions: info.value.spec.sessions !== "none", exists: true };
      const choose = (next) => {
        chosen = next;
        update();
      };
      return html`
        ${snippetView(snippets(overview(), location, queue), chosen, choose)}
        ${command(`malote queue get ${shell(name)}`)}
      `;
    },
  };
}
