package malote;

import static malote.Harness.*;

import com.azure.core.amqp.models.AmqpMessageBody;
import com.azure.core.amqp.models.AmqpMessageBodyType;
import com.azure.core.util.BinaryData;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusMessageBatch;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.models.AbandonOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.DeferOptions;
import com.azure.messaging.servicebus.models.ServiceBusMessageState;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Queues: send, receive in both modes, all settlements, locks, dead letters. */
final class Queues {
    static final List<Case> CASES = List.of(
        new Case("send and receive a message", Queues::goesRound),
        new Case("bodies of every kind are preserved", Queues::bodiesSurvive),
        new Case("batches keep their order", Queues::batches),
        new Case("large messages use several frames", Queues::large),
        new Case("too large messages are refused", Queues::tooLarge),
        new Case("receive and delete", Queues::takes),
        new Case("abandoned messages are redelivered, then dead-lettered", Queues::abandoned),
        new Case("a dead letter has a reason", Queues::deadLetter),
        new Case("deferred messages are received by sequence number", Queues::deferred),
        new Case("locks are renewed and expire", Queues::locks),
        new Case("peek changes nothing", Queues::peek),
        new Case("scheduled messages are delivered when due", Queues::scheduled),
        new Case("expired messages are dead-lettered", Queues::expired),
        new Case("duplicates are accepted and dropped", Queues::duplicates),
        new Case("a message wakes a waiting receiver", Queues::waits),
        new Case("unknown entities are not found", Queues::unknown));

    private Queues() {
    }

    private static void goesRound() {
        String queue = queue();
        var builder = builder();
        ServiceBusMessage sent = text("hello").setSubject("label").setMessageId("m1").setCorrelationId("c1")
            .setContentType("text/plain").setTo("there").setReplyTo("back").setReplyToSessionId("rs").setSessionId("s")
            .setPartitionKey("s").setTimeToLive(Duration.ofSeconds(100));
        sent.getApplicationProperties().putAll(Map.of("n", 1L, "t", "x", "b", true, "f", 1.5));
        send(builder, queue, sent);
        try (var receiver = receiver(builder, queue)) {
            ServiceBusReceivedMessage got = one(receiver);
            same("body", got.getBody().toString(), "hello");
            same("fields", List.of(got.getSubject(), got.getMessageId(), got.getCorrelationId(), got.getContentType(),
                got.getTo(), got.getReplyTo(), got.getReplyToSessionId(), got.getSessionId(), got.getPartitionKey()),
                List.of("label", "m1", "c1", "text/plain", "there", "back", "rs", "s", "s"));
            same("properties", got.getApplicationProperties(), Map.of("n", 1L, "t", "x", "b", true, "f", 1.5));
            same("time to live", got.getTimeToLive(), Duration.ofSeconds(100));
            same("count", got.getDeliveryCount(), 0L);
            same("number", got.getSequenceNumber(), 1L);
            same("enqueued sequence number of a message that was not forwarded", got.getEnqueuedSequenceNumber(), 0L);
            that(got.getLockToken() != null && got.getLockedUntil().isAfter(OffsetDateTime.now()), "the message is not locked");
            same("expiry", Duration.between(got.getEnqueuedTime(), got.getExpiresAt()), Duration.ofSeconds(100));
            receiver.complete(got);
            nothing(receiver);
        }
    }

    private static void bodiesSurvive() {
        String queue = queue();
        var builder = builder();
        try (var sender = sender(builder, queue); var receiver = receiver(builder, queue)) {
            sender.sendMessage(new ServiceBusMessage(AmqpMessageBody.fromValue("a value")));
            sender.sendMessage(new ServiceBusMessage(AmqpMessageBody.fromSequence(List.of(1L, "x"))));
            sender.sendMessage(new ServiceBusMessage(BinaryData.fromBytes(new byte[0])));
            List<ServiceBusReceivedMessage> got = receive(receiver, 3);
            AmqpMessageBody value = got.get(0).getRawAmqpMessage().getBody();
            same("kind", value.getBodyType(), AmqpMessageBodyType.VALUE);
            same("value", value.getValue(), "a value");
            AmqpMessageBody sequence = got.get(1).getRawAmqpMessage().getBody();
            same("kind", sequence.getBodyType(), AmqpMessageBodyType.SEQUENCE);
            same("sequence", sequence.getSequence(), List.of(1L, "x"));
            same("nothing", got.get(2).getBody().toBytes().length, 0);
            that(got.get(2).getMessageId() != null, "a message without an id got none");
            got.forEach(receiver::complete);
        }
    }

