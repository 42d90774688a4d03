package malote;

import static malote.Harness.*;

import com.azure.messaging.servicebus.ServiceBusErrorContext;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusProcessorClient;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessageContext;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;

/** Processors of the client library, with and without sessions. */
final class Processors {
    static final List<Case> CASES = List.of(
        new Case("a processor handles every message once", Processors::plain),
        new Case("200 sessions are processed concurrently, each in order", Processors::twoHundred),
        new Case("sessions beyond the limit are processed when others are idle", Processors::moreThanAtOnce),
        new Case("the lock of a long message is renewed", Processors::renewed),
        new Case("a failing handler abandons the message", Processors::failing));

    private Processors() {
    }

    /** Waits for a condition, with a timeout. */
    private static void await(String what, BooleanSupplier is) {
        long end = System.nanoTime() + PATIENCE.multipliedBy(2).toNanos();
        while (!is.getAsBoolean()) {
            that(System.nanoTime() < end, what);
            pause(20);
        }
    }

    private static void plain() {
        String queue = queue();
        Map<String, AtomicInteger> seen = new ConcurrentHashMap<>();
        var builder = builder();
        try (var sender = sender(builder, queue)) {
            for (int batch = 0; batch < 10; batch++) {
                List<ServiceBusMessage> messages = new ArrayList<>();
                for (int i = 0; i < 50; i++) {
                    messages.add(text(String.valueOf(batch * 50 + i)));
                }
                sender.sendMessages(messages);
            }
        }
        try (ServiceBusProcessorClient processor = builder.processor().queueName(queue).maxConcurrentCalls(8).prefetchCount(30)
            .processMessage(context -> seen.computeIfAbsent(body(context), key -> new AtomicInteger()).incrementAndGet())
            .processError(context -> System.err.println(context.getException())).buildProcessorClient()) {
            processor.start();
            await("500 messages are handled", () -> seen.size() == 500);
        }
        try (var receiver = receiver(builder, queue)) {
            that(seen.values().stream().allMatch(count -> count.get() == 1), "a message was handled twice");
            nothing(receiver);
        }
    }

    private static String body(ServiceBusReceivedMessageContext context) {
        return context.getMessage().getBody().toString();
    }

    /** What the session handlers saw, and all violations. */
    private static final class Book {
        final Map<String, List<Integer>> order = new HashMap<>();
        final Map<String, Integer> busy = new HashMap<>();
        final List<String> wrong = new ArrayList<>();
        int most;
        int handled;

        void handle(ServiceBusReceivedMessageContext context, long ms) {
            ServiceBusReceivedMessage message = context.getMessage();
            String session = message.getSessionId();
            synchronized (this) {
                if (busy.merge(session, 1, Integer::sum) > 1) {
                    wrong.add(session + " is handled by two threads");
                }
                most = Math.max(most, busy.size());
                if (message.getDeliveryCount() != 0) {
                    wrong.add(session + " was redelivered");
                }
                order.computeIfAbsent(session, key -> new ArrayList<>()).add(Integer.valueOf(body(context)));
            }
            pause(ms);
            synchronized (this) {
                busy.remove(session);
                handled++;
            }
        }

        synchronized int handled() {
            return handled;
        }

        synchronized void check(int sessions, int each) {
            same("violations", wrong, List.of());
            same("sessions", order.size(), sessions);
            order.forEach((session, numbers) -> {
                for (int i = 0; i < each; i++) {
                    same(session + " at " + i, numbers.get(i), i);
                }
                same("messages of " + session, numbers.size(), each);
            });
        }
    }

    private static void fill(String queue, int sessions, int each) {
        var builder = builder();
        try (var sender = sender(builder, queue)) {
            for (int i = 0; i < each; i++) {
                List<ServiceBusMessage> messages = new ArrayList<>();
                for (int n = 0; n < sessions; n++) {
                    messages.add(of("s" + n, String.valueOf(i)));
                }
                sender.sendMessages(messages);
            }
        }
    }

    private static ServiceBusProcessorClient pump(String queue, Book book, int atOnce, int prefetch, long ms) {
        return builder().sessionProcessor().queueName(queue).maxConcurrentSessions(atOnce).maxConcurrentCalls(1)
            .prefetchCount(prefetch).sessionIdleTimeout(Duration.ofSeconds(2)).maxAutoLockRenewDuration(Duration.ofMinutes(5))
            .processMessage(context -> book.handle(context, ms)).processError(Processors::logError).buildProcessorClient();
    }

    private static void logError(ServiceBusErrorContext context) {
        System.err.println(context.getErrorSource() + ": " + context.getException());
    }

    private static void twoHundred() {
        String queue = sessions();
        Book book = new Book();
        fill(queue, 200, 5);
        try (ServiceBusProcessorClient pump = pump(queue, book, 200, 0, 20)) {
            pump.start();
            await("1000 messages are handled: " + book.handled(), () -> book.handled() == 1000);
        }
        book.check(200, 5);
        System.err.println(book.most + " sessions were handled concurrently");
    }

    private static void moreThanAtOnce() {
        String queue = sessions();
        Book book = new Book();
        fill(queue, 40, 6);
        try (ServiceBusProcessorClient pump = pump(queue, book, 10, 5, 1)) {
            pump.start();
            await("240 messages are handled: " + book.handled(), () -> book.handled() == 240);
            // A released session is accepted again.
            send(builder(), queue, of("s0", "6"));
            await("a later message is handled", () -> book.handled() == 241);
        }
        same("violations", book.wrong, List.of());
        that(book.most <= 10, book.most + " concurrent sessions");
    }

    private static void renewed() {
        String queue = sessions("\"lock_ms\": 6000");
        Book book = new Book();
        fill(queue, 2, 2);
        try (ServiceBusProcessorClient pump = pump(queue, book, 2, 0, 8000)) {
            pump.start();
            await("4 long messages are handled: " + book.handled(), () -> book.handled() == 4);
        }
        book.check(2, 2);
    }

    private static void failing() {
        String queue = sessions();
        fill(queue, 1, 1);
        AtomicInteger attempts = new AtomicInteger();
        AtomicInteger done = new AtomicInteger();
        try (ServiceBusProcessorClient pump = builder().sessionProcessor().queueName(queue).maxConcurrentSessions(1)
            .processMessage(context -> {
                if (attempts.incrementAndGet() < 3) {
                    throw new IllegalStateException("not yet");
                }
                done.set((int) context.getMessage().getDeliveryCount());
            }).processError(context -> {
            }).buildProcessorClient()) {
            pump.start();
            await("the third attempt", () -> attempts.get() == 3 && done.get() > 0);
        }
        same("delivery count of the last attempt", done.get(), 2);
    }
}
