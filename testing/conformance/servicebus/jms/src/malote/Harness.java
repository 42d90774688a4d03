package malote;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.apache.qpid.jms.JmsConnectionFactory;

/** What the cases share: the server's address, new queues, and checks. */
final class Harness {
    /** Timeout for something that must happen. It is shorter than a lock, so waiting for a lock to expire fails. */
    static final long PATIENCE_MS = 60_000;
    /** How long messages are locked. */
    static final long LOCK_MS = 300_000;
    /** How long to wait for something that must not happen. */
    static final long SILENCE_MS = 500;

    private static final AtomicInteger NAMES = new AtomicInteger();

    private Harness() {
    }

    record Case(String name, Check run) {
    }

    interface Check {
        void run() throws Exception;
    }

    static String variable(String name) {
        return Objects.requireNonNull(System.getenv(name), name + " is not set");
    }

    static Connection connect() throws JMSException {
        return connect("amqp://" + variable("MALOTE_AMQP_AT"));
    }

    static Connection connect(String uri) throws JMSException {
        Connection connection = new JmsConnectionFactory("any", "any", uri).createConnection();
        connection.start();
        return connection;
    }

    static String name() {
        return "jms-" + ProcessHandle.current().pid() + "-" + NAMES.incrementAndGet();
    }

    static String queue() {
        String name = name();
        api("PUT", "/queues/" + name, "{\"lock_ms\": " + LOCK_MS + "}");
        return name;
    }

    static String topic() {
        String name = name();
        api("PUT", "/topics/" + name, "{}");
        return name;
    }

    static String api(String method, String path, String body) {
        return api(variable("MALOTE_HTTP_AT"), method, path, body);
    }

    static String api(String at, String method, String path, String body) {
        URI to = URI.create("http://" + at + "/api/v1" + path);
        HttpRequest request = HttpRequest.newBuilder(to).header("content-type", "application/json")
            .method(method, HttpRequest.BodyPublishers.ofString(body)).build();
        try {
            var answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
            that(answer.statusCode() < 300, method + " " + path + ": " + answer.statusCode() + " " + answer.body());
            return answer.body();
        } catch (IOException | InterruptedException error) {
            throw new AssertionError(method + " " + path, error);
        }
    }

    /** Number of messages in a queue, including locked ones. */
    static long held(String queue) {
        String facts = api("GET", "/queues/" + queue, "");
        return count(facts, "ready") + count(facts, "locked");
    }

    private static long count(String facts, String name) {
        String counts = facts.substring(facts.indexOf("\"counts\""));
        String from = counts.substring(counts.indexOf("\"" + name + "\":") + name.length() + 3);
        return Long.parseLong(from.split("[,}]")[0].trim());
    }

    static void that(boolean holds, String why) {
        if (!holds) {
            throw new AssertionError(why);
        }
    }

    /** Waits for a condition. */
    static void until(String what, BooleanSupplier test) throws InterruptedException {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (!test.getAsBoolean()) {
            that(System.currentTimeMillis() < end, what + ": timeout");
            Thread.sleep(50);
        }
    }

    static void same(String what, Object is, Object wanted) {
        that(Objects.equals(is, wanted), what + " is " + is + ", not " + wanted);
    }

    /** Checks that the attempt fails with this text. */
    static void refused(String what, String text, Check attempt) throws Exception {
        try {
            attempt.run();
        } catch (JMSException error) {
            that(String.valueOf(error.getMessage()).contains(text), what + ": `" + text + "` expected, not " + error);
            return;
        }
        throw new AssertionError(what + ": `" + text + "` expected, but the call succeeded");
    }

    static void send(Session session, String queue, String... texts) throws JMSException {
        MessageProducer producer = session.createProducer(session.createQueue(queue));
        for (String text : texts) {
            producer.send(session.createTextMessage(text));
        }
        producer.close();
    }

    static String text(Message message) throws JMSException {
        that(message != null, "a message is missing");
        return ((TextMessage) message).getText();
    }

    static List<String> receive(MessageConsumer consumer, int count) throws JMSException {
        List<String> all = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            all.add(text(consumer.receive(PATIENCE_MS)));
        }
        return all;
    }
}
