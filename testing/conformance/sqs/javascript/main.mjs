// Tests the JavaScript SDKs against a new broker: `node main.mjs PATH-OF-THE-BINARY NODE_MODULES`.
//
// Version 3, version 2 with JSON, and an older version 2 with Query. All of them verify the MD5s of bodies.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

import { start } from "./broker.mjs";

const [binary, modules] = process.argv.slice(2);
const require = createRequire(join(resolve(modules), "node_modules", "x.js"));
process.env.AWS_SDK_JS_SUPPRESS_MAINTENANCE_MODE_MESSAGE = "1";

let names = 0;
const name = () => `js-${process.pid}-${names++}`;

// The same interface for all three: a function from an action and its parameters to the answer.
function clients(endpoint) {
  const credentials = { accessKeyId: "made", secretAccessKey: "up" };
  const v3 = require("@aws-sdk/client-sqs");
  const client = new v3.SQSClient({ endpoint, region: "eu-west-1", credentials, maxAttempts: 1 });
  const old = (sdk) => {
    const { SQS } = require(sdk);
    const sqs = new SQS({ endpoint, region: "eu-west-1", ...credentials, maxRetries: 0 });
    return (action, params) => sqs[action[0].toLowerCase() + action.slice(1)](params).promise();
  };
  return {
    "v3": (action, params) => client.send(new v3[`${action}Command`](params)),
    "v2 json": old("aws-sdk"),
    "v2 query": old("aws-sdk-query"),
  };
}

// The producer, consumer and monitor of a small application.
async function sendReceiveAndDelete(call) {
  const { QueueUrl } = await call("CreateQueue", { QueueName: name(), Attributes: { VisibilityTimeout: "60" } });
  const MessageAttributes = {
    priority: { DataType: "Number", StringValue: "1" },
    kind: { DataType: "String", StringValue: "email" },
    raw: { DataType: "Binary", BinaryValue: Buffer.from([0, 255, 10]) },
  };
  const sent = await call("SendMessage", { QueueUrl, MessageBody: "héllo <&>\r\n", MessageAttributes });
  const entries = Array.from({ length: 9 }, (_, n) => ({ Id: `e${n}`, MessageBody: JSON.stringify({ n }) }));
  const batch = await call("SendMessageBatch", { QueueUrl, Entries: entries });
  assert.equal(batch.Successful.length, 9);
  const counts = await call("GetQueueAttributes", { QueueUrl, AttributeNames: ["ApproximateNumberOfMessages"] });
  assert.equal(counts.Attributes.ApproximateNumberOfMessages, "10");

  const asked = { QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 5, MessageAttributeNames: ["All"], AttributeNames: ["All"] };
  const { Messages } = await call("ReceiveMessage", asked);
  assert.equal(Messages.length, 10);
  const [first] = Messages;
  assert.equal(first.MessageId, sent.MessageId);
  assert.equal(first.Body, "héllo <&>\r\n");
  assert.deepEqual(Buffer.from(first.MessageAttributes.raw.BinaryValue), MessageAttributes.raw.BinaryValue);
  assert.equal(first.MessageAttributes.priority.StringValue, "1");
  assert.equal(first.MD5OfMessageAttributes, sent.MD5OfMessageAttributes);
  assert.equal(first.Attributes.ApproximateReceiveCount, "1");
  const ReceiptHandle = first.ReceiptHandle;
  await call("ChangeMessageVisibility", { QueueUrl, ReceiptHandle, VisibilityTimeout: 120 });
  await call("DeleteMessage", { QueueUrl, ReceiptHandle });
  const Entries = Messages.slice(1).map((message, n) => ({ Id: `${n}`, ReceiptHandle: message.ReceiptHandle }));
  assert.equal((await call("DeleteMessageBatch", { QueueUrl, Entries })).Successful.length, 9);
  await call("DeleteQueue", { QueueUrl });
}

async function groupsAreInOrder(call) {
  const Attributes = { FifoQueue: "true", ContentBasedDeduplication: "true" };
  const { QueueUrl } = await call("CreateQueue", { QueueName: `${name()}.fifo`, Attributes });
  for (const MessageBody of ["a", "b", "a", "c"]) {
    await call("SendMessage", { QueueUrl, MessageBody, MessageGroupId: "g" });
  }
  const { Messages } = await call("ReceiveMessage", { QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 5 });
  assert.deepEqual(Messages.map((message) => message.Body), ["a", "b", "c"]);
}

async function errorsHaveTheirNames(call, which) {
  // Version 3 names the shape, version 2 the code of the older protocol.
  const named = (error) => (which === "v3" ? error.name : error.code);
  const refused = async (shape, code, action, params) => {
    const error = await call(action, params).then(() => assert.fail("the call succeeded"), (error) => error);
    assert.equal(named(error), which === "v3" ? shape : code, String(error));
  };
  const start = "AWS.SimpleQueueService.";
  await refused("QueueDoesNotExist", `${start}NonExistentQueue`, "GetQueueUrl", { QueueName: name() });
  const { QueueUrl } = await call("CreateQueue", { QueueName: name() });
  await refused("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", "DeleteMessage", { QueueUrl, ReceiptHandle: "x" });
  const MessageBody = "\u0001";
  await refused("InvalidMessageContents", "InvalidMessageContents", "SendMessage", { QueueUrl, MessageBody });
  const Entries = ["a", "a"].map((Id) => ({ Id, MessageBody: "x" }));
  await refused("BatchEntryIdsNotDistinct", `${start}BatchEntryIdsNotDistinct`, "SendMessageBatch", { QueueUrl, Entries });
}

async function theMonitorReadsQueueCounts(_, which, endpoint) {
  const { CloudWatch } = require(which === "v2 json" ? "aws-sdk" : "aws-sdk-query");
  const watch = new CloudWatch({ endpoint, region: "eu-west-1", accessKeyId: "made", secretAccessKey: "up" });
  const answer = await watch
    .getMetricStatistics({
      Namespace: "AWS/SQS",
      MetricName: "ApproximateNumberOfMessages",
      Dimensions: [{ Name: "QueueName", Value: "nobody" }],
      StartTime: new Date(Date.now() - 3600_000),
      EndTime: new Date(),
      Period: 300,
      Statistics: ["Average"],
    })
    .promise();
  assert.deepEqual([answer.Label, answer.Datapoints], ["ApproximateNumberOfMessages", []]);
}

const { endpoint, stop } = await start(binary);
let [passed, failed] = [0, 0];
for (const [which, call] of Object.entries(clients(endpoint))) {
  const checks = [sendReceiveAndDelete, groupsAreInOrder, errorsHaveTheirNames];
  // CloudWatch is a separate package in version 3; boto3 already tests its protocol.
  if (which !== "v3") checks.push(theMonitorReadsQueueCounts);
  for (const check of checks) {
    try {
      await check(call, which, endpoint);
      passed += 1;
    } catch (error) {
      failed += 1;
      console.error(`FAILED ${which} ${check.name}:`, error);
    }
  }
}
await stop();
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed === 0 ? 0 : 1);
