import static java.util.Map.of;

import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.AuthenticationFailureException;
import com.rabbitmq.client.BuiltinExchangeType;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.LongString;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.RpcClient;
import com.rabbitmq.client.RpcClientParams;
import com.rabbitmq.client.RpcServer;
import com.rabbitmq.client.ShutdownSignalException;
import java.util.ArrayList;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** RabbitMQ's behaviour as its Java client sees it. Usage: Main URL */
public final class Main {
    public static void main(String[] arguments) {
        Harness.url = arguments[0];
        Harness.check("a wrong password is refused", Main::wrongPassword);
        Harness.check("limits are negotiated, and heartbeats keep a connection", Main::limits);
        Harness.check("errors have a code and a text", Main::errors);
        Harness.check("exchanges of every kind", Main::exchanges);
        Harness.check("confirms in order, and all of them", Main::confirms);
        Harness.check("a return comes before its confirm", Main::returns);
        Harness.check("a refused message is not confirmed", Main::refusals);
        Harness.check("get, requeue, recover", Main::getting);
        Harness.check("prefetch per consumer and per channel", Main::prefetch);
        Harness.check("a deleted queue cancels its consumer", Main::cancelled);
        Harness.check("transactions", Main::transactions);
        Harness.check("properties and headers", Main::properties);
        Harness.check("dead letters count their history", Main::deadLetters);
        Harness.check("priorities", Main::priorities);
        Harness.check("consumer priorities and one active consumer", Main::consumers);
        Harness.check("a quorum queue limits deliveries", Main::quorum);
        Harness.check("a call is answered directly", Main::calls);
        Harness.check("the library's own calls", Main::rpc);
        Harness.check("large messages", Main::large);
        Harness.check("counting and purging", Main::counting);
        Harness.check("many channels in many threads", Main::threads);
        Harness.check("a lost connection recovers with its topology", Main::recovery);
        System.exit(Harness.run() ? 0 : 1);
    }

    private static void wrongPassword() throws Exception {
        ConnectionFactory factory = Harness.factory();
        factory.setPassword("wrong");
        try {
            factory.newConnection().close();
            throw new AssertionError("it was let in");
        } catch (AuthenticationFailureException refused) {
            String text = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN.";
            Harness.that(refused.getMessage().contains(text), refused.getMessage());
        }
    }

    private static void limits() throws Exception {
        ConnectionFactory factory = Harness.factory();
        factory.setRequestedFrameMax(8192);
        factory.setRequestedChannelMax(20);
        factory.setRequestedHeartbeat(1);
        try (Connection connection = factory.newConnection()) {
            Harness.same(List.of(connection.getFrameMax(), connection.getChannelMax(), connection.getHeartbeat()), List.of(8192, 20, 1));
            Channel channel = connection.createChannel();
            String queue = Harness.queue(channel, null);
            channel.basicPublish("", queue, null, new byte[100_000]);
            Harness.same(Harness.get(channel, queue, true).getBody().length, 100_000);
            Thread.sleep(3_000);
            Harness.that(connection.isOpen(), "the connection was lost");
        }
    }

    private static void errors() throws Exception {
        String queue = Harness.name("q");
        Harness.channel(channel ->
            Harness.refused(404, "NOT_FOUND - no queue '" + queue + "'", () -> channel.queueDeclarePassive(queue)));
        Harness.channel(channel -> Harness.refused(406, "inequivalent arg 'auto_delete'", () -> {
            String made = Harness.queue(channel, null);
            channel.queueDeclare(made, false, true, true, null);
        }));
        Harness.channel(channel -> {
            CompletableFuture<ShutdownSignalException> closed = new CompletableFuture<>();
            channel.addShutdownListener(closed::complete);
            channel.basicAck(99, false);
            ShutdownSignalException why = closed.get(Harness.PATIENCE_MS, TimeUnit.MILLISECONDS);
            Harness.reason(406, "PRECONDITION_FAILED - unknown delivery tag 99", why);
            Harness.that(channel.getConnection().isOpen(), "the connection must live on");
        });
        Harness.channel(channel -> {
            CompletableFuture<ShutdownSignalException> closed = new CompletableFuture<>();
            channel.addShutdownListener(closed::complete);
            channel.basicPublish(Harness.name("x"), "k", null, Harness.bytes("x"));
            ShutdownSignalException why = closed.get(Harness.PATIENCE_MS, TimeUnit.MILLISECONDS);
            Harness.reason(404, "class-id=60, method-id=40", why);
        });
    }

