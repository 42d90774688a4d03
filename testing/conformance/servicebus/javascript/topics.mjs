// Topics: copies for subscriptions, rules with the rule manager, filters and actions, sessions, duplicates,
// forwarding.
// The entities are declared in ../entities.json, or created with the administration client.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { admin, bodies, fails, main, nothing, receive, with_client } from "./harness.mjs";

// A new topic, with subscriptions that match everything.
async function topic(...subscriptions) {
  const name = `t-${randomUUID().slice(0, 13)}`;
  await admin().createTopic(name);
  for (const subscription of subscriptions) await admin().createSubscription(name, subscription);
  return name;
}

async function every_subscription_gets_a_copy() {
  await with_client(async (bus) => {
    const name = await topic("a", "b");
    await bus.createSender(name).sendMessages([{ body: 1 }, { body: 2, applicationProperties: { k: "v" } }]);
    for (const subscription of ["a", "b"]) {
      const receiver = bus.createReceiver(name, subscription);
      const got = await receive(receiver, 2);
      assert.deepEqual(bodies(got), [1, 2]);
      assert.equal(got[1].applicationProperties.k, "v");
      await receiver.completeMessage(got[0]);
      await receiver.deadLetterMessage(got[1], { deadLetterReason: subscription });
      const dead = bus.createReceiver(name, subscription, { subQueueType: "deadLetter" });
      assert.equal((await receive(dead, 1))[0].deadLetterReason, subscription);
    }
  });
}

async function rules_are_made_listed_and_deleted() {
  await with_client(async (bus) => {
    const name = await topic("s");
    const rules = bus.createRuleManager(name, "s");
    const listed = async () => {
      const all = [];
      // Without a rule, the client lists one that is undefined.
      for await (const rule of rules.listRules()) if (rule) all.push(rule);
      return all.sort((a, b) => (a.name < b.name ? -1 : 1));
    };
    assert.deepEqual((await listed()).map((rule) => rule.name), ["$Default"]);
    await rules.deleteRule("$Default");
    assert.deepEqual(await listed(), []);
    await rules.createRule("sql", { sqlExpression: "price > 10" }, { sqlExpression: "SET dear = true" });
    await rules.createRule("news", { subject: "news", applicationProperties: { lang: "de" } });
    await assert.rejects(() => rules.createRule("sql", { sqlExpression: "price > 11" }), /exists|different rule/);
    await assert.rejects(() => rules.createRule("bad", { sqlExpression: "price >" }));
    await assert.rejects(() => rules.deleteRule("no-such-rule"));
    const [news, sql] = await listed();
    assert.equal(news.filter.subject, "news");
    assert.deepEqual(news.filter.applicationProperties, { lang: "de" });
    assert.equal(sql.filter.sqlExpression, "price > 10");
    assert.equal(sql.action.sqlExpression, "SET dear = true");

    await bus.createSender(name).sendMessages([
      { body: "cheap", applicationProperties: { price: 5 } },
      { body: "dear", applicationProperties: { price: 50 } },
      { body: "nachricht", subject: "news", applicationProperties: { lang: "de" } },
      { body: "news", subject: "news", applicationProperties: { lang: "en" } },
    ]);
    const receiver = bus.createReceiver(name, "s", { receiveMode: "receiveAndDelete" });
    const got = await receive(receiver, 2);
    assert.deepEqual(bodies(got), ["dear", "nachricht"]);
    assert.equal(got[0].applicationProperties.dear, true);
    await nothing(receiver);
  });
}

async function filters_of_a_configuration_work() {
  await with_client(async (bus) => {
    const mark = randomUUID();
    await bus.createSender("news").sendMessages([
      { body: mark, subject: "sport", applicationProperties: { size: 50 } },
      { body: mark, subject: "other", applicationProperties: { size: 11 } },
      { body: mark, subject: "other", applicationProperties: { size: 1 } },
    ].map((message) => ({ ...message, sessionId: "js" })));
    const sport = await receive(bus.createReceiver("news", "sport"), 1);
    assert.deepEqual([sport[0].body, sport[0].subject], [mark, "sport"]);
    const large = await receive(bus.createReceiver("news", "large"), 1);
    assert.deepEqual([large[0].subject, large[0].applicationProperties.seen], ["large", "yes"]);
    const session = await bus.acceptSession("news", "by-session", "js");
    assert.equal((await receive(session, 3)).length, 3);
  });
}

async function a_topic_drops_duplicates() {
  await with_client(async (bus) => {
    const messageId = randomUUID();
    const sender = bus.createSender("once");
    await sender.sendMessages({ body: "first", messageId });
    await sender.sendMessages({ body: "second", messageId });
    const receiver = bus.createReceiver("once", "s", { receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await receive(receiver, 1)), ["first"]);
    await nothing(receiver);
  });
}

async function messages_are_forwarded() {
  await with_client(async (bus) => {
    const name = await topic();
    const target = `q-${randomUUID().slice(0, 13)}`;
    await admin().createQueue(target);
    await admin().createSubscription(name, "forwarding", { forwardTo: target });
    await bus.createSender(name).sendMessages({ body: "on" });
    assert.deepEqual(bodies(await receive(bus.createReceiver(target), 1)), ["on"]);
  });
}

async function scheduled_messages_of_a_topic() {
  await with_client(async (bus) => {
    const name = await topic("s");
    const sender = bus.createSender(name);
    const hour = new Date(Date.now() + 3_600_000);
    const [number] = await sender.scheduleMessages({ body: "never" }, hour);
    assert.equal((await admin().getTopicRuntimeProperties(name)).scheduledMessageCount, 1);
    await sender.cancelScheduledMessages(number);
    await sender.scheduleMessages({ body: "soon" }, new Date(Date.now() + 1_000));
    const receiver = bus.createReceiver(name, "s", { receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await receive(receiver, 1)), ["soon"]);
  });
}

async function receiving_from_topics_and_sending_to_subscriptions_fails() {
  await with_client(async (bus) => {
    const name = await topic("s");
    const missing = bus.createReceiver(name, "no-such-subscription");
    await fails("MessagingEntityNotFound", () => missing.receiveMessages(1));
    await assert.rejects(() => bus.createReceiver(name).receiveMessages(1), /subscription/);
    await assert.rejects(() => bus.createSender(`${name}/Subscriptions/s`).sendMessages({ body: "x" }), /topic/);
  });
}

await main(
  every_subscription_gets_a_copy,
  rules_are_made_listed_and_deleted,
  filters_of_a_configuration_work,
  a_topic_drops_duplicates,
  messages_are_forwarded,
  scheduled_messages_of_a_topic,
  receiving_from_topics_and_sending_to_subscriptions_fails,
);
