// What the conformance programs share: the server's address, and new queues.

import { randomUUID } from "node:crypto";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const require = createRequire(join(resolve(process.env.MALOTE_MODULES), "node_modules", "x.js"));
export const { ServiceBusClient, ServiceBusAdministrationClient } = require("@azure/service-bus");
// The underlying AMQP 1.0 library.
export const rhea = require("rhea");

export const AMQP = process.env.MALOTE_AMQP_AT;
export const ADMIN = process.env.MALOTE_ADMIN_AT;
const HTTP = process.env.MALOTE_HTTP_AT;
// The timeout for a correct server on a slow machine.
export const PATIENCE = 20_000;

export function connection(at = AMQP, name = "RootManageSharedAccessKey", key = "SAS_KEY_VALUE") {
  return `Endpoint=sb://${at};SharedAccessKeyName=${name};SharedAccessKey=${key};UseDevelopmentEmulator=true;`;
}

// A client without retries, so that errors are seen.
function client(options = {}) {
  return new ServiceBusClient(connection(), { retryOptions: { maxRetries: 0, ...options } });
}

// An administration client that uses plain HTTP, for a server without a certificate.
export function admin(at = ADMIN, ...key) {
  const made = new ServiceBusAdministrationClient(connection(at, ...key), { retryOptions: { maxRetries: 0 } });
  made.pipeline.addPolicy({
    name: "plain-http",
    sendRequest(request, next) {
      request.url = request.url.replace("https://", "http://");
      request.allowInsecureConnection = true;
      return next(request);
    },
  });
  return made;
}

export async function with_client(doing, options) {
  const bus = client(options);
  try {
    await doing(bus);
  } finally {
    await bus.close();
  }
}

export const bodies = (messages) => messages.map((message) => message.body);

// Declares a queue with a new name.
export async function queue(spec = {}) {
  const name = `q-${randomUUID().slice(0, 13)}`;
  const body = JSON.stringify({ lock_ms: 60_000, ...spec });
  const headers = { "content-type": "application/json" };
  const answer = await fetch(`http://${HTTP}/api/v1/queues/${name}`, { method: "PUT", headers, body });
  if (!answer.ok) throw new Error(`${name}: ${answer.status} ${await answer.text()}`);
  return name;
}

// The error of a promise; it must have this code.
export async function fails(code, doing) {
  let result;
  try {
    result = await doing();
  } catch (error) {
    if (error.code === code) return error;
    throw new Error(`${code} expected, not ${error.code}`, { cause: error });
  }
  throw new Error(`${code} expected, not ${JSON.stringify(result)}`);
}

// Receives exactly this number of messages, in the order of arrival.
export async function receive(receiver, count) {
  const all = [];
  while (all.length < count) {
    const some = await receiver.receiveMessages(count - all.length, { maxWaitTimeInMs: PATIENCE });
    if (some.length === 0) throw new Error(`${all.length} of ${count} messages came`);
    all.push(...some);
  }
  return all;
}

export async function nothing(receiver) {
  const some = await receiver.receiveMessages(1, { maxWaitTimeInMs: 500 });
  if (some.length > 0) throw new Error(`nothing expected, not ${JSON.stringify(some[0].body)}`);
}

// Waits for a condition.
export async function until(what, test) {
  const end = Date.now() + PATIENCE;
  while (Date.now() < end) {
    const found = await test();
    if (found) return found;
    await new Promise((done) => setTimeout(done, 50));
  }
  throw new Error(`timeout waiting until ${what}`);
}

// Runs the cases, several at the same time and each on its own entities. Fails if a case failed.
export async function main(...cases) {
  const wanted = process.argv.slice(2);
  const waiting = cases.filter((test) => wanted.length === 0 || wanted.includes(test.name));
  let failed = 0;
  const work = async () => {
    for (let test = waiting.shift(); test; test = waiting.shift()) {
      const begun = Date.now();
      let outcome = "ok";
      try {
        await test();
      } catch (error) {
        console.error(error);
        outcome = "FAILED";
        failed += 1;
      }
      console.log(`${outcome.padEnd(7)} ${test.name} (${((Date.now() - begun) / 1000).toFixed(1)} s)`);
    }
  };
  await Promise.all(Array.from({ length: 6 }, work));
  process.exit(failed === 0 ? 0 : 1);
}
