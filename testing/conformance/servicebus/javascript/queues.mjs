// Queues: send, receive in both modes, settle, defer, schedule, peek, dead letters, the processor.

import assert from "node:assert/strict";
import { bodies, fails, main, nothing, PATIENCE, queue, receive, until, with_client } from "./harness.mjs";

async function a_message_is_received_unchanged() {
  await with_client(async (bus) => {
    const name = await queue();
    const message = {
      body: { n: 1, text: "ü", list: [1, null, true] },
      messageId: "m-1",
      correlationId: "c-1",
      contentType: "application/json",
      subject: "about",
      to: "you",
      replyTo: "me",
      replyToSessionId: "rs",
      sessionId: undefined,
      timeToLive: 3_600_000,
      applicationProperties: { text: "t", number: 7, fraction: 1.5, yes: true, at: new Date(1_700_000_000_000) },
    };
    await bus.createSender(name).sendMessages(message);
    const receiver = bus.createReceiver(name);
    const [got] = await receive(receiver, 1);
    for (const field of ["body", "messageId", "correlationId", "contentType", "subject", "to", "replyTo"]) {
      assert.deepEqual(got[field], message[field], field);
    }
    assert.equal(got.replyToSessionId, "rs");
    assert.equal(got.timeToLive, 3_600_000);
    // The client returns times as numbers.
    const { at, ...rest } = message.applicationProperties;
    assert.deepEqual(got.applicationProperties, { ...rest, at: at.getTime() });
    assert.equal(got.deliveryCount, 0);
    assert.equal(got.state, "active");
    assert.ok(got.sequenceNumber.toNumber() >= 0);
    assert.ok(Math.abs(Date.now() - got.enqueuedTimeUtc.getTime()) < 300_000);
    assert.ok(got.lockedUntilUtc.getTime() > Date.now());
    assert.match(got.lockToken, /^[0-9a-f-]{36}$/);
    await receiver.completeMessage(got);
    await nothing(receiver);
  });
}

async function bodies_of_every_kind_are_preserved() {
  await with_client(async (bus) => {
    const name = await queue();
    const sender = bus.createSender(name);
    const bytes = Buffer.from([0, 1, 255, 254]);
    await sender.sendMessages([{ body: bytes }, { body: "text" }, { body: 42 }, { body: "" }]);
    await sender.sendMessages({ body: { k: "v" }, bodyType: "value" });
    await sender.sendMessages({ body: [1, "two", [3]], bodyType: "sequence" });
    await sender.sendMessages({ body: Buffer.alloc(200_000, 7) });
    const receiver = bus.createReceiver(name, { receiveMode: "receiveAndDelete" });
    const got = await receive(receiver, 7);
    assert.deepEqual(got[0].body, bytes);
    assert.deepEqual(bodies(got.slice(1, 4)), ["text", 42, ""]);
    assert.deepEqual([got[4].body, got[4]._rawAmqpMessage.bodyType], [{ k: "v" }, "value"]);
    assert.deepEqual([got[5].body, got[5]._rawAmqpMessage.bodyType], [[1, "two", [3]], "sequence"]);
    assert.equal(got[6].body.length, 200_000);
  });
}

async function batches_keep_their_order() {
  await with_client(async (bus) => {
    const name = await queue();
    const sender = bus.createSender(name);
    const batch = await sender.createMessageBatch();
    for (let i = 0; i < 100; i += 1) assert.ok(batch.tryAddMessage({ body: i }));
    assert.equal(batch.count, 100);
    await sender.sendMessages(batch);
    await sender.sendMessages(Array.from({ length: 50 }, (_, i) => ({ body: 100 + i })));
    const receiver = bus.createReceiver(name, { receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await receive(receiver, 150)), Array.from({ length: 150 }, (_, i) => i));
    const small = await sender.createMessageBatch({ maxSizeInBytes: 1000 });
    assert.ok(small.tryAddMessage({ body: "x" }));
    assert.ok(!small.tryAddMessage({ body: "x".repeat(2000) }));
    // Larger than the maximum message size.
    await fails("MessageSizeExceeded", () => sender.sendMessages({ body: Buffer.alloc(3 << 20) }));
    await sender.sendMessages({ body: "still here" });
    assert.deepEqual(bodies(await receive(receiver, 1)), ["still here"]);
  });
}

