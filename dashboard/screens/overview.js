// All queues at a glance: rates, backlog, what needs attention, connections and disk. An empty broker shows how to begin.

import { get, path } from "../api.js";
import { codeBlock, command, loading, stat } from "../components.js";
import { age, bytes, count, plural, rate } from "../format.js";
import { html } from "../html.js";
import { address, queueAddress } from "../router.js";
import { snippets } from "../snippets.js";

/** Points of a plot: an hour of history, and one of each event since. */
const POINTS_MAX = 4000;
const HOUR_MS = 3_600_000;

export function open({ update, overview, now }) {
  let points = [];
  let closed = false;
  let chosen = { kind: 0, language: 0 };
  get(path("history")).then(
    (history) => {
      if (closed) return;
      points = [...history.points, ...points].slice(-POINTS_MAX);
      update();
    },
    // The plots then begin now.
    () => {},
  );

  function live(current) {
    const { counts, rates } = current;
    points.push({
      at: current.at,
      ready: counts.ready,
      locked: counts.locked,
      dead_lettered: counts.dead_lettered,
      in_per_s: rates.sent,
      out_per_s: rates.completed,
    });
    while (points.length > POINTS_MAX || (points.length && points[0].at < current.at - HOUR_MS)) points.shift();
  }

  function view() {
    const current = overview();
    if (!current) return loading("the overview");
    if (current.queues === 0) return begin(current);
    const { counts, rates } = current;
    const later = counts.delayed + counts.scheduled;
    return html`
      <div class="title"><h1>Overview</h1></div>
      <section class="stats" aria-label="Totals">
        ${stat("Sent", html`${rate(rates.sent)}<small>/s</small>`)}
        ${stat("Completed", html`${rate(rates.completed)}<small>/s</small>`)}
        ${stat("Ready", count(counts.ready), { href: address(["queues"], { sort: "ready", descending: true }) })}
        ${stat("Locked", count(counts.locked), { href: address(["queues"], { sort: "locked", descending: true }), title: "Received, and not settled yet" })}
        ${stat("Later", count(later), { href: address(["queues"], { sort: "later", descending: true }), title: "Delayed and scheduled" })}
        ${stat("Dead letters", count(counts.dead_lettered), { href: "/ui/dead-letters", tone: counts.dead_lettered > 0 ? "bad" : "" })}
        ${stat("Oldest message", counts.oldest_at ? age(now() - counts.oldest_at) : "–", { href: address(["queues"], { sort: "oldest", descending: true }) })}
      </section>
      <div class="columns">
        ${plotPanel("Messages per second", points, [
          { name: "Sent", color: "--plot-1", values: points.map((point) => point.in_per_s) },
          { name: "Completed", color: "--plot-2", values: points.map((point) => point.out_per_s) },
        ], rate)}
        ${plotPanel("Messages in queues", points, [
          { name: "Ready", color: "--plot-1", values: points.map((point) => point.ready) },
          { name: "Locked", color: "--plot-2", values: points.map((point) => point.locked) },
          { name: "Dead letters", color: "--plot-3", values: points.map((point) => point.dead_lettered) },
        ], compact)}
      </div>
      <div class="columns uneven">
        ${attentionPanel(current, now())} ${serverPanel(current)}
      </div>
      ${command("malote overview --watch")}
    `;
  }

  /** How to send a first message. */
  function begin(current) {
    const groups = snippets(current, location, { name: "hello", with_sessions: false, exists: false });
    return html`
      <div class="title"><h1>Welcome</h1></div>
      <p class="lead">This broker has no queue yet. Send a first message with the client that you already use:</p>
      ${snippetView(groups, chosen, (next) => {
        chosen = next;
        update();
      })}
      <p class="dim">The queue then appears here. You can also <a href="/ui/queues">create a queue</a> first.</p>
    `;
  }

  return { title: "Overview", query: { max: 0 }, view, live, close: () => (closed = true) };
}

/** 12000 → "12k", for axes. */
export const compact = (n) => (n >= 1e6 ? `${n / 1e6}M` : n >= 1e4 ? `${Math.round(n / 100) / 10}k` : count(n));

/** A plot with its title and legend. */
export const plotPanel = (label, points, series, format) => html`
  <section class="panel">
    <div class="panel-head">
      <h2>${label}</h2>
      <ul class="legend">
        ${series.map((one) => html`<li key=${one.name} class=${one.color.slice(2)}>${one.name}</li>`)}
      </ul>
    </div>
    <time-plot
      .data=${{ label, times: points.map((point) => point.at), series, format, gapMs: 45_000 }}
    ></time-plot>
  </section>
`;

