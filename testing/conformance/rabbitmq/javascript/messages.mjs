// Publishing, confirms, consuming, limits, dead letters.

import {
  amqp, URL_OF_BROKER, bodies, channel, channel_error, check, confirming, connected, consume, depth, eventually, exchange, get,
  name, queue, same, within,
} from "./harness.mjs";

const text = (body) => Buffer.from(String(body));
const contents = (messages) => messages.map((message) => message.content.toString());
const deaths = (message) =>
  message.properties.headers["x-death"].map((death) => [death.queue, death.reason, death.count]);

async function fill(opened, q, ...all) {
  for (const body of all) opened.sendToQueue(q, text(body));
  await opened.waitForConfirms();
}

check("properties and headers come back", () =>
  confirming(async (opened) => {
    const q = await queue(opened);
    const sent = {
      contentType: "text/plain", contentEncoding: "identity", deliveryMode: 2, priority: 3, correlationId: "c", replyTo: "r",
      expiration: "600000", messageId: "m", timestamp: 1700000000, type: "t", appId: "a",
    };
    const headers = {
      text: "é", yes: true, small: -5, large: 1099511627776, real: 2.5, list: [1, "two"], table: { n: 1 },
      bytes: Buffer.from([0, 255]), long: { "!": "int64", value: 7 },
    };
    opened.sendToQueue(q, text("x"), { ...sent, headers });
    await opened.waitForConfirms();
    const { properties, fields } = await get(opened, q);
    for (const [key, value] of Object.entries(sent)) same([key, properties[key]], [key, value]);
    same(properties.headers.real, 2.5);
    same([properties.headers.text, properties.headers.large, properties.headers.list], ["é", 1099511627776, [1, "two"]]);
    same([fields.exchange, fields.routingKey, fields.redelivered, fields.messageCount], ["", q, false, 0]);
  }));

check("every publication is confirmed", () =>
  confirming(async (opened) => {
    const q = await queue(opened, { durable: true });
    const confirmed = [];
    for (let index = 0; index < 500; index += 1) {
      opened.sendToQueue(q, text(index), { persistent: index % 2 === 0 }, (error) => confirmed.push(error ?? index));
    }
    await opened.waitForConfirms();
    await eventually(() => confirmed.length === 500);
    same(confirmed.toSorted((a, b) => a - b), Array.from({ length: 500 }, (_, index) => index));
    same(await depth(opened, q), 500);
  }));

check("a return comes before its confirm", () =>
  confirming(async (opened) => {
    const events = [];
    opened.on("return", (message) => events.push(["return", message.fields.replyCode, message.fields.replyText]));
    opened.publish("", name(), text("x"), { mandatory: true }, () => events.push(["confirm"]));
    await opened.waitForConfirms();
    await eventually(() => events.length === 2);
    same(events, [["return", 312, "NO_ROUTE"], ["confirm"]]);
  }));

check("a full queue refuses or drops", () =>
  confirming(async (opened) => {
    const refusing = await queue(opened, { maxLength: 1, arguments: { "x-overflow": "reject-publish" } });
    await fill(opened, refusing, "a");
    const refused = await new Promise((resolve) => {
      opened.sendToQueue(refusing, text("b"), {}, (error) => resolve(error));
    });
    same(refused instanceof Error, true);
    const dropping = await queue(opened, { maxLength: 2 });
    await fill(opened, dropping, 1, 2, 3);
    same(await bodies(opened, dropping, 2), ["2", "3"]);
  }));

check("prefetch per consumer and per channel", () =>
  confirming(async (opened, connection) => {
    const q = await queue(opened);
    await fill(opened, q, ...Array(10).keys());
    await opened.prefetch(2);
    const first = await consume(opened, q);
    const second = await consume(opened, q);
    await first.wait(2);
    await second.wait(2);
    same(await depth(opened, q), 6);
    opened.ack(first.received[1], true);
    await eventually(async () => first.received.length + second.received.length >= 6);
    const other = await connection.createChannel();
    await other.prefetch(3, true);
    const third = await consume(other, q);
    await third.wait(3);
    same([third.received.length, await depth(opened, q)], [3, 1]);
  }));

