import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.Method;
import com.rabbitmq.client.ShutdownSignalException;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** What the checks share: connections, names of their own, waiting, and the errors that a broker closes with. */
final class Harness {
    /** The longest that a correct broker may take on a slow machine. */
    static final long PATIENCE_MS = 60_000;

    static String url;
    private static final Map<String, Check> CHECKS = new LinkedHashMap<>();

    interface Check {
        void run() throws Exception;
    }

    interface WithChannel {
        void run(Channel channel) throws Exception;
    }

    static void check(String name, Check check) {
        CHECKS.put(name, check);
    }

    /** Runs the checks and says how each ended. */
    static boolean run() {
        int passed = 0;
        int failed = 0;
        for (var one : CHECKS.entrySet()) {
            try {
                one.getValue().run();
                System.out.println("ok " + one.getKey());
                passed += 1;
            } catch (Throwable why) {
                String text = ("FAILED " + one.getKey() + ": " + why).replace('\n', ' ');
                System.out.println(text);
                System.err.println(text);
                failed += 1;
            }
        }
        System.out.println(passed + " passed, " + failed + " failed");
        return failed == 0;
    }

    static ConnectionFactory factory() throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(url);
        factory.setAutomaticRecoveryEnabled(false);
        return factory;
    }

    static void channel(WithChannel doing) throws Exception {
        try (Connection connection = factory().newConnection()) {
            doing.run(connection.createChannel());
        }
    }

    static void that(boolean holds, String otherwise) {
        if (!holds) throw new AssertionError(otherwise);
    }

    static void same(Object is, Object wanted) {
        that(Objects.equals(is, wanted), is + " is not " + wanted);
    }

    /** The error of a check must be the broker's, with this code and a text that has this part. */
    static void refused(int code, String text, Check check) throws Exception {
        try {
            check.run();
        } catch (Exception error) {
            Throwable cause = error;
            while (cause != null && !(cause instanceof ShutdownSignalException)) cause = cause.getCause();
            that(cause != null, code + " expected, not " + error);
            reason(code, text, (ShutdownSignalException) cause);
            return;
        }
        throw new AssertionError(code + " expected, but nothing was refused");
    }

    static void reason(int code, String text, ShutdownSignalException signal) {
        Method method = signal.getReason();
        String reply = method.toString();
        that(reply.contains("reply-code=" + code + ","), code + " is not in " + reply);
        that(reply.contains(text), text + " is not in " + reply);
    }

    static String name(String kind) {
        return kind + "-" + UUID.randomUUID().toString().substring(0, 13);
    }

    static String queue(Channel channel, Map<String, Object> arguments) throws Exception {
        return channel.queueDeclare(name("q"), false, true, false, arguments).getQueue();
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] body) {
        return new String(body, StandardCharsets.UTF_8);
    }

    interface Look<T> {
        T look() throws Exception;
    }

    /** The first value that is neither null nor false. */
    static <T> T eventually(Look<T> look) throws Exception {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (System.currentTimeMillis() < end) {
            T found = look.look();
            if (found != null && !Boolean.FALSE.equals(found)) return found;
            Thread.sleep(20);
        }
        throw new AssertionError("nothing happened");
    }

    static GetResponse get(Channel channel, String queue, boolean acknowledged) throws Exception {
        return eventually(() -> channel.basicGet(queue, acknowledged));
    }

    static String body(Channel channel, String queue) throws Exception {
        return text(get(channel, queue, true).getBody());
    }

    /** A consumer that collects its deliveries. */
    static BlockingQueue<Delivery> consume(Channel channel, String queue, boolean acknowledged, Map<String, Object> arguments)
            throws Exception {
        BlockingQueue<Delivery> received = new LinkedBlockingQueue<>();
        channel.basicConsume(queue, acknowledged, arguments, (tag, delivery) -> received.add(delivery), tag -> {});
        return received;
    }

    static <T> T next(BlockingQueue<T> from) throws Exception {
        T one = from.poll(PATIENCE_MS, TimeUnit.MILLISECONDS);
        that(one != null, "nothing came");
        return one;
    }

    static void silent(BlockingQueue<?> from) throws Exception {
        Object one = from.poll(300, TimeUnit.MILLISECONDS);
        that(one == null, "nothing should come, not " + one);
    }

    private Harness() {}
}