    private static void exchanges() throws Exception {
        Harness.channel(channel -> {
            Map<BuiltinExchangeType, String[]> keys = Map.of(
                BuiltinExchangeType.DIRECT, new String[] {"k", "k"},
                BuiltinExchangeType.FANOUT, new String[] {"", "whatever"},
                BuiltinExchangeType.TOPIC, new String[] {"*.b.#", "a.b.c.d"},
                BuiltinExchangeType.HEADERS, new String[] {"", ""});
            Map<String, Object> headers = of("a", 1, "b", "x");
            for (var one : keys.entrySet()) {
                String exchange = Harness.name("x");
                channel.exchangeDeclare(exchange, one.getKey(), false, true, null);
                String queue = Harness.queue(channel, null);
                channel.queueBind(queue, exchange, one.getValue()[0], of("x-match", "all", "a", 1, "b", "x"));
                BasicProperties properties = new BasicProperties.Builder().headers(headers).build();
                channel.basicPublish(exchange, one.getValue()[1], properties, Harness.bytes("x"));
                Harness.same(Harness.body(channel, queue), "x");
            }
            String lost = Harness.name("x");
            String source = Harness.name("x");
            channel.exchangeDeclare(lost, "fanout", false, true, null);
            channel.exchangeDeclare(source, "direct", false, true, of("alternate-exchange", lost));
            String queue = Harness.queue(channel, null);
            channel.queueBind(queue, lost, "");
            channel.basicPublish(source, "nowhere", null, Harness.bytes("lost"));
            Harness.same(Harness.body(channel, queue), "lost");
            channel.exchangeBind(lost, source, "k");
            channel.basicPublish(source, "k", null, Harness.bytes("bound"));
            Harness.same(Harness.body(channel, queue), "bound");
        });
    }

    private static void confirms() throws Exception {
        Harness.channel(channel -> {
            channel.confirmSelect();
            String queue = Harness.queue(channel, null);
            ConcurrentSkipListSet<Long> open = new ConcurrentSkipListSet<>();
            channel.addConfirmListener(
                (tag, multiple) -> {
                    if (multiple) open.headSet(tag, true).clear();
                    else open.remove(tag);
                },
                (tag, multiple) -> {});
            for (int index = 0; index < 1_000; index++) {
                open.add(channel.getNextPublishSeqNo());
                channel.basicPublish("", queue, MessageProperties.PERSISTENT_BASIC, Harness.bytes("" + index));
            }
            channel.waitForConfirmsOrDie(Harness.PATIENCE_MS);
            Harness.eventually(open::isEmpty);
            Harness.same(channel.messageCount(queue), 1_000L);
            for (int index = 0; index < 1_000; index++) Harness.same(Harness.body(channel, queue), "" + index);
        });
    }

    private static void returns() throws Exception {
        Harness.channel(channel -> {
            channel.confirmSelect();
            BlockingQueue<String> events = new LinkedBlockingQueue<>();
            channel.addReturnListener(returned -> events.add("return " + returned.getReplyCode() + " " + returned.getReplyText()));
            channel.addConfirmListener((tag, multiple) -> events.add("confirm " + tag), (tag, multiple) -> {});
            channel.basicPublish("", Harness.name("q"), true, null, Harness.bytes("x"));
            Harness.same(Harness.next(events), "return 312 NO_ROUTE");
            Harness.same(Harness.next(events), "confirm 1");
        });
    }

    private static void refusals() throws Exception {
        Harness.channel(channel -> {
            channel.confirmSelect();
            String queue = Harness.queue(channel, of("x-max-length", 1, "x-overflow", "reject-publish"));
            channel.basicPublish("", queue, null, Harness.bytes("a"));
            Harness.that(channel.waitForConfirms(Harness.PATIENCE_MS), "the first is taken");
            channel.basicPublish("", queue, null, Harness.bytes("b"));
            Harness.that(!channel.waitForConfirms(Harness.PATIENCE_MS), "the second is refused");
        });
    }

    private static String filled(Channel channel, int count, Map<String, Object> arguments) throws Exception {
        String queue = Harness.queue(channel, arguments);
        channel.confirmSelect();
        for (int index = 0; index < count; index++) channel.basicPublish("", queue, null, Harness.bytes("" + index));
        channel.waitForConfirmsOrDie(Harness.PATIENCE_MS);
        return queue;
    }

