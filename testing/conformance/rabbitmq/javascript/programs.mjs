// Whole programs as applications write them: workers, dead letters, poison messages, work queues, requests.

import { randomUUID } from "node:crypto";
import { check, confirming, connected, eventually, name, same, within } from "./harness.mjs";

const json = (value) => Buffer.from(JSON.stringify(value));
const read = (message) => JSON.parse(message.content.toString());

// Acknowledges what `handle` accepts, and rejects the rest without requeueing.
const work = (channel, queue, handle) =>
  channel.consume(queue, async (message) => {
    if (!message) return;
    try {
      await handle(read(message), message);
      channel.ack(message);
    } catch {
      channel.nack(message, false, false);
    }
  });

const depth = async (channel, queue) => (await channel.checkQueue(queue)).messageCount;

check("two kinds of jobs have their own exchanges and queues", () =>
  connected(async (connection) => {
    const channel = await connection.createConfirmChannel();
    const kinds = {};
    for (const kind of ["email", "report"]) {
      const [exchange, queue] = [name(`${kind}-exchange`), name(`${kind}-queue`)];
      await channel.assertExchange(exchange, "direct", { durable: true });
      await channel.assertQueue(queue, { durable: true });
      await channel.bindQueue(queue, exchange, kind);
      kinds[kind] = { exchange, queue, done: [] };
    }
    const send = (kind, data) =>
      channel.publish(kinds[kind].exchange, kind, json({ type: kind, data, retryCount: 0 }), {
        persistent: true,
        timestamp: Date.now(),
      });
    for (let index = 0; index < 50; index += 1) send("email", { to: `user-${index}` });
    send("email", { to: null });
    send("report", { id: 1 });
    await channel.waitForConfirms();
    const worker = await connection.createChannel();
    for (const { queue, done } of Object.values(kinds)) {
      await work(worker, queue, async ({ data }) => {
        if (data.to === null) throw new Error("no address");
        done.push(data.to ?? data.id);
      });
    }
    await eventually(() => kinds.email.done.length === 50 && kinds.report.done.length === 1);
    same(kinds.email.done, Array.from({ length: 50 }, (_, index) => `user-${index}`));
    await worker.close();
    for (const { exchange, queue } of Object.values(kinds)) {
      // The rejected message is gone, because the queue has no dead-letter exchange.
      same(await depth(channel, queue), 0);
      await channel.deleteQueue(queue);
      await channel.deleteExchange(exchange);
    }
  }));

check("failed orders go to the dead-letter exchange", () =>
  connected(async (connection) => {
    const [orders, dlx] = [name("orders"), name("orders.dlx")];
    const [emails, failed] = [name("email-notifications"), name("email-notifications.failed")];
    const setup = await connection.createConfirmChannel();
    await setup.assertExchange(dlx, "direct", { durable: true });
    await setup.assertQueue(failed, { durable: true });
    await setup.bindQueue(failed, dlx, failed);
    await setup.assertExchange(orders, "topic", { durable: true });
    const consumer = await connection.createChannel();
    await consumer.prefetch(10);
    await consumer.assertQueue(emails, {
      durable: true,
      arguments: {
        "x-dead-letter-exchange": dlx,
        "x-dead-letter-routing-key": failed,
        "x-message-ttl": 86_400_000,
      },
    });
    await consumer.bindQueue(emails, orders, "order.created");
    await consumer.bindQueue(emails, orders, "order.updated");
    const done = [];
    await work(consumer, emails, async (order) => {
      if (order.total < 0) throw new Error("invalid total");
      done.push(order.orderId);
    });
    const ids = [];
    for (const [key, order] of [
      ["order.created", { orderId: "a", total: 149.99 }],
      ["order.deleted", { orderId: "nobody", total: 1 }],
      ["order.updated", { orderId: "b", total: -1 }],
      ["order.created", { orderId: "c", total: 2 }],
    ]) {
      const messageId = randomUUID();
      ids.push(messageId);
      const options = { persistent: true, contentType: "application/json", messageId, timestamp: Date.now() };
      if (!setup.publish(orders, key, json(order), options)) await new Promise((go) => setup.once("drain", go));
    }
    await setup.waitForConfirms();
    const dead = await eventually(() => setup.get(failed, { noAck: true }));
    await eventually(() => done.length === 2);
    same(done, ["a", "c"]);
    same([read(dead).orderId, dead.fields.exchange, dead.fields.routingKey], ["b", dlx, failed]);
    const { headers, messageId, contentType, deliveryMode } = dead.properties;
    same([messageId, contentType, deliveryMode], [ids[2], "application/json", 2]);
    const { count, reason, queue, exchange, "routing-keys": keys } = headers["x-death"][0];
    same([count, reason, queue, exchange, keys], [1, "rejected", emails, orders, ["order.updated"]]);
    await setup.deleteQueue(emails);
    await setup.deleteQueue(failed);
    await setup.deleteExchange(orders);
    await setup.deleteExchange(dlx);
  }));

