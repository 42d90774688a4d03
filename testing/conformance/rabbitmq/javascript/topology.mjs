// Connections, queues, exchanges and bindings.

import {
  URL_OF_BROKER, amqp, bodies, channel, channel_error, check, confirming, connected, depth, eventually, exchange, get, name,
  pause, queue, quiet, same, within,
} from "./harness.mjs";

const PARTS = new URL(URL_OF_BROKER);
const VHOST = decodeURIComponent(PARTS.pathname.slice(1)) || "/";
const IN = `in vhost '${VHOST}'`;

const rejection = (promise) =>
  promise.then(
    () => Promise.reject(new Error("it was not refused")),
    (error) => error,
  );

check("the server names its capabilities", () =>
  connected(async (connection) => {
    const { capabilities, version } = connection.connection.serverProperties;
    for (const one of ["publisher_confirms", "basic.nack", "consumer_cancel_notify", "exchange_exchange_bindings"]) {
      same([one, capabilities[one]], [one, true]);
    }
    if (!/^\d+\.\d+\.\d+/.test(version)) throw new Error(version);
  }));

check("a wrong password is refused", async () => {
  const url = new URL(URL_OF_BROKER);
  url.password = "wrong";
  const error = await rejection(amqp.connect(url.href));
  if (!error.message.includes("ACCESS_REFUSED")) throw error;
});

check("an unknown virtual host is refused", async () => {
  const url = new URL(URL_OF_BROKER);
  url.pathname = "/nope";
  const error = await rejection(amqp.connect(url.href));
  // The library does not tell the text.
  if (!error.message.includes("ConnectionClose")) throw error;
});

check("limits and heartbeats are negotiated", () =>
  connected(
    async (connection) => {
      const opened = await connection.createConfirmChannel();
      const q = await queue(opened);
      const body = Buffer.alloc(500_000, "x");
      opened.sendToQueue(q, body);
      await opened.waitForConfirms();
      same((await get(opened, q)).content.equals(body), true);
      await pause(2500);
      same(await opened.get(q), false);
    },
    { frameMax: 8192, heartbeat: 1, channelMax: 10 },
  ));

check("many channels on one connection", () =>
  connected(async (connection) => {
    const opened = await Promise.all(Array.from({ length: 100 }, () => connection.createChannel()));
    const q = await queue(opened[0]);
    opened.forEach((each, index) => each.sendToQueue(q, Buffer.from(String(index))));
    const got = await Promise.all(opened.map((each) => get(each, q)));
    same(new Set(got.map((message) => message.content.toString())).size, 100);
    await Promise.all(opened.map((each) => each.close()));
  }));

check("operations of a channel may be sent without waiting", () =>
  confirming(async (opened) => {
    const [q, x] = [name(), name("x")];
    await Promise.all([
      opened.assertExchange(x, "direct", { durable: false, autoDelete: true }),
      opened.assertQueue(q, { exclusive: true }),
      opened.bindQueue(q, x, "k"),
      opened.prefetch(10),
    ]);
    opened.publish(x, "k", Buffer.from("x"));
    const [, checked] = await Promise.all([opened.waitForConfirms(), opened.checkQueue(q)]);
    // RabbitMQ may count before it enqueues what was sent earlier.
    same([checked.queue, await bodies(opened, q, 1)], [q, ["x"]]);
  }));

check("a queue gets a name", () =>
  channel(async (opened) => {
    const { queue: q, messageCount, consumerCount } = await opened.assertQueue("", { exclusive: true });
    same([/^amq\.gen-[\w-]{22}$/.test(q), messageCount, consumerCount], [true, 0, 0]);
  }));

