// The transport of NestJS: requests, events, records, wildcards, dead letters, a killed broker.

import { check, confirming, eventually, get, name, pause, same, within } from "../javascript/harness.mjs";
import { ask, client, nest, serve, tell } from "./nest.mjs";
import { kill_broker } from "./broker.mjs";

// Runs `doing` with a service and a client of the same queue, and closes both.
async function together(handlers, options, doing, clientOptions = {}) {
  const queue = name("nest");
  const all = { queue, queueOptions: { durable: false, autoDelete: true }, ...options };
  const service = await serve(handlers, all);
  const { noAck: _, ...shared } = all;
  const proxy = await client({ ...shared, ...clientOptions });
  try {
    return await doing(proxy, all.queue);
  } finally {
    await proxy.close();
    await service.close();
  }
}

const failure = async (promise) => {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error("it should fail");
};

check("requests are answered directly", () =>
  together(
    {
      requests: {
        sum: (numbers) => numbers.reduce((a, b) => a + b, 0),
        [JSON.stringify({ cmd: "refuse" })]: () => {
          throw new nest.RpcException("it is refused");
        },
      },
    },
    {},
    async (proxy) => {
      const answers = Array.from({ length: 300 }, (_, index) => ask(proxy, "sum", [index, 1]));
      same(await within(Promise.all(answers)), Array.from({ length: 300 }, (_, index) => index + 1));
      same((await failure(within(ask(proxy, "nobody", {})))).toString().includes("no matching message handler"), true);
      const large = Array.from({ length: 200_000 }, (_, index) => index);
      same(await within(ask(proxy, "sum", large)), 19_999_900_000);
    },
  ));

check("an exception of a handler reaches the client", () =>
  together(
    {
      requests: {
        refuse: () => {
          throw new nest.RpcException({ code: 7, text: "it is refused" });
        },
      },
    },
    {},
    async (proxy) => same(await failure(within(ask(proxy, "refuse", {}))), { code: 7, text: "it is refused" }),
  ));

check("answers come over a queue too, with an own reply queue", async () => {
  const replies = name("replies");
  await confirming(async (opened) => {
    await opened.assertQueue(replies, { durable: false });
    await together({ requests: { echo: (value) => value } }, {}, async (proxy) => same(await within(ask(proxy, "echo", "x")), "x"), {
      replyQueue: replies,
    });
    await opened.deleteQueue(replies);
  });
});

check("records carry headers, priority and expiration", async () => {
  const seen = [];
  const note = (data, context) => {
    const { headers, priority, expiration, messageId } = context.getMessage().properties;
    seen.push([data, headers.tenant, priority, expiration, messageId, context.getPattern()]);
  };
  const queueOptions = { durable: false, autoDelete: true, maxPriority: 5 };
  await together({ events: { noted: note } }, { queueOptions }, async (proxy) => {
    const options = { headers: { tenant: "a" }, priority: 4, expiration: 60000, messageId: "m" };
    const record = new nest.RmqRecordBuilder({ n: 1 }).setOptions(options).build();
    await within(tell(proxy, "noted", record));
    await eventually(() => seen.length === 1);
    same(seen, [[{ n: 1 }, "a", 4, "60000", "m", "noted"]]);
  });
});

check("patterns with wildcards are bindings of a topic exchange", async () => {
  const seen = [];
  const see = (kind) => (data) => void seen.push([kind, data]);
  const exchange = name("events");
  await together(
    { events: { "order.*": see("order"), "#.failed": see("failed"), exact: see("exact") } },
    { wildcards: true, exchange },
    async (proxy) => {
      await within(tell(proxy, "order.created", 1));
      await within(tell(proxy, "exact", 2));
      await within(tell(proxy, "unbound.key", 3));
      await eventually(() => seen.length === 2);
      same(seen, [["order", 1], ["exact", 2]]);
    },
  );
  await confirming((opened) => opened.deleteExchange(exchange));
});

check("every service gets what is sent to a fanout exchange", async () => {
  const [seen, exchange] = [[], name("everyone")];
  const options = { queue: "", exchange, exchangeType: "fanout", queueOptions: { exclusive: true, durable: false } };
  const services = await Promise.all([1, 2].map((id) => serve({ events: { hello: (data) => void seen.push([id, data]) } }, options)));
  const proxy = await client({ queue: "", exchange, exchangeType: "fanout" });
  await within(tell(proxy, "hello", "x"));
  await eventually(() => seen.length === 2);
  same(seen.toSorted(), [[1, "x"], [2, "x"]]);
  await proxy.close();
  for (const service of services) await service.close();
  await confirming((opened) => opened.deleteExchange(exchange));
});

check("handlers acknowledge, reject and bury poison by its deaths", () =>
  confirming(async (opened) => {
    const [queue, retry, pills] = [name("jobs"), name("retry"), name("poison-pills")];
    await opened.assertQueue(retry, { messageTtl: 30, deadLetterExchange: "", deadLetterRoutingKey: queue });
    await opened.assertQueue(pills);
    const [done, seen] = [[], []];
    const job = (data, context) => {
      const [message, channel] = [context.getMessage(), context.getChannelRef()];
      const deaths = message.properties.headers?.["x-death"]?.find((death) => death.queue === queue)?.count ?? 0;
      if (data.id !== "poison") {
        done.push(data.id);
        return channel.ack(message);
      }
      seen.push(deaths);
      if (deaths < 3) return channel.nack(message, false, false);
      channel.sendToQueue(pills, message.content, { headers: { "original-routing-key": message.fields.routingKey } });
      return channel.ack(message);
    };
    const queueOptions = { durable: true, deadLetterExchange: "", deadLetterRoutingKey: retry };
    await together({ events: { job } }, { queue, noAck: false, prefetchCount: 2, queueOptions }, async (proxy) => {
      for (const id of ["a", "poison", "b", "c"]) await within(tell(proxy, "job", { id }));
      const pill = await get(opened, pills);
      same([JSON.parse(pill.content).data, pill.properties.headers], [{ id: "poison" }, { "original-routing-key": queue }]);
      same([done, seen], [["a", "b", "c"], [0, 1, 2, 3]]);
      // An event without a handler is rejected, and here comes back again and again; it is purged below.
      await within(tell(proxy, "unknown", {}));
      await pause(200);
    });
    for (const each of [queue, retry, pills]) await opened.deleteQueue(each);
  }));

check("a service and its client survive a killed broker", async () => {
  const [queue, handled] = [name("durable"), new Set()];
  const handlers = {
    requests: { ping: () => "pong" },
    events: {
      job: async (id, context) => {
        await pause(1);
        handled.add(id);
        context.getChannelRef().ack(context.getMessage());
      },
    },
  };
  const options = { queue, noAck: false, prefetchCount: 10, persistent: true, queueOptions: { durable: true } };
  await together(handlers, options, async (proxy) => {
    // Every emission ends when the broker has confirmed it. The library sends again what was not confirmed.
    const sent = Array.from({ length: 600 }, (_, id) => tell(proxy, "job", id));
    await eventually(() => handled.size > 50);
    await kill_broker();
    await within(Promise.all(sent));
    await eventually(() => handled.size === 600);
    const answer = await eventually(() => Promise.race([ask(proxy, "ping", {}), pause(2_000)]).catch(() => false));
    same(answer, "pong");
  });
  await confirming((opened) => opened.deleteQueue(queue));
});
