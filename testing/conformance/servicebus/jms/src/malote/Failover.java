package malote;

import static malote.Harness.*;

import jakarta.jms.Connection;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;

/** A broker is killed while a client uses it that reconnects by itself. */
final class Failover {
    static final List<Case> CASES = List.of(new Case("a client continues after kill -9", Failover::killed));

    private static final int MESSAGES = 300;
    private static final int KILLS = 2;

    private Failover() {
    }

    private static void killed() throws Exception {
        Server server = new Server();
        server.start();
        try {
            api(server.http(), "PUT", "/queues/q", "{\"lock_ms\": " + LOCK_MS + "}");
            String uri = "failover:(amqp://" + server.amqp() + ")?failover.reconnectDelay=50"
                + "&failover.maxReconnectDelay=200";
            try (Connection producing = connect(uri); Connection consuming = connect(uri)) {
                AtomicInteger sent = new AtomicInteger();
                CompletableFuture<Void> producer = CompletableFuture.runAsync(() -> produce(producing, sent));
                Session session = consuming.createSession(false, Session.CLIENT_ACKNOWLEDGE);
                MessageConsumer consumer = session.createConsumer(session.createQueue("q"));
                // By number, in the order of first delivery.
                Set<Integer> seen = new LinkedHashSet<>();
                int kills = 0;
                while (seen.size() < MESSAGES) {
                    if (kills < KILLS && seen.size() >= (kills + 1) * MESSAGES / (KILLS + 1)) {
                        kills++;
                        server.kill();
                        server.start();
                    }
                    // Messages that were prefetched and not acknowledged are redelivered before their locks expire.
                    Message message = consumer.receive(PATIENCE_MS);
                    seen.add(Integer.valueOf(text(message)));
                    message.acknowledge();
                }
                producer.get();
                same("sent", sent.get(), MESSAGES);
                same("kills", kills, KILLS);
                int last = -1;
                for (int number : seen) {
                    that(number > last, number + " was first delivered after " + last);
                    last = number;
                }
            }
        } finally {
            server.remove();
        }
    }

    private static void produce(Connection connection, AtomicInteger sent) {
        try {
            Session session = connection.createSession();
            MessageProducer producer = session.createProducer(session.createQueue("q"));
            for (int i = 0; i < MESSAGES; i++) {
                producer.send(session.createTextMessage(String.valueOf(i)));
                sent.incrementAndGet();
            }
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }
}
