// Programs that send to a queue and receive from it, with the addresses of this server. Nothing here touches the page.

import { shell } from "./format.js";

/** Host and port of a protocol as the reader of the page reaches them, or undefined if its port is off. */
export function reach(overview, hostname, ...protocols) {
  const found = protocols
    .map((name) => overview.endpoints.find((endpoint) => endpoint.protocol === name))
    .find((endpoint) => endpoint !== undefined);
  if (!found) return undefined;
  const port = found.address.slice(found.address.lastIndexOf(":") + 1);
  const own = found.address.slice(0, found.address.lastIndexOf(":"));
  const any = own === "0.0.0.0" || own === "[::]";
  const local = ["127.0.0.1", "[::1]", "localhost"].includes(hostname);
  return { at: `${any || !local ? hostname : own}:${port}`, tls: found.tls };
}

/** Groups of programs: `[{name, languages: [{name, code}]}]`. */
export function snippets(overview, location, queue) {
  const { open } = overview;
  const session = queue.with_sessions;
  const base = location.origin;
  const url = `${base}/api/v1/queues/${encodeURIComponent(queue.name)}`;
  const user = open ? "" : " -u NAME";
  const create = queue.exists ? "" : "create=true";
  const query = [create, session ? "session=customer-1" : ""].filter(Boolean).join("&");
  const quoted = JSON.stringify(queue.name);
  const http = {
    name: "HTTP",
    languages: [
      {
        name: "curl",
        code: `# send
curl${user} -d 'Hello' ${shell(`${url}/messages${query ? `?${query}` : ""}`)}

# receive one message and delete it
curl${user} --json '{"max": 1, "mode": "delete"}' ${shell(`${url}/receive`)}`,
      },
      {
        name: "Python",
        code: `import requests

url = ${JSON.stringify(url)}${open ? "" : '\nauth = ("NAME", "PASSWORD")'}
requests.post(url + "/messages${query ? `?${query}` : ""}", data="Hello"${open ? "" : ", auth=auth"})
print(requests.post(url + "/receive", json={"max": 1, "mode": "delete"}${open ? "" : ", auth=auth"}).json())`,
      },
      {
        name: "JavaScript",
        code: `const url = ${JSON.stringify(url)};
${open ? "" : 'const headers = { authorization: "Bearer TOKEN" };\n'}await fetch(url + "/messages${query ? `?${query}` : ""}", { method: "POST", body: "Hello"${open ? "" : ", headers"} });
const answer = await fetch(url + "/receive", {
  method: "POST",
  headers: { "content-type": "application/json"${open ? "" : ", ...headers"} },
  body: JSON.stringify({ max: 1, mode: "delete" }),
});
console.log(await answer.json());`,
      },
    ],
  };
  const cli = {
    name: "Terminal",
    languages: [
      {
        name: "malote",
        code: `export MALOTE_URL=${shell(base)}
malote send ${shell(queue.name)} 'Hello'${queue.exists ? "" : " --create"}${session ? " --session customer-1" : ""}
malote receive ${shell(queue.name)}`,
      },
    ],
  };
  const all = [http, cli];
  const sqs = reach(overview, location.hostname, "sqs", "http");
  if (sqs) all.push(sqsSnippets(sqs, queue, open, session));
  const amqp = reach(overview, location.hostname, "amqp", "amqps");
  if (amqp) {
    all.push(serviceBusSnippets(amqp, queue, open, session));
    all.push(rabbitSnippets(amqp, queue, open, quoted));
  }
  return all;
}

function sqsSnippets({ at, tls }, queue, open, session) {
  const endpoint = `${tls ? "https" : "http"}://${at}`;
  const name = session ? `${queue.name}.fifo` : queue.name;
  const keys = open ? 'aws_access_key_id="any", aws_secret_access_key="any"' : 'aws_access_key_id="ID", aws_secret_access_key="SECRET"';
  const fifo = session ? ', MessageGroupId="customer-1", MessageDeduplicationId="1"' : "";
  const attributes = session ? ', Attributes={"FifoQueue": "true"}' : "";
  return {
    name: "Amazon SQS",
    languages: [
      {
        name: "Python (boto3)",
        code: `import boto3

sqs = boto3.client("sqs", endpoint_url=${JSON.stringify(endpoint)}, region_name="us-east-1",
                   ${keys})
url = sqs.${queue.exists ? `get_queue_url(QueueName=${JSON.stringify(name)})` : `create_queue(QueueName=${JSON.stringify(name)}${attributes})`}["QueueUrl"]
sqs.send_message(QueueUrl=url, MessageBody="Hello"${fifo})
for message in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5).get("Messages", []):
    print(message["Body"])
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])`,
      },
      {
        name: "AWS CLI",
        code: `export AWS_ENDPOINT_URL_SQS=${endpoint} AWS_REGION=us-east-1
export AWS_ACCESS_KEY_ID=${open ? "any" : "ID"} AWS_SECRET_ACCESS_KEY=${open ? "any" : "SECRET"}
url=$(aws sqs ${queue.exists ? "get-queue-url" : "create-queue"} --queue-name ${shell(name)}${!queue.exists && session ? " --attributes FifoQueue=true" : ""} --query QueueUrl --output text)
aws sqs send-message --queue-url "$url" --message-body Hello${session ? " --message-group-id customer-1 --message-deduplication-id 1" : ""}
aws sqs receive-message --queue-url "$url" --wait-time-seconds 5`,
      },
    ],
  };
}

