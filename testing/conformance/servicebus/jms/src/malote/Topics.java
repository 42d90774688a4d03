package malote;

import static malote.Harness.*;

import jakarta.jms.Connection;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.Topic;
import java.util.List;

/** Subscriptions that end with their consumers, and durable ones, which are refused. */
final class Topics {
    static final List<Case> CASES = List.of(
        new Case("every subscriber gets a copy if its selector matches", Topics::subscribers),
        new Case("durable and shared subscriptions are refused", Topics::lasting));

    private Topics() {
    }

    private static void subscribers() throws Exception {
        String name = topic();
        try (Connection connection = connect()) {
            Session session = connection.createSession();
            Topic topic = session.createTopic(name);
            MessageConsumer all = session.createConsumer(topic);
            MessageConsumer blue = session.createConsumer(topic, "color = 'blue'");
            MessageProducer producer = session.createProducer(topic);
            for (String color : List.of("red", "blue")) {
                Message message = session.createTextMessage(color);
                message.setStringProperty("color", color);
                producer.send(message);
            }
            same("all", receive(all, 2), List.of("red", "blue"));
            same("blue", receive(blue, 1), List.of("blue"));
            that(blue.receive(SILENCE_MS) == null, "a message that does not match was delivered");
            all.close();
            blue.close();
            until("subscriptions end with their consumers", () -> !api("GET", "/queues", "").contains(name + "/"));
        }
    }

    private static void lasting() throws Exception {
        String name = topic();
        try (Connection connection = connect()) {
            Session session = connection.createSession();
            Topic topic = session.createTopic(name);
            refused("shared", "", () -> session.createSharedConsumer(topic, "s"));
            refused("shared durable", "", () -> session.createSharedDurableConsumer(topic, "s"));
        }
        Connection connection = new org.apache.qpid.jms.JmsConnectionFactory(
            "any", "any", "amqp://" + variable("MALOTE_AMQP_AT")).createConnection();
        try (connection) {
            connection.setClientID(name());
            connection.start();
            Session session = connection.createSession();
            refused("durable", "A link cannot create a durable or shared subscription",
                () -> session.createDurableSubscriber(session.createTopic(name), "s"));
        }
    }
}
