// One topic: its rules, and which of them match a message.

import { del, get, path, post, put } from "../api.js";
import { command, confirm, empty, failure, loaded, loading, notice, openDialog, stat } from "../components.js";
import { count, shell } from "../format.js";
import { html } from "../html.js";
import { queueAddress, address } from "../router.js";
import { propertyText } from "../message.js";
import { propertiesOf } from "./publish.js";

/** Rules that are shown and tested. */
const RULES_MAX = 200;

/** A filter in words. */
export function filterText(filter) {
  if (filter === "all") return "all messages";
  if (filter === "none") return "no messages";
  const [[kind, value]] = Object.entries(filter);
  if (kind === "sql") return typeof value === "string" ? value : `${value.text} with ${JSON.stringify(value.parameters)}`;
  if (kind === "key") return `key is “${value}”`;
  if (kind === "pattern") return `key matches ${value}`;
  if (kind === "weight") return `a share of weight ${value}`;
  const pairs = kind === "headers" ? (value.values ?? {}) : value;
  const words = Object.entries(pairs).map(([name, one]) =>
    one && typeof one === "object" && !("$type" in one)
      ? Object.entries(one).map(([key, inner]) => `${key} = ${propertyText(inner)}`).join(", ")
      : `${name} = ${propertyText(one)}`,
  );
  const joined = value.match?.startsWith("any") ? " or " : " and ";
  return words.length ? words.join(joined) : "all messages";
}

/** The filters that the rules of a kind of topic may have. */
const FILTERS = {
  all: "All messages",
  sql: "SQL condition, e.g. total > 100",
  pattern: "Pattern of the key, e.g. eu.#",
  key: "Exact key",
  headers: "Properties, one name=value on each line",
  weight: "A share of the messages, by weight",
};
const FILTERS_OF = { direct: ["key"], fanout: ["all"], topic: ["pattern"], headers: ["headers"], hash: ["weight"] };
const FILTERS_OF_OTHERS = ["all", "sql", "pattern", "key", "headers"];

/** What the user typed for a new filter. */
function filterOf(kind, text) {
  if (kind === "all") return "all";
  if (kind === "headers") return { headers: { values: propertiesOf(text) } };
  if (kind === "weight") return { weight: Number(text) };
  return { [kind]: text.trim() };
}