    private static void batches() {
        String queue = queue();
        var builder = builder();
        try (var sender = sender(builder, queue); var receiver = receiver(builder, queue)) {
            List<String> wanted = new ArrayList<>();
            for (int from = 0; from < 3; from++) {
                ServiceBusMessageBatch batch = sender.createMessageBatch();
                for (int i = 0; i < 20; i++) {
                    wanted.add(String.valueOf(from * 20 + i));
                    that(batch.tryAddMessage(text(wanted.get(wanted.size() - 1))), "the batch is full");
                }
                sender.sendMessages(batch);
            }
            sender.sendMessages(List.of(text("60"), text("61")));
            wanted.addAll(List.of("60", "61"));
            List<ServiceBusReceivedMessage> got = receive(receiver, 62);
            same("order", bodies(got), wanted);
            got.forEach(receiver::complete);
            nothing(receiver);
        }
    }

    private static void large() {
        String queue = queue("\"message_bytes_max\": 4194304");
        var builder = builder();
        String payload = "0123456789abcdef".repeat(128 * 1024);
        send(builder, queue, text(payload), text("small"));
        try (var receiver = receiver(builder, queue)) {
            List<ServiceBusReceivedMessage> got = receive(receiver, 2);
            that(got.get(0).getBody().toString().equals(payload), "the body differs");
            same("the next", got.get(1).getBody().toString(), "small");
            got.forEach(receiver::complete);
        }
    }

    private static void tooLarge() {
        String queue = queue("\"message_bytes_max\": 100000");
        try (var sender = sender(builder(), queue)) {
            refused("too large", ServiceBusFailureReason.MESSAGE_SIZE_EXCEEDED, () -> sender.sendMessage(text("x".repeat(200_000))));
            sender.sendMessage(text("x"));
        }
    }

    private static void takes() {
        String queue = queue();
        var builder = builder();
        send(builder, queue, text("0"), text("1"), text("2"));
        try (var taker = taker(builder, queue)) {
            same("order", bodies(receive(taker, 3)), List.of("0", "1", "2"));
        }
        try (var receiver = receiver(builder, queue)) {
            nothing(receiver);
        }
    }

    private static void abandoned() {
        String queue = queue("\"failed_max\": 3");
        var builder = builder();
        send(builder, queue, text("x"));
        try (var receiver = receiver(builder, queue); var dead = grave(builder, queue)) {
            for (long count = 0; count < 3; count++) {
                ServiceBusReceivedMessage got = one(receiver);
                same("count", got.getDeliveryCount(), count);
                receiver.abandon(got, new AbandonOptions().setPropertiesToModify(Map.of("changed", "by " + count)));
            }
            nothing(receiver);
            ServiceBusReceivedMessage got = one(dead);
            same("reason", got.getDeadLetterReason(), "MaxDeliveryCountExceeded");
            same("property", got.getApplicationProperties().get("changed"), "by 2");
            dead.complete(got);
        }
    }

    private static void deadLetter() {
        String queue = queue();
        var builder = builder();
        send(builder, queue, text("x").setMessageId("m"));
        try (var receiver = receiver(builder, queue); var dead = grave(builder, queue)) {
            receiver.deadLetter(one(receiver), new DeadLetterOptions().setDeadLetterReason("bad")
                .setDeadLetterErrorDescription("very bad").setPropertiesToModify(Map.of("more", "changed")));
            ServiceBusReceivedMessage got = one(dead);
            same("why", List.of(got.getDeadLetterReason(), got.getDeadLetterErrorDescription(), got.getMessageId()),
                List.of("bad", "very bad", "m"));
            same("property", got.getApplicationProperties().get("more"), "changed");
            dead.complete(got);
        }
    }

    private static void deferred() {
        String queue = queue();
        var builder = builder();
        send(builder, queue, text("0"), text("1"), text("2"));
        try (var receiver = receiver(builder, queue); var taker = taker(builder, queue)) {
            List<Long> numbers = new ArrayList<>();
            for (ServiceBusReceivedMessage got : receive(receiver, 3)) {
                receiver.defer(got, new DeferOptions().setPropertiesToModify(Map.of("put", "by")));
                numbers.add(got.getSequenceNumber());
            }
            nothing(receiver);
            receiver.peekMessages(3).forEach(seen -> {
                same("state", seen.getState(), ServiceBusMessageState.DEFERRED);
                same("property", seen.getApplicationProperties().get("put"), "by");
            });
            List<ServiceBusReceivedMessage> first = new ArrayList<>();
            receiver.receiveDeferredMessageBatch(numbers.subList(0, 2)).forEach(first::add);
            same("found", bodies(first), List.of("0", "1"));
            receiver.renewMessageLock(first.get(0));
            receiver.complete(first.get(0));
            receiver.abandon(first.get(1));
            ServiceBusReceivedMessage again = receiver.receiveDeferredMessage(numbers.get(1));
            same("count", again.getDeliveryCount(), 1L);
            receiver.deadLetter(again);
            // The client fails on the error "not found".
            refusedAs("a completed message", "", () -> receiver.receiveDeferredMessage(numbers.get(0)));
            same("taken", taker.receiveDeferredMessage(numbers.get(2)).getBody().toString(), "2");
        }
    }