check("a poison message is set aside after five deaths", () =>
  confirming(async (channel) => {
    const [main, retry, pills] = [name("main"), name("retry"), name("poison-pills")];
    await channel.assertQueue(main, { deadLetterExchange: "", deadLetterRoutingKey: retry });
    await channel.assertQueue(retry, { deadLetterExchange: "", deadLetterRoutingKey: main, messageTtl: 20 });
    await channel.assertQueue(pills);
    const seen = [];
    await channel.consume(main, (message) => {
      // The queue was deleted.
      if (!message) return undefined;
      const deaths = message.properties.headers?.["x-death"] ?? [];
      const count = deaths.find((death) => death.queue === main)?.count ?? 0;
      // Many programs look at the first entry only: the newest death, here by expiry, is as often.
      same(deaths[0]?.count ?? 0, count);
      seen.push(count);
      if (count >= 5) {
        channel.sendToQueue(pills, message.content, { headers: { "original-routing-key": message.fields.routingKey } });
        return channel.ack(message);
      }
      return channel.nack(message, false, false);
    });
    channel.sendToQueue(main, Buffer.from("poison"));
    const pill = await eventually(() => channel.get(pills, { noAck: true }));
    same([pill.content.toString(), pill.properties.headers], ["poison", { "original-routing-key": main }]);
    same(seen, [0, 1, 2, 3, 4, 5]);
    for (const queue of [main, retry, pills]) await channel.deleteQueue(queue);
  }));

check("workers share a queue, and a lost worker's tasks go to another", () =>
  connected(async (connection) => {
    const channel = await connection.createConfirmChannel();
    const queue = name("tasks");
    await channel.assertQueue(queue, { durable: true });
    for (let index = 0; index < 30; index += 1) channel.sendToQueue(queue, Buffer.from(`${index}`), { persistent: true });
    await channel.waitForConfirms();
    const done = new Map();
    let stuck = 0;
    await connected(async (lost) => {
      const worker = await lost.createChannel();
      await worker.prefetch(3);
      await worker.consume(queue, () => (stuck += 1));
      await eventually(() => stuck === 3);
    });
    for (let number = 0; number < 2; number += 1) {
      const worker = await connection.createChannel();
      await worker.prefetch(1);
      await worker.consume(queue, (message) => {
        if (!message) return;
        done.set(message.content.toString(), message.fields.redelivered);
        setTimeout(() => worker.ack(message), 1);
      });
    }
    await eventually(() => done.size === 30);
    same([...done.values()].filter(Boolean).length, 3);
    await channel.deleteQueue(queue);
  }));

check("requests get the replies that carry their correlation id", () =>
  connected(async (connection) => {
    const channel = await connection.createChannel();
    const { queue: requests } = await channel.assertQueue("", { exclusive: true });
    await channel.consume(requests, (message) => {
      const { replyTo, correlationId } = message.properties;
      channel.sendToQueue(replyTo, Buffer.from(`${2 * message.content}`), { correlationId });
      channel.ack(message);
    });
    const { queue: ours } = await channel.assertQueue("", { exclusive: true });
    for (const replies of [ours, "amq.rabbitmq.reply-to"]) {
      const client = await connection.createChannel();
      const waiting = new Map();
      await client.consume(replies, (message) => {
        waiting.get(message.properties.correlationId)?.(message.content.toString());
      }, { noAck: true });
      const ask = (number) => {
        const correlationId = randomUUID();
        client.sendToQueue(requests, Buffer.from(`${number}`), { correlationId, replyTo: replies });
        return new Promise((resolve) => waiting.set(correlationId, resolve));
      };
      same(await within(Promise.all([1, 2, 3].map(ask))), ["2", "4", "6"]);
    }
  }));

