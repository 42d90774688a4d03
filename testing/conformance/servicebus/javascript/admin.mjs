// Administration: queues, topics, subscriptions and rules. The server has keys and a certificate.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { ADMIN, admin, AMQP, connection, fails, main, ServiceBusAdministrationClient, ServiceBusClient } from "./harness.mjs";

const ROOT = ["Root", process.env.MALOTE_ROOT];
const READER = ["Reader", process.env.MALOTE_READER];
const NEVER = "P10675199DT2H48M5.4775807S";
const name = (kind = "q") => `${kind}-${randomUUID().slice(0, 13)}`;
const a = admin(ADMIN, ...ROOT);

async function all(iterator) {
  const found = [];
  for await (const one of iterator) found.push(one);
  return found;
}

async function a_queue_has_the_defaults_of_the_service() {
  const queue = name();
  const made = await a.createQueue(queue);
  const { _response, ...described } = await a.getQueue(queue);
  assert.deepEqual(described, {
    name: queue,
    forwardTo: undefined,
    userMetadata: undefined,
    lockDuration: "PT1M",
    maxSizeInMegabytes: 1024,
    maxDeliveryCount: 10,
    enablePartitioning: false,
    requiresSession: false,
    enableBatchedOperations: true,
    defaultMessageTimeToLive: NEVER,
    autoDeleteOnIdle: NEVER,
    requiresDuplicateDetection: false,
    duplicateDetectionHistoryTimeWindow: "PT10M",
    deadLetteringOnMessageExpiration: false,
    forwardDeadLetteredMessagesTo: undefined,
    authorizationRules: undefined,
    status: "Active",
    enableExpress: false,
    availabilityStatus: "Available",
    maxMessageSizeInKilobytes: 1024,
  });
  assert.equal(made.name, queue);
  assert.equal(await a.queueExists(queue), true);
  await a.deleteQueue(queue);
  assert.equal(await a.queueExists(queue), false);
  await fails("MessageEntityNotFoundError", () => a.getQueue(queue));
  await fails("MessageEntityNotFoundError", () => a.deleteQueue(queue));
}

async function every_property_of_a_queue_is_returned() {
  const [queue, target] = [name(), name("target")];
  await a.createQueue(target);
  const asked = {
    lockDuration: "PT45S",
    maxSizeInMegabytes: 2048,
    requiresDuplicateDetection: true,
    defaultMessageTimeToLive: "P2D",
    deadLetteringOnMessageExpiration: true,
    duplicateDetectionHistoryTimeWindow: "PT1M",
    maxDeliveryCount: 8,
    enableBatchedOperations: false,
    userMetadata: "<metadata> & more",
    autoDeleteOnIdle: "PT1H",
    maxMessageSizeInKilobytes: 2048,
    authorizationRules: [
      { claimType: "SharedAccessKey", accessRights: ["Manage", "Send", "Listen"], keyName: "key", primaryKey: "a", secondaryKey: "b" },
    ],
  };
  await a.createQueue(queue, { ...asked, forwardTo: target, forwardDeadLetteredMessagesTo: target });
  const described = await a.getQueue(queue);
  for (const [property, value] of Object.entries(asked)) assert.deepEqual(described[property], value, property);
  assert.equal(described.forwardTo, `sb://${ADMIN}/${target}`);
  assert.equal(described.forwardDeadLetteredMessagesTo, `sb://${ADMIN}/${target}`);
  described.forwardTo = undefined;
  described.maxDeliveryCount = 9;
  const changed = await a.updateQueue(described);
  assert.deepEqual([changed.forwardTo, changed.maxDeliveryCount, changed.lockDuration], [undefined, 9, "PT45S"]);
}

