// Sessions: by name, next available, order, state, renewal, loss; deferred and scheduled messages.

import assert from "node:assert/strict";
import { bodies, fails, main, nothing, queue, receive, until, with_client } from "./harness.mjs";

const with_sessions = (spec = {}) => queue({ sessions: "dynamic", ...spec });

async function a_session_is_accepted_by_name() {
  await with_client(async (bus) => {
    const name = await with_sessions();
    await bus.createSender(name).sendMessages([
      { body: "a1", sessionId: "a" },
      { body: "b1", sessionId: "b" },
      { body: "a2", sessionId: "a" },
    ]);
    const a = await bus.acceptSession(name, "a");
    assert.equal(a.sessionId, "a");
    assert.ok(a.sessionLockedUntilUtc.getTime() > Date.now());
    const got = await receive(a, 2);
    assert.deepEqual(bodies(got), ["a1", "a2"]);
    assert.ok(got.every((message) => message.sessionId === "a"));
    for (const message of got) await a.completeMessage(message);
    await nothing(a);
    await fails("SessionCannotBeLocked", () => bus.acceptSession(name, "a"));
    await a.close();
    await (await bus.acceptSession(name, "a")).close();
    // A session that never had a message is accepted, and is empty.
    const empty = await bus.acceptSession(name, "new");
    await nothing(empty);
  });
}

async function the_next_session_has_messages() {
  await with_client(async (bus) => {
    const name = await with_sessions();
    const sender = bus.createSender(name);
    const ids = Array.from({ length: 10 }, (_, i) => `s${i}`);
    await sender.sendMessages(ids.flatMap((sessionId) => [{ body: 1, sessionId }, { body: 2, sessionId }]));
    const held = await Promise.all(ids.map(() => bus.acceptNextSession(name)));
    assert.deepEqual(held.map((receiver) => receiver.sessionId).sort(), ids);
    for (const receiver of held) {
      const got = await receive(receiver, 2);
      assert.deepEqual(bodies(got), [1, 2]);
      for (const message of got) await receiver.completeMessage(message);
      await receiver.close();
    }
  });
}

async function accepting_without_a_session_times_out() {
  await with_client(
    async (bus) => {
      const name = await with_sessions();
      await fails("ServiceTimeout", () => bus.acceptNextSession(name));
    },
    { timeoutInMs: 1_500 },
  );
}

async function a_ready_session_wakes_a_waiting_accept() {
  await with_client(async (bus) => {
    const name = await with_sessions();
    const waiting = bus.acceptNextSession(name);
    await bus.createSender(name).sendMessages({ body: "x", sessionId: "late" });
    const receiver = await waiting;
    assert.equal(receiver.sessionId, "late");
    assert.deepEqual(bodies(await receive(receiver, 1)), ["x"]);
  });
}

async function an_abandoned_message_keeps_its_place() {
  await with_client(async (bus) => {
    const name = await with_sessions();
    await bus.createSender(name).sendMessages([1, 2, 3].map((body) => ({ body, sessionId: "s" })));
    const receiver = await bus.acceptSession(name, "s");
    const [first] = await receive(receiver, 1);
    await receiver.abandonMessage(first);
    const again = await receive(receiver, 3);
    assert.deepEqual(bodies(again), [1, 2, 3]);
    assert.deepEqual(again.map((message) => message.deliveryCount), [1, 0, 0]);
    for (const message of again) await receiver.completeMessage(message);
  });
}

async function state_is_kept_between_holders() {
  await with_client(async (bus) => {
    const name = await with_sessions();
    const first = await bus.acceptSession(name, "s");
    assert.equal(await first.getSessionState(), null);
    await first.setSessionState({ step: 3, text: "ü" });
    await first.close();
    const second = await bus.acceptSession(name, "s");
    assert.deepEqual(await second.getSessionState(), { step: 3, text: "ü" });
    await second.setSessionState(null);
    assert.equal(await second.getSessionState(), null);
  });
}

async function a_session_lock_is_renewed() {
  await with_client(async (bus) => {
    const name = await with_sessions({ lock_ms: 3_000 });
    await bus.createSender(name).sendMessages({ body: "x", sessionId: "s" });
    const receiver = await bus.acceptSession(name, "s", { maxAutoLockRenewalDurationInMs: 0 });
    const [message] = await receive(receiver, 1);
    const first = receiver.sessionLockedUntilUtc.getTime();
    let renewed;
    await until("the first lock would be over", async () => {
      renewed = await receiver.renewSessionLock();
      return Date.now() > first + 200;
    });
    assert.ok(renewed.getTime() > first);
    assert.equal(receiver.sessionLockedUntilUtc.getTime(), renewed.getTime());
    await receiver.completeMessage(message);
  });
}