async function receive_and_delete_removes_at_once() {
  await with_client(async (bus) => {
    const name = await queue();
    await bus.createSender(name).sendMessages([{ body: "a" }, { body: "b" }]);
    const receiver = bus.createReceiver(name, { receiveMode: "receiveAndDelete" });
    const [message] = await receive(receiver, 1);
    await assert.rejects(() => receiver.completeMessage(message));
    await receiver.close();
    const other = bus.createReceiver(name);
    assert.deepEqual(bodies(await receive(other, 1)), ["b"]);
  });
}

async function abandoned_messages_are_redelivered_and_counted() {
  await with_client(async (bus) => {
    const name = await queue({ failed_max: 3 });
    await bus.createSender(name).sendMessages({ body: "x", applicationProperties: { kept: 1 } });
    const receiver = bus.createReceiver(name);
    for (let count = 0; count < 3; count += 1) {
      const [message] = await receive(receiver, 1);
      assert.equal(message.deliveryCount, count);
      await receiver.abandonMessage(message, { tries: count });
    }
    const dead = bus.createReceiver(name, { subQueueType: "deadLetter" });
    const [letter] = await receive(dead, 1);
    assert.equal(letter.deadLetterReason, "MaxDeliveryCountExceeded");
    assert.equal(letter.applicationProperties.kept, 1);
    assert.equal(letter.applicationProperties.tries, 2);
    await dead.completeMessage(letter);
    await nothing(dead);
  });
}

async function dead_letters_have_a_reason() {
  await with_client(async (bus) => {
    const name = await queue();
    await bus.createSender(name).sendMessages([{ body: "bad" }, { body: "worse" }]);
    const receiver = bus.createReceiver(name);
    const [first, second] = await receive(receiver, 2);
    await receiver.deadLetterMessage(first, {
      deadLetterReason: "no good",
      deadLetterErrorDescription: "it is bad",
      extra: "more",
    });
    await receiver.deadLetterMessage(second);
    const dead = bus.createReceiver(name, { subQueueType: "deadLetter" });
    const letters = await receive(dead, 2);
    const badLetter = letters.find((letter) => letter.body === "bad");
    assert.equal(badLetter.deadLetterReason, "no good");
    assert.equal(badLetter.deadLetterErrorDescription, "it is bad");
    assert.equal(badLetter.applicationProperties.extra, "more");
    for (const letter of letters) await dead.completeMessage(letter);
    await nothing(dead);
  });
}

async function deferred_messages_are_received_by_number() {
  await with_client(async (bus) => {
    const name = await queue();
    await bus.createSender(name).sendMessages([{ body: "a" }, { body: "b" }, { body: "c" }]);
    const receiver = bus.createReceiver(name);
    const messages = await receive(receiver, 3);
    for (const message of messages) await receiver.deferMessage(message);
    await nothing(receiver);
    const [peeked] = await receiver.peekMessages(1);
    assert.equal(peeked.state, "deferred");
    const numbers = messages.map((message) => message.sequenceNumber);
    const [b, a] = await receiver.receiveDeferredMessages([numbers[1], numbers[0]]);
    assert.deepEqual([a.body, b.body].sort(), ["a", "b"]);
    await receiver.completeMessage(a);
    await receiver.abandonMessage(b);
    const [again] = await receiver.receiveDeferredMessages(b.sequenceNumber);
    assert.equal(again.body, b.body);
    await receiver.deadLetterMessage(again, { deadLetterReason: "enough" });
    const [c] = await receiver.receiveDeferredMessages(numbers[2]);
    await receiver.completeMessage(c);
    await fails("MessageNotFound", () => receiver.receiveDeferredMessages(numbers[2]));
    const dead = bus.createReceiver(name, { subQueueType: "deadLetter", receiveMode: "receiveAndDelete" });
    assert.equal((await receive(dead, 1))[0].deadLetterReason, "enough");
  });
}