check("requeued messages keep their place", () =>
  confirming(async (opened) => {
    const q = await queue(opened);
    await fill(opened, q, 0, 1, 2, 3);
    const got = [];
    for (let index = 0; index < 3; index += 1) got.push(await get(opened, q, {}));
    opened.nack(got[1], false, true);
    opened.reject(got[2], true);
    opened.nack(got[0]);
    const again = [];
    for (let index = 0; index < 4; index += 1) again.push(await get(opened, q));
    same(contents(again), ["0", "1", "2", "3"]);
    same(again.map((message) => message.fields.redelivered), [true, true, true, false]);
  }));

check("recover returns what is out", () =>
  confirming(async (opened) => {
    const q = await queue(opened);
    await fill(opened, q, 0, 1);
    const consumer = await consume(opened, q);
    await consumer.wait(2);
    await opened.recover();
    const all = await consumer.wait(4);
    same(contents(all), ["0", "1", "0", "1"]);
    same(all[2].fields.redelivered, true);
    opened.ackAll();
  }));

check("a deleted queue sends null to its consumer", () =>
  channel(async (opened) => {
    const q = await queue(opened);
    const consumer = await consume(opened, q);
    await opened.deleteQueue(q);
    same(await consumer.wait(1), [null]);
  }));

check("consumers have priorities, or one is active", () =>
  confirming(async (opened) => {
    const q = await queue(opened);
    const low = await consume(opened, q);
    const high = await consume(opened, q, { priority: 10 });
    await fill(opened, q, 1, 2, 3);
    same([await high.bodies(3), low.received.length], [["1", "2", "3"], 0]);
    const single = await queue(opened, { arguments: { "x-single-active-consumer": true } });
    const first = await consume(opened, single);
    const second = await consume(opened, single);
    await fill(opened, single, 1, 2);
    await first.wait(2);
    same(second.received.length, 0);
    opened.ackAll();
    await opened.cancel(first.tag);
    await fill(opened, single, 3);
    same(await second.bodies(1), ["3"]);
  }));

check("an exclusive consumer is alone", () =>
  channel(async (opened) => {
    const q = await queue(opened, { exclusive: false, autoDelete: true });
    await consume(opened, q, { exclusive: true });
    await channel_error(403, `ACCESS_REFUSED - queue '${q}'`, (other) => other.consume(q, () => {}));
  }));

check("priorities", () =>
  confirming(async (opened) => {
    const q = await queue(opened, { maxPriority: 5 });
    for (const [body, priority] of [["a", 0], ["b", 3], ["c", 9], ["d", 3]]) {
      opened.sendToQueue(q, text(body), { priority });
    }
    await opened.waitForConfirms();
    same(await bodies(opened, q, 4), ["c", "b", "d", "a"]);
  }));

check("expired and rejected messages are dead-lettered", () =>
  confirming(async (opened) => {
    const graves = await queue(opened);
    const options = { deadLetterExchange: "", deadLetterRoutingKey: graves };
    const expiring = await queue(opened, { ...options, messageTtl: 50 });
    await fill(opened, expiring, "old");
    const old = await get(opened, graves);
    same([old.content.toString(), deaths(old)], ["old", [[expiring, "expired", 1]]]);
    const own = await queue(opened, options);
    opened.sendToQueue(own, text("own"), { expiration: 50 });
    await opened.waitForConfirms();
    const message = await get(opened, graves);
    same([message.properties.expiration, message.properties.headers["x-death"][0]["original-expiration"]], [undefined, "50"]);
    const rejecting = await queue(opened, options);
    await fill(opened, rejecting, "bad");
    opened.reject(await get(opened, rejecting, {}), false);
    const bad = await get(opened, graves);
    same([bad.content.toString(), deaths(bad)], ["bad", [[rejecting, "rejected", 1]]]);
    same(bad.properties.headers["x-first-death-reason"], "rejected");
  }));