async function refusals_have_client_error_codes() {
  const queue = name();
  const made = await a.createQueue(queue);
  const exists = await fails("MessageEntityAlreadyExistsError", () => a.createQueue(queue));
  assert.equal(exists.statusCode, 409);
  await fails("MessageEntityAlreadyExistsError", () => a.createTopic(queue));
  const bad = await fails("ServiceError", () => a.createQueue(name(), { lockDuration: "PT6M" }));
  assert.equal(bad.statusCode, 400);
  assert.match(bad.message, /LockDuration/);
  await fails("ServiceError", () => a.updateQueue({ ...made, requiresSession: true }));
  await fails("MessageEntityNotFoundError", () => a.updateQueue({ ...made, name: "no-such-queue" }));
  await fails("MessageEntityNotFoundError", () => a.getTopic("no-such-topic"));
  await fails("MessageEntityNotFoundError", () => a.getSubscription("no-such-topic", "s"));
  await fails("MessageEntityNotFoundError", () => a.createSubscription("no-such-topic", "s"));
  for (const key of [["Root", "wrong"], ["nobody", ROOT[1]]]) {
    const other = admin(ADMIN, ...key);
    await fails("UnauthorizedRequestError", () => other.getQueue(queue));
    await fails("UnauthorizedRequestError", () => other.createQueue(name()));
  }
  const reader = admin(ADMIN, ...READER);
  for (const call of [() => reader.getQueue(queue), () => reader.createQueue(name()), () => reader.getQueue("no-such-queue")]) {
    const denied = await fails("InvalidOperationError", call);
    assert.equal(denied.statusCode, 403);
  }
  assert.deepEqual(await all(reader.listQueues()), []);
}

async function lists_are_paged() {
  const base = name("page");
  const mine = Array.from({ length: 7 }, (_, i) => `${base}-${i}`);
  for (const queue of mine) await a.createQueue(queue);
  let pages = 0;
  const found = [];
  for await (const page of a.listQueues().byPage({ maxPageSize: 3 })) {
    pages += 1;
    assert.ok(page.length <= 3);
    found.push(...page.map((queue) => queue.name));
  }
  assert.ok(pages >= 3);
  assert.deepEqual(found.filter((queue) => queue.startsWith(base)), mine);
  const described = await all(a.listQueuesRuntimeProperties());
  assert.equal(described.filter((queue) => queue.name.startsWith(base)).length, 7);
}

async function topics_and_subscriptions() {
  const topic = name("t");
  await a.createTopic(topic, { userMetadata: "m", defaultMessageTimeToLive: "PT1H", requiresDuplicateDetection: true });
  const described = await a.getTopic(topic);
  assert.deepEqual([described.name, described.userMetadata, described.defaultMessageTimeToLive], [topic, "m", "PT1H"]);
  assert.equal((await a.updateTopic({ ...described, userMetadata: "n" })).userMetadata, "n");
  const asked = {
    lockDuration: "PT30S",
    requiresSession: true,
    maxDeliveryCount: 4,
    defaultMessageTimeToLive: "PT5M",
    deadLetteringOnFilterEvaluationExceptions: false,
    userMetadata: "s",
  };
  const made = await a.createSubscription(topic, "s", {
    ...asked,
    defaultRuleOptions: { name: "first", filter: { subject: "x" } },
  });
  assert.deepEqual([made.subscriptionName, made.topicName], ["s", topic]);
  const subscription = await a.getSubscription(topic, "s");
  for (const [property, value] of Object.entries(asked)) assert.deepEqual(subscription[property], value, property);
  const changed = await a.updateSubscription({ ...subscription, maxDeliveryCount: 5 });
  assert.equal(changed.maxDeliveryCount, 5);
  assert.deepEqual((await all(a.listRules(topic, "s"))).map((rule) => rule.name), ["first"]);
  assert.equal(await a.subscriptionExists(topic, "s"), true);
  assert.equal(await a.subscriptionExists(topic, "no"), false);
  assert.equal((await a.getTopicRuntimeProperties(topic)).subscriptionCount, 1);
  assert.equal((await a.getSubscriptionRuntimeProperties(topic, "s")).totalMessageCount, 0);
  assert.equal((await all(a.listSubscriptions(topic))).length, 1);
  assert.ok((await all(a.listTopics())).some((other) => other.name === topic));
  await a.deleteSubscription(topic, "s");
  await a.deleteTopic(topic);
  assert.equal(await a.topicExists(topic), false);
}