    private static void locks() {
        String queue = queue("\"lock_ms\": 6000");
        var builder = builder();
        send(builder, queue, text("x"));
        // Without renewal by the client.
        try (var receiver = builder.receiver().queueName(queue).disableAutoComplete().maxAutoLockRenewDuration(Duration.ZERO)
            .buildClient()) {
            ServiceBusReceivedMessage got = one(receiver);
            OffsetDateTime before = got.getLockedUntil();
            pause(50);
            that(receiver.renewMessageLock(got).isAfter(before), "the lock is not renewed");
            ServiceBusReceivedMessage again = one(receiver); // arrives when the lock has expired
            same("count", again.getDeliveryCount(), 1L);
            refused("renewing", ServiceBusFailureReason.MESSAGE_LOCK_LOST, () -> receiver.renewMessageLock(got));
            refused("completing", ServiceBusFailureReason.MESSAGE_LOCK_LOST, () -> receiver.complete(got));
            receiver.complete(again);
        }
    }

    private static void peek() {
        String queue = queue();
        var builder = builder();
        try (var sender = sender(builder, queue); var receiver = receiver(builder, queue)) {
            that(receiver.peekMessage() == null, "the queue is not empty");
            List<ServiceBusMessage> all = new ArrayList<>();
            for (int i = 0; i < 120; i++) {
                all.add(text(String.valueOf(i)));
            }
            sender.sendMessages(all);
            List<ServiceBusReceivedMessage> seen = new ArrayList<>();
            receiver.peekMessages(100).forEach(seen::add);
            same("seen", seen.size(), 100);
            same("the next", receiver.peekMessage().getBody().toString(), "100");
            ServiceBusReceivedMessage got = one(receiver);
            same("a locked message", receiver.peekMessage(1).getBody().toString(), "0");
            receiver.complete(got);
            same("after a completed message", receiver.peekMessage(1).getBody().toString(), "1");
        }
    }

    private static void scheduled() {
        String queue = queue();
        var builder = builder();
        try (var sender = sender(builder, queue); var receiver = receiver(builder, queue)) {
            OffsetDateTime now = OffsetDateTime.now();
            sender.scheduleMessage(text("soon"), now.plusSeconds(2));
            List<Long> numbers = new ArrayList<>();
            sender.scheduleMessages(List.of(text("a"), text("b")), now.plusHours(1)).forEach(numbers::add);
            same("numbers", numbers.size(), 2);
            same("state", receiver.peekMessage().getState(), ServiceBusMessageState.SCHEDULED);
            sender.cancelScheduledMessages(numbers);
            ServiceBusReceivedMessage got = one(receiver);
            same("body", got.getBody().toString(), "soon");
            receiver.complete(got);
            sender.sendMessage(text("by annotation").setScheduledEnqueueTime(now.plusHours(1)));
            nothing(receiver);
        }
    }

    private static void expired() {
        String queue = queue("\"on_expiry\": \"dead_letter\"");
        var builder = builder();
        send(builder, queue, text("x").setTimeToLive(Duration.ofMillis(200)));
        try (var dead = grave(builder, queue)) {
            same("reason", one(dead).getDeadLetterReason(), "TTLExpiredException");
        }
    }

    private static void duplicates() {
        String queue = queue("\"dedup\": {\"window_ms\": 60000}");
        var builder = builder();
        send(builder, queue, text("x").setMessageId("same"), text("x").setMessageId("same"));
        try (var receiver = receiver(builder, queue)) {
            receiver.complete(one(receiver));
            nothing(receiver);
        }
    }

    private static void waits() {
        String queue = queue();
        var builder = builder();
        try (var receiver = receiver(builder, queue)) {
            var came = CompletableFuture.supplyAsync(() -> one(receiver).getBody().toString());
            pause(300);
            send(builder, queue, text("now"));
            same("body", came.orTimeout(PATIENCE.toSeconds(), TimeUnit.SECONDS).join(), "now");
        }
    }

    private static void unknown() {
        var builder = builder();
        var missing = ServiceBusFailureReason.MESSAGING_ENTITY_NOT_FOUND;
        try (var sender = sender(builder, "nobody"); var receiver = receiver(builder, "nobody")) {
            refused("sending", missing, () -> sender.sendMessage(text("x")));
            refused("peeking", missing, receiver::peekMessage);
            refusedAs("receiving", "could not be found", () -> one(receiver));
        }
    }
}