export function open({ params, update, navigate }) {
  const { topic } = params;
  const info = { value: undefined, error: null };
  const rules = { value: undefined, error: null };
  const sample = { key: "", subject: "", properties: "" };
  let tested = null;
  let testError = null;
  let closed = false;
  let more = false;

  async function into(state, ask) {
    try {
      Object.assign(state, { value: await ask, error: null });
    } catch (error) {
      Object.assign(state, { error });
    }
    if (!closed) update();
  }

  function load() {
    tested = null;
    into(info, get(path("topics", topic)));
    return into(
      rules,
      get(path("topics", topic, "rules"), { max: RULES_MAX }).then((page) => {
        more = Boolean(page.next);
        return page.rules;
      }),
    );
  }
  load();

  const keyOf = (rule) => `${rule.queue}\n${rule.to_topic ?? ""}\n${rule.name}`;

  /** Asks the server about each rule: it decides exactly as it does for a message that is sent. */
  async function test(event) {
    event.preventDefault();
    testError = null;
    try {
      const message = { properties: propertiesOf(sample.properties) };
      if (sample.key) message.key = sample.key;
      if (sample.subject) message.subject = sample.subject;
      const results = new Map();
      for (const rule of rules.value ?? []) {
        const { filter, action } = rule;
        results.set(keyOf(rule), await post(path("rules", "test"), { filter, action, message }));
      }
      tested = results;
    } catch (error) {
      testError = error;
    }
    update();
  }

  function addSubscription() {
    openDialog({
      title: `Add a subscription to ${topic}`,
      action: "Add",
      view: () => html`
        <label><span>Name</span><input name="name" required autocomplete="off" spellcheck="false" /></label>
        <label>
          <span>Which messages</span>
          <select name="kind">
            ${(FILTERS_OF[info.value.spec.kind] ?? FILTERS_OF_OTHERS).map(
              (kind) => html`<option key=${kind} value=${kind}>${FILTERS[kind]}</option>`,
            )}
          </select>
        </label>
        <label><span>Condition</span><textarea name="text" rows="2" spellcheck="false"></textarea></label>
      `,
      run: async (form) => {
        const name = form.get("name").trim();
        const filter = filterOf(form.get("kind"), form.get("text"));
        await put(path("topics", topic, "subscriptions", name), { rules: [{ name: "default", filter }] });
        notice(`Subscription ${name} added`);
        await load();
      },
    });
  }

  function removeRule(rule) {
    const target = rule.to_topic ?? rule.queue;
    confirm({
      title: `Delete rule ${rule.name}`,
      text: `${target} gets no copies by this rule any more. Messages that it has already stay.`,
      action: "Delete the rule",
      run: async () => {
        const kind = rule.to_topic ? "topics" : "queues";
        await del(path("topics", topic, kind, target, "rules", rule.name));
        notice(`Rule ${rule.name} deleted`);
        await load();
      },
    });
  }

  function remove() {
    confirm({
      title: `Delete ${topic}`,
      text: "This deletes the topic, and its subscriptions with their messages. It cannot be undone. Bound queues stay.",
      action: "Delete the topic",
      word: topic,
      run: async () => {
        await del(path("topics", topic));
        notice(`Topic ${topic} deleted`);
        navigate("/ui/topics");
      },
    });
  }

  const set = (field) => (event) => {
    sample[field] = event.target.value;
    tested = null;
    update();
  };

  function ruleRow(rule) {
    const result = tested?.get(keyOf(rule));
    const prefix = `${topic}/Subscriptions/`;
    const target = rule.to_topic
      ? html`topic <a href=${address(["topics", rule.to_topic])}>${rule.to_topic}</a>`
      : html`<a href=${queueAddress(rule.queue)}>${rule.queue.startsWith(prefix) ? rule.queue.slice(prefix.length) : rule.queue}</a>`;
    return html`
      <tr key=${keyOf(rule)}>
        <th scope="row">${target}</th>
        <td class="break">${rule.name}</td>
        <td class="break">
          <code>${filterText(rule.filter)}</code>
          ${rule.action && html`<br /><span class="dim">then</span> <code>${typeof rule.action === "string" ? rule.action : rule.action.text}</code>`}
        </td>
        ${tested && html`<td class="nowrap">${result?.matches ? html`<span class="yes">matches</span>` : html`<span class="dim">no match</span>`}</td>`}
        <td class="number"><button class="quiet" aria-label="Delete rule ${rule.name}" @click=${() => removeRule(rule)}>Delete</button></td>
      </tr>
    `;
  }

  function ruleTable(list) {
    if (list.length === 0) return empty("No rules", "Messages that are sent to this topic are not copied anywhere.");
    return html`
      <div class="table-wrap">
        <table class="list">
          <thead>
            <tr>
              <th scope="col">Copies to</th>
              <th scope="col">Rule</th>
              <th scope="col">Which messages</th>
              ${tested && html`<th scope="col">Test message</th>`}
              <th scope="col"></th>
            </tr>
          </thead>
          <tbody>
            ${list.map(ruleRow)}
          </tbody>
        </table>
      </div>
      ${more && html`<p class="dim">The first ${RULES_MAX} rules.</p>`}
    `;
  }

  function tester() {
    const hits = tested ? [...tested.values()].filter((one) => one.matches).length : 0;
    return html`
      <section class="panel" aria-labelledby="tester">
        <div class="panel-head"><h2 id="tester">Test a message</h2></div>
        <form class="tester" @submit=${test}>
          <label><span>Key</span><input name="key" autocomplete="off" spellcheck="false" @input=${set("key")} /></label>
          <label><span>Subject</span><input name="subject" autocomplete="off" spellcheck="false" @input=${set("subject")} /></label>
          <label>
            <span>Properties, one <code>name=value</code> on each line</span>
            <textarea name="properties" rows="3" spellcheck="false" @input=${set("properties")}></textarea>
          </label>
          <div class="buttons"><button class="primary" ?disabled=${!rules.value?.length}>Test the rules</button></div>
          ${tested && html`<p role="status">${hits === 0 ? "No rule matches." : `${count(hits)} of ${count(tested.size)} rules match.`}</p>`}
          ${testError && html`<p class="problem" role="alert">${testError.message}</p>`}
        </form>
      </section>
    `;
  }

  function view() {
    const crumbs = html`<p class="crumbs"><a href="/ui/topics">Topics</a></p>`;
    if (info.error && !info.value) {
      return html`
        ${crumbs}
        <div class="title"><h1>${topic}</h1></div>
        ${failure(info.error, load)}
      `;
    }
    if (!info.value) return loading("the topic");
    const { spec, queues, scheduled, totals } = info.value;
    return html`
      ${crumbs}
      <div class="title">
        <h1>${topic} <span class="tag">${spec.kind}</span></h1>
        <div class="actions">
          <button class="primary" @click=${addSubscription}>Add subscription</button>
          <button @click=${load}>Refresh</button>
          <button @click=${remove}>Delete</button>
        </div>
      </div>
      <section class="stats" aria-label="Counts">
        ${stat("Queues", count(queues))} ${stat("Rules", count(info.value.rules))} ${stat("Scheduled", count(scheduled))}
        ${stat("Copies made", count(totals.copies))}
      </section>
      <div class="columns uneven">
        <section aria-label="Rules">${loaded(rules, "the rules", ruleTable, load)}</section>
        ${tester()}
      </div>
      ${command(`malote topic get ${shell(topic)}`)}
    `;
  }

  return { title: topic, query: { max: 0 }, view, close: () => (closed = true) };
}