async function rules_of_every_kind() {
  const topic = name("t");
  await a.createTopic(topic);
  await a.createSubscription(topic, "s");
  const rule = async (title, filter, action) => {
    await a.createRule(topic, "s", title, filter, action);
    return a.getRule(topic, "s", title);
  };
  const sql = await rule("sql", { sqlExpression: "a > @n", sqlParameters: { "@n": 1.5 } }, { sqlExpression: "SET b = 1" });
  assert.deepEqual(sql.filter, { sqlExpression: "a > @n", sqlParameters: { "@n": 1.5 } });
  assert.equal(sql.action.sqlExpression, "SET b = 1");
  const properties = { text: "a<b", number: 7, yes: true, at: new Date(1_700_000_000_000) };
  const correlation = await rule("correlation", { subject: "news", correlationId: "c", applicationProperties: properties });
  assert.deepEqual([correlation.filter.subject, correlation.filter.correlationId], ["news", "c"]);
  assert.deepEqual(correlation.filter.applicationProperties, properties);
  const updated = await a.updateRule(topic, "s", { ...sql, filter: { sqlExpression: "a < 1" } });
  assert.equal(updated.filter.sqlExpression, "a < 1");
  const names = (await all(a.listRules(topic, "s"))).map((one) => one.name);
  assert.deepEqual(names, ["$Default", "correlation", "sql"]);
  await a.deleteRule(topic, "s", "sql");
  assert.equal(await a.ruleExists(topic, "s", "sql"), false);
  await fails("MessageEntityNotFoundError", () => a.deleteRule(topic, "s", "sql"));
  await fails("ServiceError", () => a.createRule(topic, "s", "bad", { sqlExpression: "a >" }));
}

async function counts_are_those_of_the_messages() {
  const queue = name();
  await a.createQueue(queue, { requiresSession: true });
  const bus = new ServiceBusClient(connection(AMQP, ...ROOT), { retryOptions: { maxRetries: 0 } });
  const sender = bus.createSender(queue);
  await sender.sendMessages([1, 2, 3].map((body) => ({ body, sessionId: "s" })));
  await sender.scheduleMessages({ body: "later", sessionId: "s" }, new Date(Date.now() + 3_600_000));
  const receiver = await bus.acceptNextSession(queue);
  const [message] = await receiver.receiveMessages(1);
  await receiver.deadLetterMessage(message);
  const described = await a.getQueueRuntimeProperties(queue);
  assert.deepEqual(
    [described.activeMessageCount, described.deadLetterMessageCount, described.scheduledMessageCount, described.totalMessageCount],
    [2, 1, 1, 4],
  );
  assert.ok(described.sizeInBytes > 0 && Math.abs(Date.now() - described.createdAt.getTime()) < 300_000);
  await bus.close();
}

async function the_namespace_describes_itself() {
  const described = await a.getNamespaceProperties();
  assert.deepEqual([described.name, described.messagingSku], ["localhost", "Standard"]);
}

async function tls_and_the_amqp_port_work() {
  // With default settings: the client uses TLS, and Node trusts the certificate because of NODE_EXTRA_CA_CERTS.
  for (const at of [ADMIN, AMQP]) {
    const over_tls = new ServiceBusAdministrationClient(connection(at, ...ROOT));
    assert.equal((await over_tls.getQueue("configured")).maxDeliveryCount, 3);
    assert.equal((await admin(at, ...ROOT).getQueue("configured")).maxDeliveryCount, 3);
  }
}

await main(
  a_queue_has_the_defaults_of_the_service,
  every_property_of_a_queue_is_returned,
  refusals_have_client_error_codes,
  lists_are_paged,
  topics_and_subscriptions,
  rules_of_every_kind,
  counts_are_those_of_the_messages,
  the_namespace_describes_itself,
  tls_and_the_amqp_port_work,
);