check("a differing declaration is refused", async () => {
  const q = name();
  await channel(async (opened) => {
    await opened.assertQueue(q, { durable: false, maxLength: 5 });
    const text = `inequivalent arg 'durable' for queue '${q}' ${IN}: received 'true' but current is 'false'`;
    await channel_error(406, text, (other) => other.assertQueue(q, { durable: true, maxLength: 5 }));
    const argument = `inequivalent arg 'x-max-length' for queue '${q}' ${IN}: received none but current is the value '5' of type`;
    await channel_error(406, argument, (other) => other.assertQueue(q, { durable: false }));
    // Numbers are compared by value, whatever width a client sends them with.
    await opened.assertQueue(q, { durable: false, arguments: { "x-max-length": { "!": "long", value: 5 } } });
    await opened.deleteQueue(q);
  });
});

check("a missing queue or exchange is not found", async () => {
  const q = name();
  await channel_error(404, `NOT_FOUND - no queue '${q}' ${IN}`, (opened) => opened.checkQueue(q));
  await channel_error(404, `NOT_FOUND - no exchange '${q}' ${IN}`, (opened) => opened.checkExchange(q));
  await channel_error(404, `NOT_FOUND - no exchange '${q}' ${IN}`, async (opened) => opened.publish(q, "", Buffer.alloc(1)));
  await channel(async (opened) => same(await opened.deleteQueue(q), { messageCount: 0 }));
});

check("an exclusive queue is locked", () =>
  channel(async (opened) => {
    const q = await queue(opened);
    await channel_error(405, `RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '${q}'`, (other) =>
      other.checkQueue(q));
  }));

check("exchanges of every kind", () =>
  confirming(async (opened) => {
    const kinds = {
      direct: [["k"], {}, "k"],
      fanout: [[""], {}, "whatever"],
      topic: [["a.*.#"], {}, "a.b.c.d"],
      headers: [["", { "x-match": "any", a: 1, b: 2 }], { headers: { b: 2, c: 3 } }, ""],
    };
    for (const [kind, [binding, options, key]] of Object.entries(kinds)) {
      const [x, q] = [await exchange(opened, kind), await queue(opened)];
      await opened.bindQueue(q, x, ...binding);
      opened.publish(x, key, Buffer.from(kind), options);
      await opened.waitForConfirms();
      same(await bodies(opened, q, 1), [kind]);
      await opened.unbindQueue(q, x, ...binding);
    }
  }));

check("exchanges are bound to exchanges, and have an alternate", () =>
  confirming(async (opened) => {
    const [lost, q] = [await exchange(opened, "fanout"), await queue(opened)];
    await opened.bindQueue(q, lost, "");
    const source = await exchange(opened, "direct", { alternateExchange: lost });
    const target = await exchange(opened, "fanout");
    const bound = await queue(opened);
    await opened.bindQueue(bound, target, "");
    await opened.bindExchange(target, source, "k");
    opened.publish(source, "k", Buffer.from("bound"));
    opened.publish(source, "other", Buffer.from("lost"), { mandatory: true });
    await opened.waitForConfirms();
    same([await bodies(opened, bound, 1), await bodies(opened, q, 1)], [["bound"], ["lost"]]);
    await opened.unbindExchange(target, source, "k");
  }));

check("queues end with their consumers, or unused", () =>
  channel(async (opened, connection) => {
    const q = await queue(opened, { exclusive: false, autoDelete: true });
    const { consumerTag } = await opened.consume(q, () => {});
    await opened.cancel(consumerTag);
    const gone = async () => {
      const other = quiet(await connection.createChannel());
      return other.checkQueue(q).then(() => other.close().then(() => false), () => true);
    };
    await eventually(gone);
    const unused = await queue(opened, { exclusive: false, expires: 300 });
    await pause(1500);
    await channel_error(404, "NOT_FOUND", (other) => other.checkQueue(unused));
  }));

check("a closed channel leaves the connection open", () =>
  connected(async (connection) => {
    const first = quiet(await connection.createChannel());
    const second = await connection.createChannel();
    first.ack({ fields: { deliveryTag: 99 } });
    const error = await within(first.closing);
    same([error.code, error.message.includes("PRECONDITION_FAILED - unknown delivery tag 99")], [406, true]);
    same(await depth(second, await queue(second)), 0);
  }));
