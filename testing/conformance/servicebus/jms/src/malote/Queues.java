package malote;

import static malote.Harness.*;

import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.TemporaryQueue;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** Browsers, selectors, transactions, temporary queues, delays. */
final class Queues {
    static final List<Case> CASES = List.of(
        new Case("a browser changes nothing", Queues::browser),
        new Case("a browser with a selector returns matching messages", Queues::browserSelector),
        new Case("a consumer with a selector is refused", Queues::consumerSelector),
        new Case("a rolled back receive is redelivered in order", Queues::rollback),
        new Case("a transaction is all or nothing", Queues::commit),
        new Case("a closed consumer returns prefetched messages", Queues::prefetched),
        new Case("request and reply over a temporary queue", Queues::requestReply),
        new Case("a delivery delay", Queues::delay),
        new Case("a producer without a destination", Queues::anonymous));

    private Queues() {
    }

    private static List<String> browse(Session session, String queue, String selector) throws Exception {
        try (QueueBrowser browser = session.createBrowser(session.createQueue(queue), selector)) {
            List<String> all = new ArrayList<>();
            for (Object message : Collections.list(browser.getEnumeration())) {
                all.add(text((Message) message));
            }
            return all;
        }
    }

    private static void browser() throws Exception {
        String queue = queue();
        try (Connection connection = connect()) {
            Session session = connection.createSession();
            List<String> wanted = new ArrayList<>();
            for (int i = 0; i < 30; i++) {
                wanted.add(String.valueOf(i));
            }
            send(session, queue, wanted.toArray(new String[0]));
            same("browsed", browse(session, queue, null), wanted);
            same("browsed again", browse(session, queue, null), wanted);
            same("left", held(queue), 30L);
            same("received", receive(session.createConsumer(session.createQueue(queue)), 30), wanted);
        }
    }

    private static void colours(Session session, String queue) throws Exception {
        MessageProducer producer = session.createProducer(session.createQueue(queue));
        String[] colours = {"red", "blue", "red", "blue"};
        for (int i = 0; i < colours.length; i++) {
            Message message = session.createTextMessage(colours[i] + i);
            message.setStringProperty("color", colours[i]);
            message.setJMSType("type" + i);
            producer.send(message, DeliveryMode.PERSISTENT, i, 0);
        }
    }

    private static void browserSelector() throws Exception {
        String queue = queue();
        try (Connection connection = connect()) {
            Session session = connection.createSession();
            colours(session, queue);
            same("blue", browse(session, queue, "color = 'blue'"), List.of("blue1", "blue3"));
            same("by type", browse(session, queue, "JMSType IN ('type0', 'type3')"), List.of("red0", "blue3"));
            same("persistent", browse(session, queue, "JMSDeliveryMode = 'PERSISTENT'").size(), 4);
            same("left", held(queue), 4L);
        }
    }

    private static void consumerSelector() throws Exception {
        String queue = queue();
        try (Connection connection = connect()) {
            Session session = connection.createSession();
            colours(session, queue);
            refused("a consumer for blue", "Selectors are not implemented",
                () -> session.createConsumer(session.createQueue(queue), "color = 'blue'"));
            // The connection continues, and nothing was lost.
            same("all", receive(session.createConsumer(session.createQueue(queue)), 4).size(), 4);
        }
    }

    private static void rollback() throws Exception {
        String queue = queue();
        try (Connection connection = connect()) {
            send(connection.createSession(), queue, "1", "2", "3", "4", "5");
            Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
            MessageConsumer consumer = session.createConsumer(session.createQueue(queue));
            same("first", receive(consumer, 3), List.of("1", "2", "3"));
            session.rollback();
            for (int i = 1; i <= 5; i++) {
                Message message = consumer.receive(PATIENCE_MS);
                same("after the rollback", text(message), String.valueOf(i));
                same("redelivered " + i, message.getJMSRedelivered(), i <= 3);
                same("deliveries of " + i, message.getIntProperty("JMSXDeliveryCount"), i <= 3 ? 2 : 1);
            }
            session.commit();
            same("left", held(queue), 0L);
        }
    }