async function scheduled_messages_are_delivered_or_cancelled() {
  await with_client(async (bus) => {
    const name = await queue();
    const sender = bus.createSender(name);
    const hour = new Date(Date.now() + 3_600_000);
    const [number] = await sender.scheduleMessages({ body: "cancelled" }, hour);
    const numbers = await sender.scheduleMessages([{ body: "x" }, { body: "y" }], hour);
    const receiver = bus.createReceiver(name, { receiveMode: "receiveAndDelete" });
    const peeked = await receiver.peekMessages(10);
    assert.deepEqual(peeked.map((message) => message.state), ["scheduled", "scheduled", "scheduled"]);
    assert.equal(peeked[0].scheduledEnqueueTimeUtc.getTime(), hour.getTime());
    await sender.cancelScheduledMessages(number);
    await sender.cancelScheduledMessages(numbers);
    await fails("MessageNotFound", () => sender.cancelScheduledMessages(number));
    assert.deepEqual(await receiver.peekMessages(10), []);
    const soon = new Date(Date.now() + 1_500);
    await sender.scheduleMessages({ body: "due" }, soon);
    await sender.sendMessages({ body: "sent", scheduledEnqueueTimeUtc: soon });
    const got = await receive(receiver, 2);
    assert.deepEqual(bodies(got).sort(), ["due", "sent"]);
    for (const message of got) assert.ok(message.enqueuedTimeUtc.getTime() >= soon.getTime() - 1);
  });
}

async function peek_changes_nothing() {
  await with_client(async (bus) => {
    const name = await queue();
    await bus.createSender(name).sendMessages(Array.from({ length: 5 }, (_, i) => ({ body: i })));
    const receiver = bus.createReceiver(name);
    const first = await receiver.peekMessages(2);
    assert.deepEqual(bodies(first), [0, 1]);
    // Each peek continues where the last one ended.
    assert.deepEqual(bodies(await receiver.peekMessages(2)), [2, 3]);
    const again = await receiver.peekMessages(10, { fromSequenceNumber: first[1].sequenceNumber });
    assert.deepEqual(bodies(again), [1, 2, 3, 4]);
    const got = await receive(receiver, 5);
    assert.ok(got.every((message) => message.deliveryCount === 0));
  });
}

async function locks_are_renewed_and_expire() {
  await with_client(async (bus) => {
    const name = await queue({ lock_ms: 6_000 });
    await bus.createSender(name).sendMessages([{ body: "renewed" }]);
    const receiver = bus.createReceiver(name, { maxAutoLockRenewalDurationInMs: 0 });
    const [held] = await receive(receiver, 1);
    const before = held.lockedUntilUtc.getTime();
    await new Promise((done) => setTimeout(done, 100));
    const renewed = await receiver.renewMessageLock(held);
    assert.ok(renewed.getTime() > before);
    // The next receiver shows that the lock has expired.
    const other = bus.createReceiver(name);
    const [again] = await receive(other, 1);
    assert.equal(again.deliveryCount, 1);
    await fails("MessageLockLost", () => receiver.renewMessageLock(held));
    await fails("MessageLockLost", () => receiver.completeMessage(held));
    await other.completeMessage(again);
    await nothing(other);
  });
}

async function the_client_renews_locks() {
  await with_client(async (bus) => {
    const name = await queue({ lock_ms: 3_000 });
    await bus.createSender(name).sendMessages({ body: "slow" });
    const receiver = bus.createReceiver(name);
    let settled;
    const done = new Promise((resolve, reject) => {
      receiver.subscribe(
        {
          async processMessage(message) {
            const until_first = message.lockedUntilUtc.getTime();
            await until("the lock is renewed", () => Date.now() > until_first + 500);
            settled = message.deliveryCount;
          },
          async processError({ error }) {
            reject(error);
          },
        },
        { autoCompleteMessages: true },
      );
      until("it is processed", () => settled !== undefined).then(resolve, reject);
    });
    await done;
    assert.equal(settled, 0);
    await until("it is completed", async () => (await bus.createReceiver(name).peekMessages(1)).length === 0);
  });
}

async function duplicates_are_accepted_and_dropped() {
  await with_client(async (bus) => {
    const name = await queue({ dedup: { window_ms: 60_000 } });
    const sender = bus.createSender(name);
    await sender.sendMessages({ body: "first", messageId: "same" });
    await sender.sendMessages({ body: "second", messageId: "same" });
    await sender.sendMessages([{ body: "third", messageId: "same" }, { body: "other", messageId: "another" }]);
    const receiver = bus.createReceiver(name, { receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await receive(receiver, 2)), ["first", "other"]);
    await nothing(receiver);
  });
}