    private static void getting() throws Exception {
        Harness.channel(channel -> {
            String queue = filled(channel, 4, null);
            List<Long> tags = new ArrayList<>();
            for (int index = 0; index < 3; index++) {
                var got = Harness.get(channel, queue, false);
                Harness.same(got.getMessageCount(), 3 - index);
                tags.add(got.getEnvelope().getDeliveryTag());
            }
            channel.basicNack(tags.get(1), false, true);
            channel.basicReject(tags.get(2), true);
            channel.basicRecover(true);
            for (int index = 0; index < 4; index++) {
                var got = Harness.get(channel, queue, true);
                Harness.same(Harness.text(got.getBody()) + got.getEnvelope().isRedeliver(), "" + index + (index < 3));
            }
            Harness.same(channel.basicGet(queue, true), null);
        });
    }

    private static void prefetch() throws Exception {
        Harness.channel(channel -> {
            String queue = filled(channel, 10, null);
            channel.basicQos(2);
            BlockingQueue<Delivery> first = Harness.consume(channel, queue, false, null);
            Delivery one = Harness.next(first);
            Harness.next(first);
            Harness.silent(first);
            channel.basicAck(one.getEnvelope().getDeliveryTag(), false);
            Harness.next(first);
            Harness.silent(first);
            Channel other = channel.getConnection().createChannel();
            other.basicQos(3, true);
            BlockingQueue<Delivery> second = Harness.consume(other, queue, false, null);
            for (int index = 0; index < 3; index++) Harness.next(second);
            Harness.silent(second);
        });
    }

    private static void cancelled() throws Exception {
        Harness.channel(channel -> {
            String queue = Harness.queue(channel, null);
            BlockingQueue<String> cancelled = new LinkedBlockingQueue<>();
            String tag = channel.basicConsume(queue, false, (any, delivery) -> {}, cancelled::add);
            Harness.that(tag.startsWith("amq.ctag-"), tag);
            channel.queueDelete(queue);
            Harness.same(Harness.next(cancelled), tag);
        });
    }

    private static void transactions() throws Exception {
        Harness.channel(channel -> {
            String queue = Harness.queue(channel, null);
            Channel other = channel.getConnection().createChannel();
            channel.txSelect();
            channel.basicPublish("", queue, null, Harness.bytes("kept"));
            Harness.same(other.messageCount(queue), 0L);
            channel.txCommit();
            Harness.same(other.messageCount(queue), 1L);
            channel.basicPublish("", queue, null, Harness.bytes("dropped"));
            channel.txRollback();
            Harness.same(other.messageCount(queue), 1L);
        });
    }

    private static void properties() throws Exception {
        Harness.channel(channel -> {
            Date now = new Date(1_700_000_000_000L);
            Map<String, Object> headers = new HashMap<>(of("int", 5, "long", 1L << 40, "double", 2.5, "float", 1.5f, "bool", true));
            headers.putAll(of("short", (short) 7, "byte", (byte) -1, "time", now, "list", List.of(1, 2), "table", of("n", 1)));
            headers.put("null", null);
            BasicProperties sent = new BasicProperties.Builder()
                .contentType("text/plain").contentEncoding("identity").headers(headers).deliveryMode(2).priority(3)
                .correlationId("c").replyTo("r").expiration("600000").messageId("m").timestamp(now).type("t").appId("a").build();
            String queue = Harness.queue(channel, null);
            channel.basicPublish("", queue, sent, new byte[0]);
            BasicProperties got = Harness.get(channel, queue, true).getProps();
            Harness.same(got, sent);
        });
    }

    @SuppressWarnings("unchecked")
    private static List<Map<String, Object>> deaths(BasicProperties properties) {
        return (List<Map<String, Object>>) properties.getHeaders().get("x-death");
    }