    private static void commit() throws Exception {
        String from = queue();
        String to = queue();
        try (Connection connection = connect()) {
            send(connection.createSession(), from, "job");
            Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
            MessageConsumer consumer = session.createConsumer(session.createQueue(from));
            for (boolean commits : new boolean[] {false, true}) {
                same("job", receive(consumer, 1), List.of("job"));
                send(session, to, "done");
                same("messages before the commit", held(to), 0L);
                if (commits) {
                    session.commit();
                } else {
                    session.rollback();
                }
            }
            same("jobs", held(from), 0L);
            same("done", held(to), 1L);
        }
    }

    private static void prefetched() throws Exception {
        String queue = queue();
        try (Connection connection = connect()) {
            Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
            send(session, queue, "1", "2", "3");
            MessageConsumer first = session.createConsumer(session.createQueue(queue));
            Message one = first.receive(PATIENCE_MS);
            same("first", text(one), "1");
            one.acknowledge();
            first.close();
            MessageConsumer second = session.createConsumer(session.createQueue(queue));
            Message two = second.receive(PATIENCE_MS);
            same("second", text(two), "2");
            that(!two.getJMSRedelivered(), "an unread message counts as redelivered");
        }
    }

    private static void requestReply() throws Exception {
        String queue = queue();
        try (Connection client = connect(); Connection server = connect()) {
            CompletableFuture<Void> served = CompletableFuture.runAsync(() -> {
                try {
                    Session session = server.createSession();
                    Message request = session.createConsumer(session.createQueue(queue)).receive(PATIENCE_MS);
                    Message reply = session.createTextMessage("re: " + text(request));
                    reply.setJMSCorrelationID(request.getJMSMessageID());
                    session.createProducer(null).send(request.getJMSReplyTo(), reply);
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            });
            Session session = client.createSession();
            TemporaryQueue replies = session.createTemporaryQueue();
            MessageConsumer consumer = session.createConsumer(replies);
            Message request = session.createTextMessage("hello");
            request.setJMSReplyTo(replies);
            session.createProducer(session.createQueue(queue)).send(request);
            Message reply = consumer.receive(PATIENCE_MS);
            same("reply", text(reply), "re: hello");
            same("correlation", reply.getJMSCorrelationID(), request.getJMSMessageID());
            served.get();
            String name = replies.getQueueName();
            that(api("GET", "/queues", "").contains(name), "the temporary queue is not listed");
            consumer.close();
            replies.delete();
            until("a deleted temporary queue is not listed", () -> !api("GET", "/queues", "").contains(name));
        }
    }

    private static void delay() throws Exception {
        String queue = queue();
        try (Connection connection = connect()) {
            Session session = connection.createSession();
            MessageProducer producer = session.createProducer(session.createQueue(queue));
            producer.setDeliveryDelay(3_600_000);
            producer.send(session.createTextMessage("in an hour"));
            producer.setDeliveryDelay(1_000);
            producer.send(session.createTextMessage("in a second"));
            MessageConsumer consumer = session.createConsumer(session.createQueue(queue));
            Message message = consumer.receive(PATIENCE_MS);
            same("first", text(message), "in a second");
            that(System.currentTimeMillis() >= message.getJMSDeliveryTime(), "it was delivered early");
            that(consumer.receive(SILENCE_MS) == null, "a message was delivered early");
        }
    }

    private static void anonymous() throws Exception {
        String one = queue();
        String two = queue();
        try (Connection connection = connect()) {
            Session session = connection.createSession();
            MessageProducer producer = session.createProducer(null);
            for (String queue : List.of(one, two, one)) {
                producer.send(session.createQueue(queue), session.createTextMessage("x"));
            }
            same("one", held(one), 2L);
            same("two", held(two), 1L);
        }
    }
}