async function the_processor_settles_messages() {
  await with_client(async (bus) => {
    const name = await queue();
    const count = 100;
    await bus.createSender(name).sendMessages(Array.from({ length: count }, (_, i) => ({ body: i })));
    const receiver = bus.createReceiver(name);
    const [seen, errors] = [new Map(), []];
    let [now, most] = [0, 0];
    const subscription = receiver.subscribe(
      {
        async processMessage(message) {
          now += 1;
          most = Math.max(most, now);
          seen.set(message.body, (seen.get(message.body) ?? 0) + 1);
          await new Promise((done) => setTimeout(done, 1));
          now -= 1;
          // One message fails the first time and is redelivered.
          if (message.body === 7 && message.deliveryCount === 0) throw new Error("not yet");
        },
        async processError({ error }) {
          errors.push(error.message);
        },
      },
      { maxConcurrentCalls: 8, autoCompleteMessages: true },
    );
    await until("all are processed", () => seen.size === count && seen.get(7) === 2);
    await subscription.close();
    assert.ok(most > 1 && most <= 8, `${most} at once`);
    assert.deepEqual(errors, ["not yet"]);
    assert.ok([...seen].every(([body, times]) => times === (body === 7 ? 2 : 1)));
    const other = bus.createReceiver(name);
    await until("all are completed", async () => (await other.peekMessages(1)).length === 0);
  });
}

async function messages_can_be_iterated() {
  await with_client(async (bus) => {
    const name = await queue();
    await bus.createSender(name).sendMessages([{ body: 1 }, { body: 2 }, { body: 3 }]);
    const receiver = bus.createReceiver(name);
    let sum = 0;
    for await (const message of receiver.getMessageIterator()) {
      sum += message.body;
      await receiver.completeMessage(message);
      if (sum === 6) break;
    }
    await nothing(receiver);
  });
}

async function messages_of_a_closed_receiver_return_by_the_end_of_their_lock() {
  await with_client(async (bus) => {
    const name = await queue({ lock_ms: 1_000 });
    await bus.createSender(name).sendMessages({ body: "x" });
    const first = bus.createReceiver(name, { maxAutoLockRenewalDurationInMs: 0 });
    await receive(first, 1);
    await first.close();
    const second = bus.createReceiver(name);
    const [again] = await receive(second, 1);
    await second.completeMessage(again);
  });
}

async function wrong_names_and_kinds_are_errors() {
  await with_client(async (bus) => {
    await fails("MessagingEntityNotFound", () => bus.createSender("no-such-queue").sendMessages({ body: "x" }));
    const missing = bus.createReceiver("no-such-queue");
    await fails("MessagingEntityNotFound", () => missing.receiveMessages(1, { maxWaitTimeInMs: PATIENCE }));
    await fails("MessagingEntityNotFound", () => missing.peekMessages(1));
    const plain = await queue();
    await assert.rejects(() => bus.acceptNextSession(plain), /InvalidOperation.*does not require sessions/);
    // The client reports this for every named session that it does not get.
    await fails("SessionCannotBeLocked", () => bus.acceptSession(plain, "s"));
    const sessions = await queue({ sessions: "dynamic" });
    const receiver = bus.createReceiver(sessions);
    await assert.rejects(() => receiver.receiveMessages(1, { maxWaitTimeInMs: PATIENCE }), /InvalidOperation.*requires sessions/);
    await assert.rejects(() => bus.createSender(sessions).sendMessages({ body: "no session" }), /SessionId was not set/);
  });
}

await main(
  the_client_renews_locks,
  locks_are_renewed_and_expire,
  a_message_is_received_unchanged,
  bodies_of_every_kind_are_preserved,
  batches_keep_their_order,
  receive_and_delete_removes_at_once,
  abandoned_messages_are_redelivered_and_counted,
  dead_letters_have_a_reason,
  deferred_messages_are_received_by_number,
  scheduled_messages_are_delivered_or_cancelled,
  peek_changes_nothing,
  duplicates_are_accepted_and_dropped,
  the_processor_settles_messages,
  messages_can_be_iterated,
  messages_of_a_closed_receiver_return_by_the_end_of_their_lock,
  wrong_names_and_kinds_are_errors,
);