function serviceBusSnippets({ at, tls }, queue, open, session) {
  const key = open ? "SharedAccessKeyName=any;SharedAccessKey=any" : "SharedAccessKeyName=ID;SharedAccessKey=SECRET";
  const connection = `Endpoint=sb://${at};${key}${tls ? "" : ";UseDevelopmentEmulator=true"}`;
  const first = queue.exists ? "" : `# Create the queue first: malote queue create ${shell(queue.name)}\n`;
  return {
    name: "Azure Service Bus",
    languages: [
      {
        name: "Python",
        code: `${first}from azure.servicebus import ServiceBusClient, ServiceBusMessage

connection = ${JSON.stringify(connection)}
with ServiceBusClient.from_connection_string(connection) as client:
    with client.get_queue_sender(${JSON.stringify(queue.name)}) as sender:
        sender.send_messages(ServiceBusMessage("Hello"${session ? ', session_id="customer-1"' : ""}))
    with client.get_queue_receiver(${JSON.stringify(queue.name)}${session ? ', session_id="customer-1"' : ""}, max_wait_time=5) as receiver:
        for message in receiver:
            print(str(message))
            receiver.complete_message(message)`,
      },
      {
        name: "JavaScript",
        code: `${first.replace("#", "//")}import { ServiceBusClient } from "@azure/service-bus";

const client = new ServiceBusClient(${JSON.stringify(connection)});
await client.createSender(${JSON.stringify(queue.name)}).sendMessages({ body: "Hello"${session ? ', sessionId: "customer-1"' : ""} });
const receiver = ${session ? `await client.acceptSession(${JSON.stringify(queue.name)}, "customer-1")` : `client.createReceiver(${JSON.stringify(queue.name)})`};
for (const message of await receiver.receiveMessages(1)) {
  console.log(message.body);
  await receiver.completeMessage(message);
}
await client.close();`,
      },
    ],
  };
}

function rabbitSnippets({ at, tls }, queue, open, quoted) {
  const user = open ? "guest:guest" : "NAME:PASSWORD";
  const url = `${tls ? "amqps" : "amqp"}://${user}@${at}/`;
  const declare = queue.exists
    ? `channel.queue_declare(${quoted}, passive=True)`
    : `channel.queue_declare(${quoted}, durable=True)`;
  return {
    name: "RabbitMQ",
    languages: [
      {
        name: "Python (pika)",
        code: `import pika

connection = pika.BlockingConnection(pika.URLParameters(${JSON.stringify(url)}))
channel = connection.channel()
${declare}
channel.basic_publish("", ${quoted}, b"Hello"${queue.with_sessions ? ', pika.BasicProperties(headers={"x-session": "customer-1"})' : ""})
for method, properties, body in channel.consume(${quoted}, inactivity_timeout=5):
    if method is None:
        break
    print(body)
    channel.basic_ack(method.delivery_tag)
connection.close()`,
      },
      {
        name: "JavaScript (amqplib)",
        code: `import amqp from "amqplib";

const connection = await amqp.connect(${JSON.stringify(url)});
const channel = await connection.createConfirmChannel();
await channel.${queue.exists ? `checkQueue(${quoted})` : `assertQueue(${quoted}, { durable: true })`};
channel.sendToQueue(${quoted}, Buffer.from("Hello")${queue.with_sessions ? ', { headers: { "x-session": "customer-1" } }' : ""});
await channel.waitForConfirms();
await channel.consume(${quoted}, (message) => {
  console.log(message.content.toString());
  channel.ack(message);
});`,
      },
    ],
  };
}