async function the_client_renews_session_locks() {
  await with_client(async (bus) => {
    const name = await with_sessions({ lock_ms: 3_000 });
    await bus.createSender(name).sendMessages({ body: "x", sessionId: "s" });
    const receiver = await bus.acceptSession(name, "s");
    const [message] = await receive(receiver, 1);
    const first = receiver.sessionLockedUntilUtc.getTime();
    await until("the first lock would be over", () => Date.now() > first + 200);
    await receiver.completeMessage(message);
    await nothing(receiver);
  });
}

async function a_lost_session_is_accepted_by_another_receiver() {
  await with_client(async (bus) => {
    const name = await with_sessions({ lock_ms: 1_500 });
    await bus.createSender(name).sendMessages({ body: "x", sessionId: "s" });
    const first = await bus.acceptSession(name, "s", { maxAutoLockRenewalDurationInMs: 0 });
    const [message] = await receive(first, 1);
    const second = await bus.acceptNextSession(name);
    assert.equal(second.sessionId, "s");
    const [again] = await receive(second, 1);
    assert.equal(again.deliveryCount, 1);
    await fails("SessionLockLost", () => first.completeMessage(message));
    await fails("SessionLockLost", () => first.renewSessionLock());
    await second.completeMessage(again);
  });
}

async function deferred_and_dead_messages_keep_their_session() {
  await with_client(async (bus) => {
    const name = await with_sessions();
    await bus.createSender(name).sendMessages([1, 2, 3].map((body) => ({ body, sessionId: "s" })));
    const receiver = await bus.acceptSession(name, "s");
    const [one, two, three] = await receive(receiver, 3);
    await receiver.deferMessage(one);
    await receiver.deadLetterMessage(two, { deadLetterReason: "bad" });
    await receiver.completeMessage(three);
    const [deferred] = await receiver.receiveDeferredMessages(one.sequenceNumber);
    assert.deepEqual([deferred.body, deferred.sessionId], [1, "s"]);
    await receiver.completeMessage(deferred);
    // The dead letters of a queue with sessions have no sessions to accept.
    const dead = bus.createReceiver(name, { subQueueType: "deadLetter" });
    const [letter] = await receive(dead, 1);
    assert.deepEqual([letter.body, letter.sessionId, letter.deadLetterReason], [2, "s", "bad"]);
    await dead.completeMessage(letter);
  });
}

async function scheduled_messages_belong_to_sessions() {
  await with_client(async (bus) => {
    const name = await with_sessions();
    const sender = bus.createSender(name);
    const soon = new Date(Date.now() + 1_000);
    await sender.scheduleMessages({ body: "later", sessionId: "s" }, soon);
    const receiver = await bus.acceptNextSession(name);
    assert.equal(receiver.sessionId, "s");
    assert.deepEqual(bodies(await receive(receiver, 1)), ["later"]);
    assert.ok(Date.now() >= soon.getTime() - 1);
  });
}

async function peek_in_a_session() {
  await with_client(async (bus) => {
    const name = await with_sessions();
    await bus.createSender(name).sendMessages([
      { body: "a", sessionId: "a" },
      { body: "b", sessionId: "b" },
      { body: "a2", sessionId: "a" },
    ]);
    const receiver = await bus.acceptSession(name, "a");
    assert.deepEqual(bodies(await receiver.peekMessages(10)), ["a", "a2"]);
  });
}

async function the_processor_of_a_session() {
  await with_client(async (bus) => {
    const name = await with_sessions();
    await bus.createSender(name).sendMessages(Array.from({ length: 20 }, (_, body) => ({ body, sessionId: "s" })));
    const receiver = await bus.acceptSession(name, "s");
    const seen = [];
    const subscription = receiver.subscribe({
      async processMessage(message) {
        seen.push(message.body);
      },
      async processError({ error }) {
        throw error;
      },
    });
    await until("all are processed", () => seen.length === 20);
    await subscription.close();
    assert.deepEqual(seen, Array.from({ length: 20 }, (_, i) => i));
    await until("all are completed", async () => (await receiver.peekMessages(1)).length === 0);
  });
}

async function receive_and_delete_in_a_session() {
  await with_client(async (bus) => {
    const name = await with_sessions();
    await bus.createSender(name).sendMessages([1, 2].map((body) => ({ body, sessionId: "s" })));
    const receiver = await bus.acceptSession(name, "s", { receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await receive(receiver, 2)), [1, 2]);
    await receiver.close();
    const again = await bus.acceptSession(name, "s");
    assert.deepEqual(await again.receiveMessages(1, { maxWaitTimeInMs: 500 }), []);
  });
}

await main(
  a_session_lock_is_renewed,
  the_client_renews_session_locks,
  a_lost_session_is_accepted_by_another_receiver,
  accepting_without_a_session_times_out,
  a_session_is_accepted_by_name,
  the_next_session_has_messages,
  a_ready_session_wakes_a_waiting_accept,
  an_abandoned_message_keeps_its_place,
  state_is_kept_between_holders,
  deferred_and_dead_messages_keep_their_session,
  scheduled_messages_belong_to_sessions,
  peek_in_a_session,
  the_processor_of_a_session,
  receive_and_delete_in_a_session,
);