check("one message for several queues, and an alarm about a backlog", () =>
  connected(async (connection) => {
    const channel = await connection.createConfirmChannel();
    const queues = ["email", "sms", "push"].map((kind) => name(`${kind}-queue`));
    for (const queue of queues) await channel.assertQueue(queue, { durable: true });
    const notify = (message) => queues.map((queue) => channel.sendToQueue(queue, json(message), { persistent: true }));
    for (let index = 0; index < 20; index += 1) notify({ index });
    await channel.waitForConfirms();
    const [email, ...others] = queues;
    const health = async () => ((await depth(channel, email)) > 10 ? 503 : 200);
    same(await health(), 503);
    await channel.consume(email, (message) => message && channel.ack(message));
    await eventually(async () => (await health()) === 200);
    for (const queue of others) same(await depth(channel, queue), 20);
    for (const queue of queues) await channel.deleteQueue(queue);
  }));

check("messages are dispatched by their type", () =>
  connected(async (connection) => {
    const channel = await connection.createConfirmChannel();
    const { queue } = await channel.assertQueue("", { exclusive: true });
    const done = [];
    const handlers = {
      email: async ({ to }) => done.push(`email ${to}`),
      report: async ({ id }) => done.push(`report ${id}`),
    };
    const unknown = [];
    await work(channel, queue, async ({ type, data }, message) => {
      same(message.properties.type, type);
      if (!handlers[type]) unknown.push(type);
      else await handlers[type](data);
    });
    for (const [type, data] of [["email", { to: "a" }], ["report", { id: 7 }], ["video", {}]]) {
      channel.sendToQueue(queue, json({ type, data }), { type });
    }
    await eventually(() => done.length === 2 && unknown.length === 1);
    same([done, unknown], [["email a", "report 7"], ["video"]]);
  }));

check("a consumer ignores duplicates, also after a crash before its acknowledgement", () =>
  connected(async (connection) => {
    const channel = await connection.createConfirmChannel();
    const queue = name("payments");
    await channel.assertQueue(queue, { durable: true });
    const [processed, charged] = [new Set(), []];
    const charge = async (message) => {
      const { messageId } = message.properties;
      if (processed.has(messageId)) return;
      charged.push(read(message).order);
      processed.add(messageId);
    };
    // The first worker charges, and is gone before it acknowledges.
    await connected(async (lost) => {
      const worker = await lost.createChannel();
      await worker.prefetch(1);
      await worker.consume(queue, charge);
      const twice = randomUUID();
      for (const [order, messageId] of [[1, twice], [2, randomUUID()], [1, twice]]) {
        channel.sendToQueue(queue, json({ order }), { persistent: true, messageId });
      }
      await channel.waitForConfirms();
      await eventually(() => charged.length === 1);
    });
    const seen = [];
    await channel.consume(queue, async (message) => {
      if (!message) return;
      await charge(message);
      channel.ack(message);
      seen.push([read(message).order, message.fields.redelivered]);
    });
    await eventually(() => seen.length === 3);
    same([charged, seen], [[1, 2], [[1, true], [2, false], [1, false]]]);
    await channel.deleteQueue(queue);
  }));

check("a reply queue for each request", () =>
  connected(async (connection) => {
    const channel = await connection.createChannel();
    const { queue: requests } = await channel.assertQueue("", { exclusive: true });
    await channel.consume(requests, (message) => {
      const { replyTo, correlationId } = message.properties;
      channel.sendToQueue(replyTo, Buffer.from(`answer to ${message.content}`), { correlationId });
      channel.ack(message);
    });
    const ask = async (text) => {
      const correlationId = randomUUID();
      const replyTo = `reply-${correlationId}`;
      await channel.assertQueue(replyTo, { exclusive: true, autoDelete: true });
      const answer = new Promise((resolve) => {
        channel.consume(replyTo, async (message) => {
          if (!message) return;
          await channel.cancel(message.fields.consumerTag);
          resolve([message.content.toString(), message.properties.correlationId === correlationId]);
        }, { noAck: true });
      });
      channel.sendToQueue(requests, Buffer.from(text), { correlationId, replyTo });
      return answer;
    };
    same(await within(Promise.all(["a", "b"].map(ask))), [["answer to a", true], ["answer to b", true]]);
  }));
