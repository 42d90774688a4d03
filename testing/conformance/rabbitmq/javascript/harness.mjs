// What the checks share: connections, names of their own, waiting, and the errors that a broker closes with.

import { randomUUID } from "node:crypto";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { isDeepStrictEqual } from "node:util";

export const URL_OF_BROKER = process.argv[2];
const require = createRequire(join(resolve(process.argv[3]), "node_modules", "x.js"));
export const amqp = require("amqplib");
// The longest that a correct broker may take on a slow machine.
const PATIENCE_MS = 60_000;

export const name = (kind = "q") => `${kind}-${randomUUID().slice(0, 13)}`;

const checks = [];
export const check = (title, run) => checks.push([title, run]);

export function same(left, right) {
  if (!isDeepStrictEqual(left, right)) throw new Error(`${JSON.stringify(left)} is not ${JSON.stringify(right)}`);
}

// Runs `doing` with a connection that is closed afterwards.
export async function connected(doing, options = {}) {
  const connection = await amqp.connect(URL_OF_BROKER, options);
  connection.on("error", () => {});
  try {
    return await doing(connection);
  } finally {
    await connection.close().catch(() => {});
  }
}

// The same with a channel.
export const channel = (doing) =>
  connected(async (connection) => doing(quiet(await connection.createChannel()), connection));
export const confirming = (doing) =>
  connected(async (connection) => doing(quiet(await connection.createConfirmChannel()), connection));

// A channel whose error event does not end the program: the failed call tells of it too.
export function quiet(opened) {
  opened.closing = new Promise((resolve) => opened.once("error", resolve));
  return opened;
}

// `doing` must close its channel with this code and text.
export function channel_error(code, text, doing) {
  return channel(async (opened, connection) => {
    await doing(opened).catch(() => {});
    const error = await within(opened.closing);
    same(error.code, code);
    if (!error.message.includes(text)) throw new Error(`"${text}" is not in "${error.message}"`);
    await (await connection.createChannel()).close();
  });
}

export function within(promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("nothing happened")), PATIENCE_MS);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// The first result of `look` that is not false.
export async function eventually(look) {
  const end = Date.now() + PATIENCE_MS;
  while (Date.now() < end) {
    const found = await look();
    if (found) return found;
    await pause(20);
  }
  throw new Error("nothing happened");
}

export async function queue(opened, options = {}) {
  return (await opened.assertQueue(name(), { exclusive: true, durable: false, ...options })).queue;
}

export async function exchange(opened, kind, options = {}) {
  return (await opened.assertExchange(name("x"), kind, { durable: false, autoDelete: true, ...options })).exchange;
}

// The next message, as soon as there is one.
export const get = (opened, from, options = { noAck: true }) => eventually(() => opened.get(from, options));

export async function bodies(opened, from, count) {
  const got = [];
  for (let index = 0; index < count; index += 1) got.push((await get(opened, from)).content.toString());
  return got;
}

export const depth = async (opened, of) => (await opened.checkQueue(of)).messageCount;

// Collects what a consumer gets.
export async function consume(opened, from, options = {}) {
  const received = [];
  const { consumerTag } = await opened.consume(from, (message) => received.push(message), options);
  return {
    tag: consumerTag,
    received,
    wait: (count) => eventually(() => received.length >= count && received.slice(0, count)),
    bodies: async (count) => {
      await eventually(() => received.length >= count);
      return received.map((message) => message.content.toString());
    },
  };
}

// Runs the checks and says how each ended.
export async function main() {
  let [passed, failed] = [0, 0];
  for (const [title, run] of checks) {
    try {
      await run();
      console.log(`ok ${title}`);
      passed += 1;
    } catch (error) {
      const why = `FAILED ${title}: ${String(error.message ?? error).split("\n").join(" ")}`;
      console.log(why);
      console.error(why);
      failed += 1;
    }
  }
  console.log(`${passed} passed, ${failed} failed`);
  process.exit(failed ? 1 : 0);
}