const ATTENTION = {
  disk_full: () => "The disk is too full to accept messages. Receiving still works.",
  diverged: () => "A replay of the journal gave another state. Keep a backup, and report it.",
  damaged: (n) => `${plural(n, "part")} of the journal ${n === 1 ? "is" : "are"} damaged. Run malote verify.`,
  dead_letters_grow: (n) => `${plural(n, "dead letter")}, and more are added`,
  stuck: (n) => `${plural(n, "message")} ready for more than a minute, and none is delivered`,
  backlog: (n) => `High backlog: ${plural(n, "message")}`,
  paused: (n) => `Paused while ${plural(n, "message")} wait${n === 1 ? "s" : ""}`,
  dead_letters: (n) => plural(n, "dead letter"),
};

const URGENT = ["disk_full", "diverged", "damaged", "dead_letters_grow"];

function attentionPanel(current) {
  return html`
    <section class="panel" aria-labelledby="attention">
      <div class="panel-head"><h2 id="attention">Needs attention</h2></div>
      ${current.attention.length === 0
        ? html`<p class="calm">Nothing. All queues are in order.</p>`
        : html`
            <ul class="attention">
              ${current.attention.map(({ kind, queue, count: n }) => {
                const dead = kind.startsWith("dead_letters");
                const href = !queue ? null : dead ? address(["dead-letters"], { queue }) : queueAddress(queue);
                const text = html`
                  ${queue && html`<span class="queue-name">${queue}</span>`}<span>${ATTENTION[kind]?.(n) ?? kind}</span>
                `;
                return html`
                  <li key=${`${kind} ${queue}`} class=${URGENT.includes(kind) ? "urgent" : ""}>
                    ${href ? html`<a href=${href}>${text}</a>` : html`<div>${text}</div>`}
                  </li>
                `;
              })}
            </ul>
            ${current.attention_more > 0 && html`<p class="dim">and ${count(current.attention_more)} more</p>`}
          `}
    </section>
  `;
}

const PROTOCOLS = {
  http: "HTTP",
  native: "Native",
  sqs: "Amazon SQS",
  amqp: "AMQP 1.0",
  rabbitmq: "AMQP 0-9-1",
  "servicebus-admin": "Service Bus administration",
  "rabbitmq-management": "RabbitMQ management",
};

function serverPanel({ connections, disk, queues }) {
  const open = Object.entries(connections).filter(([, n]) => n > 0);
  const used = disk.journal_bytes + disk.spare_bytes + disk.snapshot_bytes;
  return html`
    <section class="panel" aria-labelledby="server">
      <div class="panel-head"><h2 id="server">Server</h2></div>
      <dl class="facts rows">
        <div><dt>Queues</dt><dd><a href="/ui/queues">${count(queues)}</a></dd></div>
        ${open.map(
          ([name, n]) => html`
            <div key=${name}><dt>${PROTOCOLS[name] ?? name}</dt><dd>${plural(n, "connection")}</dd></div>
          `,
        )}
        <div><dt>Disk in use</dt><dd title="Journal, spare segments and snapshots">${bytes(used)}</dd></div>
        <div>
          <dt>Disk free</dt>
          <dd class=${disk.publish_allowed ? "" : "bad"}>${disk.free_bytes ? bytes(disk.free_bytes) : "unknown"}</dd>
        </div>
      </dl>
    </section>
  `;
}

/** Programs by protocol and language. */
export function snippetView(groups, chosen, choose) {
  const group = groups[chosen.kind] ?? groups[0];
  const language = group.languages[chosen.language] ?? group.languages[0];
  const choice = (label, items, current, pick) => html`
    <div class="choice" role="group" aria-label=${label}>
      ${items.map(
        (item, index) => html`
          <button key=${item.name} aria-pressed=${String(item === current)} @click=${() => pick(index)}>${item.name}</button>
        `,
      )}
    </div>
  `;
  return html`
    <div class="snippets">
      ${choice("Protocol", groups, group, (kind) => choose({ kind, language: 0 }))}
      ${group.languages.length > 1 && choice("Language", group.languages, language, (index) => choose({ kind: groups.indexOf(group), language: index }))}
      ${codeBlock(language.code)}
    </div>
  `;
}
