package malote;

import static malote.Harness.*;

import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Sessions: by name, next available, state, locks, order, refusals. */
final class Sessions {
    static final List<Case> CASES = List.of(
        new Case("accept a session by name", Sessions::named),
        new Case("the next session is the one that has waited longest", Sessions::next),
        new Case("a ready session wakes a waiting accept", Sessions::ready),
        new Case("a session has one holder", Sessions::oneHolder),
        new Case("session state is stored and cleared", Sessions::state),
        new Case("a session lock is renewed and expires", Sessions::lost),
        new Case("closing returns messages in order, without counting a delivery", Sessions::closing),
        new Case("deferred messages in a session", Sessions::deferred),
        new Case("wrong kinds of receivers are refused", Sessions::wrongKinds),
        new Case("many links and management on one connection", Sessions::manyLinks));

    private Sessions() {
    }

    private static ServiceBusSessionReceiverClient acceptor(ServiceBusClientBuilder builder, String queue) {
        return builder.sessionReceiver().queueName(queue).disableAutoComplete().maxAutoLockRenewDuration(Duration.ZERO)
            .buildClient();
    }

    private static ServiceBusReceiverClient accept(ServiceBusClientBuilder builder, String queue, String session) {
        return acceptor(builder, queue).acceptSession(session);
    }

