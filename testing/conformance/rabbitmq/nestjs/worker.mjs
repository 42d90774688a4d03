// A plain worker on amqplib that connects again by itself: competing consumers, retries with a delay, poison messages.

import { amqp, check, confirming, depth, eventually, name, pause, same, URL_OF_BROKER } from "../javascript/harness.mjs";
import { kill_broker } from "./broker.mjs";

const ATTEMPTS_MAX = 3;
const JOBS = 900;
// RabbitMQ may lose a dead letter of a classic queue if it is killed.
const SAFE = {
  durable: true,
  arguments: { "x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish" },
};

// Keeps a channel of its own, and calls `use` with each new one, until it is stopped.
function connecting(use) {
  let [stopped, current] = [false, undefined];
  const run = async () => {
    while (!stopped) {
      try {
        current = await amqp.connect(URL_OF_BROKER, { heartbeat: 5 });
        current.on("error", () => {});
        const closed = new Promise((resolve) => current.once("close", resolve));
        await use(await current.createConfirmChannel());
        await closed;
      } catch {
        // The broker is away.
      }
      await pause(50);
    }
  };
  const running = run();
  return async () => {
    stopped = true;
    await current?.close().catch(() => {});
    await running;
  };
}

function topology(channel, { work, retry, pills, dlx }) {
  return Promise.all([
    channel.assertExchange(dlx, "direct", { durable: true }),
    channel.assertQueue(work, { ...SAFE, deadLetterExchange: dlx, deadLetterRoutingKey: "retry" }),
    channel.assertQueue(retry, { ...SAFE, messageTtl: 100, deadLetterExchange: "", deadLetterRoutingKey: work }),
    channel.assertQueue(pills, { durable: true }),
    channel.bindQueue(retry, dlx, "retry"),
  ]);
}

check("competing workers bury poison although the broker is killed", () =>
  confirming(async (setup) => {
    const names = { work: name("work"), retry: name("retry"), pills: name("poison-pills"), dlx: name("dlx") };
    await topology(setup, names);
    const [done, buried, workers] = [new Map(), new Set(), [0, 0, 0]];
    const handle = (channel, number) => async (message) => {
      if (!message) return;
      const job = Number(message.content);
      const deaths = message.properties.headers?.["x-death"] ?? [];
      const attempts = deaths.find(({ queue, reason }) => queue === names.work && reason === "rejected")?.count ?? 0;
      try {
        await pause(1);
        if (job % 50 === 0 && attempts >= ATTEMPTS_MAX) {
          channel.sendToQueue(names.pills, message.content, { persistent: true, headers: { attempts } });
          await channel.waitForConfirms();
          buried.add(job);
        } else if (job % 50 === 0) {
          channel.nack(message, false, false);
          return;
        } else {
          done.set(job, (done.get(job) ?? 0) + 1);
          workers[number] += 1;
        }
        channel.ack(message);
      } catch {
        // The connection was lost; another worker gets the message.
      }
    };
    const stops = workers.map((_, number) =>
      connecting(async (channel) => {
        channel.on("error", () => {});
        await channel.prefetch(5);
        await channel.consume(names.work, handle(channel, number));
      }));
    const unconfirmed = new Set(Array.from({ length: JOBS }, (_, job) => job));
    stops.push(
      connecting(async (channel) => {
        channel.on("error", () => {});
        for (const job of [...unconfirmed]) {
          channel.sendToQueue(names.work, Buffer.from(`${job}`), { persistent: true }, (error) => {
            if (!error) unconfirmed.delete(job);
          });
        }
      }),
    );
    await eventually(() => done.size > JOBS / 10);
    await kill_broker();
    const poison = JOBS / 50;
    await eventually(() => unconfirmed.size === 0 && done.size === JOBS - poison && buried.size === poison);
    same([...done.keys()].toSorted((a, b) => a - b), Array.from({ length: JOBS }, (_, job) => job).filter((job) => job % 50 !== 0));
    same(workers.every((count) => count > 0), true);
    for (const stop of stops) await stop();
    await confirming(async (after) => {
      // A death or an acknowledgement that the kill undid happens again.
      same((await depth(after, names.pills)) >= poison, true);
      same([await depth(after, names.work), await depth(after, names.retry)], [0, 0]);
      for (const queue of [names.work, names.retry, names.pills]) await after.deleteQueue(queue);
      await after.deleteExchange(names.dlx);
    });
  }));
