// sqs-consumer handles 5,000 messages: `node consumer.mjs PATH-OF-THE-BINARY NODE_MODULES`.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

import { start } from "./broker.mjs";

const MESSAGES = 5000;
const CONSUMERS = 4;
// Consumers that receive nothing for this time are stuck.
const PATIENCE_MS = 120_000;

const [binary, modules] = process.argv.slice(2);
const require = createRequire(join(resolve(modules), "node_modules", "x.js"));
const { SQSClient, CreateQueueCommand, GetQueueAttributesCommand, SendMessageBatchCommand } =
  require("@aws-sdk/client-sqs");
const { Consumer } = require("sqs-consumer");

async function everyMessageIsHandledOnce(endpoint) {
  const credentials = { accessKeyId: "made", secretAccessKey: "up" };
  const sqs = new SQSClient({ endpoint, region: "eu-west-1", credentials });
  const { QueueUrl: queueUrl } = await sqs.send(new CreateQueueCommand({ QueueName: "consumed" }));
  for (let n = 0; n < MESSAGES; n += 10) {
    const Entries = Array.from({ length: 10 }, (_, at) => ({ Id: `${at}`, MessageBody: `${n + at}` }));
    const { Failed } = await sqs.send(new SendMessageBatchCommand({ QueueUrl: queueUrl, Entries }));
    assert.equal(Failed, undefined);
  }
  const handled = new Map();
  const errors = [];
  let [last, done] = [Date.now(), undefined];
  const finished = new Promise((resolve) => (done = resolve));
  const handle = (message) => {
    handled.set(message.Body, (handled.get(message.Body) ?? 0) + 1);
    last = Date.now();
    if (handled.size === MESSAGES) done();
  };
  const consumers = Array.from({ length: CONSUMERS }, (_, n) => {
    // Before it stops, it deletes the messages that it has handled.
    const waits = { waitTimeSeconds: 2, visibilityTimeout: 60, pollingCompleteWaitTimeMs: PATIENCE_MS };
    const options = { queueUrl, sqs, batchSize: 10, ...waits };
    // One kind of handler gets single messages, the other batches.
    const one = async (message) => (handle(message), message);
    const batch = async (messages) => (messages.forEach(handle), messages);
    const consumer = Consumer.create({ ...options, ...(n % 2 ? { handleMessageBatch: batch } : { handleMessage: one }) });
    for (const event of ["error", "processing_error", "timeout_error"]) {
      consumer.on(event, (error) => errors.push(`${event}: ${error}`));
    }
    consumer.start();
    return consumer;
  });
  const stuck = setInterval(() => Date.now() - last > PATIENCE_MS && done(), 1000);
  await finished;
  clearInterval(stuck);
  await Promise.all(
    consumers.map((consumer) => {
      const stopped = new Promise((resolve) => consumer.on("stopped", resolve));
      consumer.stop();
      return stopped;
    }),
  );
  assert.deepEqual(errors, []);
  assert.equal(handled.size, MESSAGES);
  assert.deepEqual([...handled].filter(([, times]) => times > 1), []);
  const AttributeNames = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"];
  const { Attributes } = await sqs.send(new GetQueueAttributesCommand({ QueueUrl: queueUrl, AttributeNames }));
  assert.deepEqual(Object.values(Attributes), ["0", "0"]);
}

const broker = await start(binary);
let [passed, failed] = [1, 0];
try {
  await everyMessageIsHandledOnce(broker.endpoint);
} catch (error) {
  [passed, failed] = [0, 1];
  console.error("FAILED sqs-consumer:", error);
}
await broker.stop();
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed);