check("retries through a delay queue count their attempts", () =>
  confirming(async (opened) => {
    const [work, retry] = [name("work"), name("retry")];
    await opened.assertQueue(work, { exclusive: true, deadLetterExchange: "", deadLetterRoutingKey: retry });
    await opened.assertQueue(retry, {
      exclusive: true, messageTtl: 50, deadLetterExchange: "", deadLetterRoutingKey: work,
    });
    opened.sendToQueue(work, text("poison"), { persistent: true });
    const attempts = [];
    await within(
      new Promise((resolve) => {
        opened.consume(work, (message) => {
          const history = message.properties.headers["x-death"] ?? [];
          const rejected = history.find((death) => death.queue === work && death.reason === "rejected")?.count ?? 0;
          attempts.push(rejected);
          if (rejected < 3) return opened.nack(message, false, false);
          opened.ack(message);
          return resolve();
        });
      }),
    );
    same(attempts, [0, 1, 2, 3]);
  }));

check("a call is answered directly", () =>
  channel((client) =>
    channel(async (server) => {
      const q = name("calls");
      await server.assertQueue(q, { autoDelete: true, durable: false });
      await server.consume(q, (message) => {
        const answer = text(2 * Number(message.content));
        server.sendToQueue(message.properties.replyTo, answer, { correlationId: message.properties.correlationId });
        server.ack(message);
      });
      const answers = await consume(client, "amq.rabbitmq.reply-to", { noAck: true });
      client.sendToQueue(q, text(21), { replyTo: "amq.rabbitmq.reply-to", correlationId: "c" });
      const [answer] = await answers.wait(1);
      same([answer.content.toString(), answer.properties.correlationId], ["42", "c"]);
    })));

check("work is shared, and returned when a worker dies", () =>
  confirming(async (opened) => {
    const q = await queue(opened, { exclusive: false, durable: true });
    const dying = await amqp.connect(URL_OF_BROKER);
    dying.on("error", () => {});
    const worker = await dying.createChannel();
    await worker.prefetch(2);
    const taken = await consume(worker, q);
    await fill(opened, q, 0, 1, 2, 3);
    await taken.wait(2);
    // Without a goodbye.
    dying.connection.stream.destroy();
    const rest = await consume(opened, q);
    await rest.wait(4);
    same(contents(rest.received).toSorted(), ["0", "1", "2", "3"]);
    same(rest.received.filter((message) => message.fields.redelivered).length, 2);
    opened.ackAll();
    await opened.deleteQueue(q);
  }));

check("a quorum queue limits deliveries", () =>
  confirming(async (opened) => {
    const graves = await queue(opened);
    const q = name("quorum");
    const options = { deadLetterExchange: "", deadLetterRoutingKey: graves };
    await opened.assertQueue(q, { ...options, arguments: { "x-queue-type": "quorum", "x-delivery-limit": 1 } });
    await fill(opened, q, "x");
    const counts = [];
    await opened.consume(q, (message) => {
      counts.push(message?.properties.headers["x-delivery-count"] ?? 0);
      if (message) opened.nack(message);
    });
    const dead = await get(opened, graves);
    same([counts, deaths(dead)], [[0, 1], [[q, "delivery_limit", 1]]]);
    await opened.deleteQueue(q);
  }));

check("a fanout reaches every subscriber", () =>
  confirming(async (opened) => {
    const x = await exchange(opened, "fanout");
    const subscribers = [];
    for (let index = 0; index < 3; index += 1) {
      const { queue: q } = await opened.assertQueue("", { exclusive: true });
      await opened.bindQueue(q, x, "");
      subscribers.push(await consume(opened, q, { noAck: true }));
    }
    for (let index = 0; index < 5; index += 1) opened.publish(x, "", text(index));
    await opened.waitForConfirms();
    for (const subscriber of subscribers) same(await subscriber.bodies(5), ["0", "1", "2", "3", "4"]);
  }));

check("messages larger than a frame", () =>
  connected(async (connection) => {
    const opened = await connection.createConfirmChannel();
    const q = await queue(opened);
    const body = Buffer.alloc(2_000_000, "0123456789");
    opened.sendToQueue(q, body);
    opened.sendToQueue(q, Buffer.alloc(0));
    await opened.waitForConfirms();
    same((await get(opened, q)).content.equals(body), true);
    same((await get(opened, q)).content.length, 0);
  }));