    private static void deadLetters() throws Exception {
        Harness.channel(channel -> {
            String work = Harness.name("work");
            String retry = Harness.name("retry");
            channel.queueDeclare(work, false, true, false, of("x-dead-letter-exchange", "", "x-dead-letter-routing-key", retry));
            channel.queueDeclare(retry, false, true, false,
                of("x-dead-letter-exchange", "", "x-dead-letter-routing-key", work, "x-message-ttl", 50));
            channel.basicPublish("", work, null, Harness.bytes("x"));
            for (int attempt = 0; attempt < 4; attempt++) {
                var got = Harness.get(channel, work, false);
                if (attempt > 0) {
                    List<String> deaths = new ArrayList<>();
                    for (var death : deaths(got.getProps())) {
                        deaths.add(death.get("queue") + " " + death.get("reason") + " " + death.get("count"));
                        Harness.that(death.get("time") instanceof Date, "time is no date");
                        Harness.that(death.get("count") instanceof Long, "count is no long");
                        Harness.that(((List<?>) death.get("routing-keys")).get(0) instanceof LongString, "keys are long strings");
                    }
                    Harness.same(deaths, List.of(retry + " expired " + attempt, work + " rejected " + attempt));
                }
                channel.basicReject(got.getEnvelope().getDeliveryTag(), false);
            }
        });
    }

    private static void priorities() throws Exception {
        Harness.channel(channel -> {
            String queue = Harness.queue(channel, of("x-max-priority", 5));
            channel.confirmSelect();
            for (int priority : new int[] {0, 3, 9, 3}) {
                channel.basicPublish("", queue, new BasicProperties.Builder().priority(priority).build(), Harness.bytes("" + priority));
            }
            channel.waitForConfirmsOrDie(Harness.PATIENCE_MS);
            for (String wanted : List.of("9", "3", "3", "0")) Harness.same(Harness.body(channel, queue), wanted);
        });
    }

    private static void consumers() throws Exception {
        Harness.channel(channel -> {
            String queue = Harness.queue(channel, null);
            BlockingQueue<Delivery> low = Harness.consume(channel, queue, true, null);
            BlockingQueue<Delivery> high = Harness.consume(channel, queue, true, of("x-priority", 10));
            channel.basicPublish("", queue, null, Harness.bytes("x"));
            Harness.next(high);
            Harness.silent(low);
            String single = Harness.queue(channel, of("x-single-active-consumer", true));
            BlockingQueue<Delivery> first = new LinkedBlockingQueue<>();
            String tag = channel.basicConsume(single, true, (any, delivery) -> first.add(delivery), any -> {});
            BlockingQueue<Delivery> second = Harness.consume(channel, single, true, null);
            channel.basicPublish("", single, null, Harness.bytes("x"));
            Harness.next(first);
            channel.basicCancel(tag);
            channel.basicPublish("", single, null, Harness.bytes("y"));
            Harness.next(second);
        });
    }

    private static void quorum() throws Exception {
        Harness.channel(channel -> {
            String graves = Harness.queue(channel, null);
            String queue = Harness.name("quorum");
            channel.queueDeclare(queue, true, false, false, of("x-queue-type", "quorum", "x-delivery-limit", 1,
                "x-dead-letter-exchange", "", "x-dead-letter-routing-key", graves));
            channel.basicPublish("", queue, MessageProperties.PERSISTENT_BASIC, Harness.bytes("x"));
            BlockingQueue<Delivery> received = Harness.consume(channel, queue, false, null);
            for (long count = 0; count < 2; count++) {
                Delivery one = Harness.next(received);
                Map<String, Object> headers = one.getProperties().getHeaders();
                Object deliveryCount = headers == null ? null : headers.get("x-delivery-count");
                Harness.same(deliveryCount == null ? 0L : deliveryCount, count);
                channel.basicNack(one.getEnvelope().getDeliveryTag(), false, true);
            }
            var death = deaths(Harness.get(channel, graves, true).getProps()).get(0);
            Harness.same(death.get("reason").toString(), "delivery_limit");
            channel.queueDelete(queue);
        });
    }

    private static void calls() throws Exception {
        Harness.channel(client -> {
            Channel server = client.getConnection().createChannel();
            String queue = Harness.queue(server, null);
            BlockingQueue<Delivery> requests = Harness.consume(server, queue, true, null);
            BlockingQueue<Delivery> answers = Harness.consume(client, "amq.rabbitmq.reply-to", true, null);
            BasicProperties call = new BasicProperties.Builder().replyTo("amq.rabbitmq.reply-to").correlationId("c").build();
            client.basicPublish("", queue, call, Harness.bytes("ping"));
            String address = Harness.next(requests).getProperties().getReplyTo();
            server.basicPublish("", address, null, Harness.bytes("pong"));
            Harness.same(Harness.text(Harness.next(answers).getBody()), "pong");
        });
    }

