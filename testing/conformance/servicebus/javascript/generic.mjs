// A generic AMQP 1.0 client (rhea): browsing, selectors, dynamic nodes.

import assert from "node:assert/strict";

import { AMQP, PATIENCE, main, queue, rhea } from "./harness.mjs";

// Waits for the next event of this name, or for a failure.
function event(emitter, name, failure) {
  return new Promise((done, fail) => {
    const timer = setTimeout(() => fail(new Error(`timeout waiting for ${name}`)), PATIENCE);
    emitter.once(name, (context) => (clearTimeout(timer), done(context)));
    if (failure) emitter.once(failure, (context) => (clearTimeout(timer), fail(context)));
  });
}

async function with_connection(doing) {
  const [host, port] = AMQP.split(":");
  const options = { host, port: Number(port), username: "any", password: "any", reconnect: false };
  const connection = rhea.create_container().connect(options);
  try {
    await event(connection, "connection_open");
    await doing(connection);
  } finally {
    connection.close();
  }
}

async function send(connection, address, ...messages) {
  const sender = connection.open_sender(address);
  await event(sender, "sendable");
  for (const message of messages) {
    const accepted = event(sender, "accepted");
    sender.send(message);
    await accepted;
  }
  sender.close();
}

// Receives all messages, until a drain ends.
async function drained(connection, source, credit = 100) {
  const receiver = connection.open_receiver({ source, credit_window: 0, autoaccept: true });
  const bodies = [];
  receiver.on("message", ({ message }) => bodies.push(message.body));
  await event(receiver, "receiver_open");
  receiver.add_credit(credit);
  receiver.drain_credit();
  await event(receiver, "receiver_drained");
  receiver.close();
  return { bodies, source: receiver.remote.attach.source };
}

async function a_browser_changes_nothing() {
  const name = await queue();
  await with_connection(async (connection) => {
    await send(connection, name, { body: "1" }, { body: "2" });
    for (let i = 0; i < 2; i++) {
      const { bodies, source } = await drained(connection, { address: name, distribution_mode: "copy" });
      assert.deepEqual(bodies, ["1", "2"]);
      assert.equal(String(source.distribution_mode), "copy");
    }
    assert.deepEqual((await drained(connection, { address: name })).bodies, ["1", "2"]);
    assert.deepEqual((await drained(connection, { address: name })).bodies, []);
  });
}

async function a_selector_is_applied_or_refused() {
  const name = await queue();
  await with_connection(async (connection) => {
    const colored = (color) => ({ body: color, application_properties: { color } });
    await send(connection, name, colored("red"), colored("blue"));
    const filter = rhea.filter.selector("color = 'blue'");
    const { bodies } = await drained(connection, { address: name, distribution_mode: "copy", filter });
    assert.deepEqual(bodies, ["blue"]);
    const receiver = connection.open_receiver({ source: { address: name, filter } });
    const { receiver: refused } = await event(receiver, "receiver_error");
    assert.equal(refused.error.condition, "amqp:not-implemented");
  });
}

async function a_dynamic_node_receives_replies() {
  const name = await queue();
  await with_connection(async (client) => {
    await with_connection(async (server) => {
      server.open_receiver(name).on("message", ({ message }) => {
        send(server, message.reply_to, { body: `re: ${message.body}` });
      });
      const replies = client.open_receiver({ source: { dynamic: true } });
      await event(replies, "receiver_open");
      const reply = event(replies, "message");
      await send(client, name, { body: "hello", reply_to: replies.source.address });
      assert.equal((await reply).message.body, "re: hello");
    });
  });
}

await main(a_browser_changes_nothing, a_selector_is_applied_or_refused, a_dynamic_node_receives_replies);
