import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import org.springframework.amqp.core.AbstractExchange;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory.ConfirmType;
import org.springframework.amqp.rabbit.core.RabbitAdmin;

/** What the checks share: connections, names of their own, waiting, and killing the broker. */
final class Harness {
    /** The longest that a correct broker may take on a slow machine. */
    static final long PATIENCE_MS = 60_000;

    static String url;
    private static final Map<String, Check> CHECKS = new LinkedHashMap<>();
    private static final BufferedReader INPUT = new BufferedReader(new InputStreamReader(System.in));

    interface Check {
        void run() throws Exception;
    }

    static void check(String name, Check check) {
        CHECKS.put(name, check);
    }

    /** Runs the checks, or those with these parts in their name, and says how each ended. */
    static boolean run(List<String> wanted) {
        int passed = 0;
        int failed = 0;
        for (var one : CHECKS.entrySet()) {
            if (!wanted.isEmpty() && wanted.stream().noneMatch(one.getKey()::contains)) continue;
            try {
                one.getValue().run();
                System.out.println("ok " + one.getKey());
                passed += 1;
            } catch (Throwable why) {
                String text = ("FAILED " + one.getKey() + ": " + why).replace('\n', ' ');
                System.out.println(text);
                System.err.println(text);
                if (System.getenv("MALOTE_TRACE") != null) why.printStackTrace();
                failed += 1;
            }
        }
        System.out.println(passed + " passed, " + failed + " failed");
        return failed == 0;
    }

    /** Has the broker killed with SIGKILL, and waits until it is started again. */
    static void killBroker() throws Exception {
        System.out.println("kill the broker");
        same(INPUT.readLine(), "the broker started");
    }

    static CachingConnectionFactory connections(ConfirmType confirms) {
        CachingConnectionFactory connections = new CachingConnectionFactory(URI.create(url));
        connections.setPublisherConfirmType(confirms);
        connections.setPublisherReturns(confirms == ConfirmType.CORRELATED);
        return connections;
    }

    static void that(boolean holds, String otherwise) {
        if (!holds) throw new AssertionError(otherwise);
    }

    static void same(Object is, Object wanted) {
        that(Objects.equals(is, wanted), is + " is not " + wanted);
    }

    static String name(String kind) {
        return kind + "-" + UUID.randomUUID().toString().substring(0, 13);
    }

    /** A durable queue with these arguments. */
    static String queue(RabbitAdmin admin, Map<String, Object> arguments) {
        return admin.declareQueue(new Queue(name("q"), true, false, false, arguments));
    }

    static String exchange(RabbitAdmin admin, AbstractExchange exchange) {
        admin.declareExchange(exchange);
        return exchange.getName();
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

    static <T> T next(BlockingQueue<T> from) throws Exception {
        T one = from.poll(PATIENCE_MS, TimeUnit.MILLISECONDS);
        that(one != null, "nothing came");
        return one;
    }

    private Harness() {}
}