    private static void named() {
        String queue = sessions();
        var builder = builder();
        List<String> wanted = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            wanted.add(String.valueOf(i));
            send(builder, queue, of("a", wanted.get(i)), of("b", "other"));
        }
        try (var receiver = accept(builder, queue, "a")) {
            same("session", receiver.getSessionId(), "a");
            List<ServiceBusReceivedMessage> got = receive(receiver, 10);
            same("order", bodies(got), wanted);
            got.forEach(receiver::complete);
            nothing(receiver);
        }
    }

    private static void next() {
        String queue = sessions();
        var builder = builder();
        send(builder, queue, of("x", "x"), of("y", "y"), of("z", "z"));
        List<String> seen = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            try (var receiver = acceptor(builder, queue).acceptNextSession()) {
                seen.add(receiver.getSessionId());
                receiver.complete(one(receiver));
            }
        }
        same("order", seen, List.of("x", "y", "z"));
    }

    private static void ready() {
        String queue = sessions();
        var builder = builder();
        var acceptor = acceptor(builder, queue);
        var found = CompletableFuture.supplyAsync(() -> acceptor.acceptNextSession().getSessionId());
        pause(300);
        send(builder, queue, of("late", "x"));
        same("session", found.orTimeout(PATIENCE.toSeconds(), TimeUnit.SECONDS).join(), "late");
        acceptor.close();
    }

    private static void oneHolder() {
        String queue = sessions();
        var builder = builder();
        var other = builder();
        send(builder, queue, of("a", "x"));
        var holder = accept(builder, queue, "a");
        refusedAs("a session that is held", "held by another receiver", () -> accept(other, queue, "a"));
        holder.close();
        try (var receiver = accept(other, queue, "a")) {
            same("body", one(receiver).getBody().toString(), "x");
        }
    }

    private static void state() {
        String queue = sessions();
        var builder = builder();
        byte[] bytes = "\0state".getBytes(StandardCharsets.UTF_8);
        try (var receiver = accept(builder, queue, "s")) {
            that(receiver.getSessionState() == null, "there is a state");
            receiver.setSessionState(bytes);
        }
        // On another connection, because this client may reuse a link to the same session while it is being closed.
        try (var receiver = accept(builder(), queue, "s")) {
            that(java.util.Arrays.equals(receiver.getSessionState(), bytes), "the state was lost");
            receiver.setSessionState(null);
            that(receiver.getSessionState() == null, "the state was not cleared");
        }
    }

    private static void lost() {
        String queue = sessions("\"lock_ms\": 10000");
        var builder = builder();
        var other = builder();
        send(builder, queue, of("s", "x"));
        var receiver = accept(builder, queue, "s");
        ServiceBusReceivedMessage got = one(receiver);
        OffsetDateTime before = OffsetDateTime.now();
        pause(50);
        that(receiver.renewSessionLock().isAfter(before), "the lock is not renewed");
        // A waiting accept gets the session when the lock expires.
        try (var next = acceptor(other, queue).acceptNextSession()) {
            same("session", next.getSessionId(), "s");
            refusedAs("completing", "", () -> receiver.complete(got));
            refusedAs("renewing", "", receiver::renewSessionLock);
            ServiceBusReceivedMessage again = one(next);
            same("count", again.getDeliveryCount(), 1L);
            next.complete(again);
        }
        receiver.close();
    }

    private static void closing() {
        String queue = sessions();
        var builder = builder();
        send(builder, queue, of("s", "0"), of("s", "1"), of("s", "2"));
        try (var receiver = accept(builder, queue, "s")) {
            receive(receiver, 3);
        }
        try (var receiver = accept(builder(), queue, "s")) {
            List<ServiceBusReceivedMessage> got = receive(receiver, 3);
            same("order", bodies(got), List.of("0", "1", "2"));
            got.forEach(message -> same("count", message.getDeliveryCount(), 0L));
            receiver.abandon(got.get(0));
            ServiceBusReceivedMessage again = one(receiver);
            same("abandoned", again.getBody().toString(), "0");
            same("count", again.getDeliveryCount(), 1L);
            List.of(again, got.get(1), got.get(2)).forEach(receiver::complete);
            nothing(receiver);
        }
    }

    private static void deferred() {
        String queue = sessions();
        var builder = builder();
        send(builder, queue, of("s", "0"), of("s", "1"), of("t", "other"));
        try (var receiver = accept(builder, queue, "s")) {
            List<ServiceBusReceivedMessage> got = receive(receiver, 2);
            receiver.defer(got.get(0));
            receiver.complete(got.get(1));
            ServiceBusReceivedMessage found = receiver.receiveDeferredMessage(got.get(0).getSequenceNumber());
            same("found", found.getBody().toString(), "0");
            receiver.complete(found);
            that(receiver.peekMessage() == null, "the session still has a message");
        }
    }

    private static void wrongKinds() {
        String plain = queue();
        String with = sessions();
        var builder = builder();
        refusedAs("a session of a queue without sessions", "does not require sessions", () -> accept(builder, plain, "a"));
        try (var receiver = receiver(builder, with); var sender = sender(builder, with)) {
            refusedAs("a plain receiver of a queue with sessions", "requires sessions", () -> one(receiver));
            refusedAs("a message without a session", "SessionId was not set", () -> sender.sendMessage(text("x")));
            sender.sendMessage(of("s", "x"));
        }
    }

    private static void manyLinks() {
        var builder = builder();
        String plain = queue();
        String with = sessions();
        try (var sender = sender(builder, plain); var other = sender(builder, with); var receiver = receiver(builder, plain)) {
            List<ServiceBusReceiverClient> held = new ArrayList<>();
            for (int i = 0; i < 30; i++) {
                other.sendMessage(of("s" + i, "x"));
                held.add(accept(builder, with, "s" + i));
            }
            for (int i = 0; i < 30; i++) {
                sender.sendMessage(text("p" + i));
                ServiceBusReceiverClient session = held.get(i);
                session.setSessionState(("state " + i).getBytes(StandardCharsets.UTF_8));
                session.renewSessionLock();
                same("state", new String(session.getSessionState(), StandardCharsets.UTF_8), "state " + i);
                same("seen", receiver.peekMessage(1) != null, true);
                session.complete(one(session));
                ServiceBusReceivedMessage got = one(receiver);
                receiver.renewMessageLock(got);
                receiver.complete(got);
            }
            held.forEach(ServiceBusReceiverClient::close);
        }
    }
}
