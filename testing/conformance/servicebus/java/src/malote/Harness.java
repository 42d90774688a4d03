package malote;

import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.core.util.BinaryData;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusException;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.models.ServiceBusReceiveMode;
import com.azure.messaging.servicebus.models.SubQueue;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicInteger;

/** What the cases share: the server's address, new queues, and checks. */
final class Harness {
    /** Timeout for something that must happen. */
    static final Duration PATIENCE = Duration.ofSeconds(60);
    /** How long to wait for something that must not happen. */
    static final Duration SILENCE = Duration.ofSeconds(1);

    private static final AtomicInteger QUEUES = new AtomicInteger();

    private Harness() {
    }

    static String variable(String name) {
        return Objects.requireNonNull(System.getenv(name), name + " is not set");
    }

    static String connectionString(String name, String key) {
        return "Endpoint=sb://" + variable("MALOTE_AMQP_AT") + ";SharedAccessKeyName=" + name + ";SharedAccessKey=" + key
            + ";UseDevelopmentEmulator=true;";
    }

    /** All clients of one builder share a connection. */
    static ServiceBusClientBuilder builder() {
        return builder("RootManageSharedAccessKey", "SAS_KEY_VALUE");
    }

    static ServiceBusClientBuilder builder(String name, String key) {
        AmqpRetryOptions once = new AmqpRetryOptions().setMaxRetries(0).setTryTimeout(PATIENCE);
        return new ServiceBusClientBuilder().connectionString(connectionString(name, key)).retryOptions(once);
    }

    /** Declares a queue with a new name; the specification is JSON without its braces. */
    static String queue(String... spec) {
        String name = "j-" + ProcessHandle.current().pid() + "-" + QUEUES.incrementAndGet();
        List<String> all = new ArrayList<>(List.of(spec));
        if (all.stream().noneMatch(part -> part.startsWith("\"lock_ms\""))) {
            all.add("\"lock_ms\": 60000");
        }
        api("PUT", "/queues/" + name, "{" + String.join(", ", all) + "}");
        return name;
    }

    static String sessions(String... spec) {
        List<String> all = new ArrayList<>(List.of(spec));
        all.add("\"sessions\": \"dynamic\"");
        return queue(all.toArray(new String[0]));
    }

    static String api(String method, String path, String body) {
        URI to = URI.create("http://" + variable("MALOTE_HTTP_AT") + "/api/v1" + path);
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

    static void that(boolean holds, String why) {
        if (!holds) {
            throw new AssertionError(why);
        }
    }

    static void same(String what, Object is, Object wanted) {
        that(Objects.equals(is, wanted), what + " is " + is + ", not " + wanted);
    }

    /** Checks that the attempt fails with this reason. */
    static ServiceBusException refused(String what, ServiceBusFailureReason reason, Runnable attempt) {
        try {
            attempt.run();
        } catch (ServiceBusException error) {
            that(error.getReason() == reason, what + ": " + reason + " expected, not " + error.getReason() + ": " + error);
            return error;
        }
        throw new AssertionError(what + ": " + reason + " expected, but the call succeeded");
    }

    /** Checks that the attempt fails, and that the error or its cause contains this text. */
    static void refusedAs(String what, String text, Runnable attempt) {
        try {
            attempt.run();
        } catch (RuntimeException error) {
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                if (String.valueOf(cause.getMessage()).contains(text)) {
                    return;
                }
            }
            throw new AssertionError(what + ": `" + text + "` expected", error);
        }
        throw new AssertionError(what + ": `" + text + "` expected, but the call succeeded");
    }

    static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException error) {
            throw new AssertionError(error);
        }
    }

    static ServiceBusMessage text(String body) {
        return new ServiceBusMessage(BinaryData.fromString(body));
    }

    static ServiceBusMessage of(String session, String body) {
        return text(body).setSessionId(session);
    }

    static void send(ServiceBusClientBuilder builder, String queue, ServiceBusMessage... messages) {
        try (ServiceBusSenderClient sender = sender(builder, queue)) {
            for (ServiceBusMessage message : messages) {
                sender.sendMessage(message);
            }
        }
    }

    static ServiceBusSenderClient sender(ServiceBusClientBuilder builder, String queue) {
        return builder.sender().queueName(queue).buildClient();
    }

    static ServiceBusReceiverClient receiver(ServiceBusClientBuilder builder, String queue) {
        return builder.receiver().queueName(queue).disableAutoComplete().buildClient();
    }

    static ServiceBusReceiverClient taker(ServiceBusClientBuilder builder, String queue) {
        return builder.receiver().queueName(queue).receiveMode(ServiceBusReceiveMode.RECEIVE_AND_DELETE).buildClient();
    }

    static ServiceBusReceiverClient grave(ServiceBusClientBuilder builder, String queue) {
        return builder.receiver().queueName(queue).subQueue(SubQueue.DEAD_LETTER_QUEUE).disableAutoComplete().buildClient();
    }

    /** Waits until this number of messages has arrived. */
    static List<ServiceBusReceivedMessage> receive(ServiceBusReceiverClient from, int count) {
        List<ServiceBusReceivedMessage> got = new ArrayList<>();
        while (got.size() < count) {
            int before = got.size();
            from.receiveMessages(count - got.size(), PATIENCE).forEach(got::add);
            that(got.size() > before, got.size() + " of " + count + " messages came");
        }
        return got;
    }

    static ServiceBusReceivedMessage one(ServiceBusReceiverClient from) {
        return receive(from, 1).get(0);
    }

    static void nothing(ServiceBusReceiverClient from) {
        List<ServiceBusReceivedMessage> got = new ArrayList<>();
        from.receiveMessages(1, SILENCE).forEach(got::add);
        that(got.isEmpty(), "nothing expected, not " + bodies(got));
    }

    /** Receives and completes all messages. */
    static List<ServiceBusReceivedMessage> drain(ServiceBusReceiverClient from) {
        List<ServiceBusReceivedMessage> all = new ArrayList<>();
        while (true) {
            int before = all.size();
            from.receiveMessages(50, SILENCE).forEach(message -> {
                from.complete(message);
                all.add(message);
            });
            if (all.size() == before) {
                return all;
            }
        }
    }

    static List<String> bodies(List<ServiceBusReceivedMessage> messages) {
        return messages.stream().map(message -> message.getBody().toString()).toList();
    }

    /** A named test. */
    record Case(String name, Runnable run) {
    }
}