    private static void rpc() throws Exception {
        Harness.channel(channel -> {
            Channel served = channel.getConnection().createChannel();
            String queue = Harness.queue(served, null);
            RpcServer server = new RpcServer(served, queue) {
                @Override
                public byte[] handleCall(Delivery request, BasicProperties properties) {
                    return Harness.bytes(Harness.text(request.getBody()) + "!");
                }
            };
            Thread thread = new Thread(() -> {
                try {
                    server.mainloop();
                } catch (ShutdownSignalException | java.io.IOException closed) {
                    // Its channel is closed at the end of the check.
                }
            });
            thread.start();
            try (RpcClient client = new RpcClient(new RpcClientParams().channel(channel).exchange("").routingKey(queue))) {
                for (int index = 0; index < 3; index++) Harness.same(client.stringCall("call " + index), "call " + index + "!");
            }
            served.close();
            thread.join(Harness.PATIENCE_MS);
        });
    }

    private static void large() throws Exception {
        Harness.channel(channel -> {
            String queue = Harness.queue(channel, null);
            byte[] body = new byte[4 << 20];
            for (int index = 0; index < body.length; index++) body[index] = (byte) (index * 7);
            channel.basicPublish("", queue, null, body);
            Harness.that(java.util.Arrays.equals(Harness.get(channel, queue, true).getBody(), body), "the body differs");
        });
    }

    private static void counting() throws Exception {
        Harness.channel(channel -> {
            String queue = filled(channel, 5, null);
            Harness.same(channel.messageCount(queue), 5L);
            Harness.same(channel.consumerCount(queue), 0L);
            Harness.same(channel.queuePurge(queue).getMessageCount(), 5);
            Harness.same(channel.queueDelete(queue).getMessageCount(), 0);
        });
    }

    private static void threads() throws Exception {
        Harness.channel(channel -> {
            String queue = Harness.queue(channel, null);
            List<Thread> threads = new ArrayList<>();
            for (int index = 0; index < 10; index++) {
                Channel own = channel.getConnection().createChannel();
                Thread thread = new Thread(() -> {
                    try {
                        own.confirmSelect();
                        for (int count = 0; count < 100; count++) own.basicPublish("", queue, null, Harness.bytes("x"));
                        own.waitForConfirmsOrDie(Harness.PATIENCE_MS);
                    } catch (Exception lost) {
                        // Its messages are missing below.
                    }
                });
                thread.start();
                threads.add(thread);
            }
            for (Thread thread : threads) thread.join(Harness.PATIENCE_MS);
            Harness.same(channel.messageCount(queue), 1_000L);
        });
    }

    /** The connection is closed by the broker because of `immediate`; the client connects again and declares what it had. */
    private static void recovery() throws Exception {
        ConnectionFactory factory = Harness.factory();
        factory.setAutomaticRecoveryEnabled(true);
        factory.setNetworkRecoveryInterval(200);
        // The client recovers after every close, also one by the broker. By default, it would not recover after that.
        factory.setConnectionRecoveryTriggeringCondition(signal -> true);
        try (Connection connection = factory.newConnection()) {
            Channel channel = connection.createChannel();
            String queue = channel.queueDeclare().getQueue();
            String key = Harness.name("key");
            channel.queueBind(queue, "amq.fanout", key);
            BlockingQueue<Delivery> received = Harness.consume(channel, queue, true, null);
            CompletableFuture<Void> recovered = new CompletableFuture<>();
            ((com.rabbitmq.client.Recoverable) connection).addRecoveryListener(new com.rabbitmq.client.RecoveryListener() {
                @Override
                public void handleRecovery(com.rabbitmq.client.Recoverable which) {
                    recovered.complete(null);
                }

                @Override
                public void handleRecoveryStarted(com.rabbitmq.client.Recoverable which) {}
            });
            channel.basicPublish("", "nowhere", false, true, null, new byte[0]);
            recovered.get(Harness.PATIENCE_MS, TimeUnit.MILLISECONDS);
            // The binding finds the queue although the broker gave it another name.
            channel.basicPublish("amq.fanout", key, null, Harness.bytes("x"));
            Delivery delivery = Harness.next(received);
            Harness.same(delivery.getEnvelope().getRoutingKey(), key);
        }
    }
}
