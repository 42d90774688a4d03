import static java.util.Map.of;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.springframework.amqp.AmqpException;
import org.springframework.amqp.AmqpRejectAndDontRequeueException;
import org.springframework.amqp.ImmediateRequeueAmqpException;
import org.springframework.amqp.core.AcknowledgeMode;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.core.MessageListener;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.rabbit.config.RetryInterceptorBuilder;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory.ConfirmType;
import org.springframework.amqp.rabbit.connection.CorrelationData;
import org.springframework.amqp.rabbit.core.RabbitAdmin;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.amqp.rabbit.listener.AbstractMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.DirectMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.SimpleMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.api.ChannelAwareMessageListener;
import org.springframework.amqp.rabbit.retry.RejectAndDontRequeueRecoverer;
import org.springframework.amqp.rabbit.retry.RepublishMessageRecoverer;

/** The two listener containers: concurrency, retries, dead letters, deleted queues and a killed broker. */
final class Containers {
    static void register() {
        Harness.check("a simple container changes its concurrency", Containers::concurrency);
        Harness.check("a direct container changes its consumers and queues", Containers::direct);
        Harness.check("retries, then a dead letter", Containers::retries);
        Harness.check("a failed message is published again with its exception", Containers::republished);
        Harness.check("rejected, requeued and poisonous messages", Containers::deaths);
        Harness.check("manual acknowledgements, several at once", Containers::manual);
        Harness.check("one active consumer, and an exclusive one", Containers::single);
        Harness.check("urgent messages first", Containers::priorities);
        Harness.check("a container waits for a deleted queue", Containers::deleted);
        Harness.check("containers and templates survive a killed broker", Containers::killed);
    }

    private static String text(Message message) {
        return new String(message.getBody());
    }

    /** A container that is stopped with the check. */
    private static <C extends AbstractMessageListenerContainer> void run(C container, String queue, MessageListener listener, Harness.Check doing)
            throws Exception {
        container.setQueueNames(queue);
        container.setMessageListener(listener);
        container.setShutdownTimeout(10_000);
        container.start();
        try {
            doing.run();
        } finally {
            container.stop();
        }
    }

    private static void concurrency() throws Exception {
        Templates.with(ConfirmType.NONE, (template, admin) -> {
            String queue = Harness.queue(admin, null);
            var container = new SimpleMessageListenerContainer(template.getConnectionFactory());
            container.setConcurrentConsumers(2);
            container.setPrefetchCount(5);
            Set<String> threads = ConcurrentHashMap.newKeySet();
            AtomicInteger count = new AtomicInteger();
            run(container, queue, message -> {
                threads.add(Thread.currentThread().getName());
                count.incrementAndGet();
            }, () -> {
                Harness.eventually(() -> admin.getQueueInfo(queue).getConsumerCount() == 2);
                container.setConcurrentConsumers(5);
                Harness.eventually(() -> admin.getQueueInfo(queue).getConsumerCount() == 5);
                for (int index = 0; index < 500; index++) template.convertAndSend(queue, "" + index);
                Harness.eventually(() -> count.get() == 500);
                Harness.same(threads.size(), 5);
                container.setConcurrentConsumers(1);
                Harness.eventually(() -> admin.getQueueInfo(queue).getConsumerCount() == 1);
                // More consumers start while there is work, up to the maximum.
                container.setStartConsumerMinInterval(10);
                container.setConsecutiveActiveTrigger(1);
                container.setMaxConcurrentConsumers(4);
                for (int index = 0; index < 2_000; index++) template.convertAndSend(queue, "" + index);
                Harness.eventually(() -> container.getActiveConsumerCount() > 1);
                Harness.eventually(() -> count.get() == 2_500);
            });
            Harness.eventually(() -> admin.getQueueInfo(queue).getConsumerCount() == 0);
            admin.deleteQueue(queue);
        });
    }

    private static void direct() throws Exception {
        Templates.with(ConfirmType.NONE, (template, admin) -> {
            String first = Harness.queue(admin, null);
            String second = Harness.queue(admin, null);
            var container = new DirectMessageListenerContainer(template.getConnectionFactory());
            container.setConsumersPerQueue(3);
            Map<String, AtomicInteger> counts = new ConcurrentHashMap<>();
            run(container, first, message ->
                counts.computeIfAbsent(message.getMessageProperties().getConsumerQueue(), queue -> new AtomicInteger()).incrementAndGet(), () -> {
                Harness.eventually(() -> admin.getQueueInfo(first).getConsumerCount() == 3);
                container.setConsumersPerQueue(1);
                Harness.eventually(() -> admin.getQueueInfo(first).getConsumerCount() == 1);
                container.addQueueNames(second);
                for (int index = 0; index < 100; index++) template.convertAndSend(index % 2 == 0 ? first : second, "x");
                Harness.eventually(() -> counts.size() == 2 && counts.values().stream().allMatch(count -> count.get() == 50));
                container.removeQueueNames(first);
                Harness.eventually(() -> admin.getQueueInfo(first).getConsumerCount() == 0);
            });
            for (String queue : List.of(first, second)) admin.deleteQueue(queue);
        });
    }

    private static void retries() throws Exception {
        Templates.with(ConfirmType.NONE, (template, admin) -> {
            String graves = Harness.queue(admin, null);
            String queue = Harness.queue(admin, of("x-dead-letter-exchange", "", "x-dead-letter-routing-key", graves));
            var container = new SimpleMessageListenerContainer(template.getConnectionFactory());
            container.setAdviceChain(RetryInterceptorBuilder.stateless().maxAttempts(3).backOffOptions(10, 1, 10)
                .recoverer(new RejectAndDontRequeueRecoverer()).build());
            var attempts = new ConcurrentLinkedQueue<String>();
            run(container, queue, message -> {
                attempts.add(text(message));
                if (text(message).equals("bad")) throw new IllegalStateException("it fails");
            }, () -> {
                for (String one : List.of("bad", "good")) template.convertAndSend(queue, one);
                Message dead = template.receive(graves, Harness.PATIENCE_MS);
                Harness.same(text(dead), "bad");
                Map<String, ?> death = dead.getMessageProperties().getXDeathHeader().get(0);
                Harness.same(List.of(death.get("queue"), death.get("reason"), death.get("count"), death.get("routing-keys")),
                    List.of(queue, "rejected", 1L, List.of(queue)));
                Harness.eventually(() -> attempts.size() == 4);
                Harness.same(List.copyOf(attempts), List.of("bad", "bad", "bad", "good"));
            });
            for (String one : List.of(queue, graves)) admin.deleteQueue(one);
        });
    }

    private static void republished() throws Exception {
        Templates.with(ConfirmType.NONE, (template, admin) -> {
            String errors = Harness.queue(admin, null);
            String queue = Harness.queue(admin, null);
            var container = new DirectMessageListenerContainer(template.getConnectionFactory());
            container.setAdviceChain(RetryInterceptorBuilder.stateless().maxAttempts(2).backOffOptions(10, 1, 10)
                .recoverer(new RepublishMessageRecoverer(template, "", errors)).build());
            run(container, queue, message -> {
                throw new IllegalStateException("the reason");
            }, () -> {
                template.convertAndSend(queue, "x");
                var headers = template.receive(errors, Harness.PATIENCE_MS).getMessageProperties().getHeaders();
                Harness.that(headers.get("x-exception-stacktrace").toString().contains("the reason"), "" + headers);
                Harness.same(List.of(headers.get("x-original-exchange"), headers.get("x-original-routingKey")), List.of("", queue));
            });
            for (String one : List.of(queue, errors)) admin.deleteQueue(one);
        });
    }

    /** A consumer rejects, the message waits in a queue with a time to live, and comes back; after three deaths it is buried. */
    private static void deaths() throws Exception {
        Templates.with(ConfirmType.NONE, (template, admin) -> {
            String pills = Harness.queue(admin, null);
            String queue = Harness.name("work");
            String retry = Harness.queue(admin, of("x-message-ttl", 30, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", queue));
            admin.declareQueue(new Queue(queue, true, false, false, of("x-dead-letter-exchange", "", "x-dead-letter-routing-key", retry)));
            var container = new SimpleMessageListenerContainer(template.getConnectionFactory());
            container.setDefaultRequeueRejected(false);
            var seen = new ConcurrentLinkedQueue<Object>();
            run(container, queue, message -> {
                if (text(message).equals("again")) {
                    seen.add("again " + message.getMessageProperties().isRedelivered());
                    if (!message.getMessageProperties().isRedelivered()) throw new ImmediateRequeueAmqpException("once more");
                    return;
                }
                var history = message.getMessageProperties().getXDeathHeader();
                long count = history == null ? 0 : history.stream().filter(death -> queue.equals(death.get("queue")))
                    .mapToLong(death -> (Long) death.get("count")).sum();
                seen.add(count);
                if (count < 3) throw new AmqpRejectAndDontRequeueException("attempt " + count);
                template.send("", pills, message);
            }, () -> {
                template.convertAndSend(queue, "poison");
                Message pill = template.receive(pills, Harness.PATIENCE_MS);
                Harness.same(text(pill), "poison");
                Harness.same(List.copyOf(seen), List.of(0L, 1L, 2L, 3L));
                seen.clear();
                template.convertAndSend(queue, "again");
                Harness.eventually(() -> seen.size() == 2);
                Harness.same(List.copyOf(seen), List.of("again false", "again true"));
            });
            for (String one : List.of(queue, retry, pills)) admin.deleteQueue(one);
        });
    }

    private static void manual() throws Exception {
        Templates.with(ConfirmType.NONE, (template, admin) -> {
            String queue = Harness.queue(admin, null);
            var container = new DirectMessageListenerContainer(template.getConnectionFactory());
            container.setAcknowledgeMode(AcknowledgeMode.MANUAL);
            container.setPrefetchCount(10);
            AtomicInteger count = new AtomicInteger();
            ChannelAwareMessageListener listener = (message, channel) -> {
                if (count.incrementAndGet() % 10 == 0) channel.basicAck(message.getMessageProperties().getDeliveryTag(), true);
            };
            run(container, queue, listener, () -> {
                for (int index = 0; index < 95; index++) template.convertAndSend(queue, "x");
                Harness.eventually(() -> count.get() == 95);
            });
            // What was not acknowledged is back.
            Harness.eventually(() -> admin.getQueueInfo(queue).getMessageCount() == 5);
            Harness.that(template.receive(queue, Harness.PATIENCE_MS).getMessageProperties().isRedelivered(), "it must be redelivered");
            // A direct container acknowledges several together.
            var together = new DirectMessageListenerContainer(template.getConnectionFactory());
            together.setMessagesPerAck(20);
            together.setAckTimeout(200);
            AtomicInteger second = new AtomicInteger();
            run(together, queue, message -> second.incrementAndGet(), () -> {
                for (int index = 0; index < 50; index++) template.convertAndSend(queue, "x");
                Harness.eventually(() -> second.get() == 54);
            });
            Harness.same(admin.getQueueInfo(queue).getMessageCount(), 0);
            admin.deleteQueue(queue);
        });
    }

    private static void single() throws Exception {
        Templates.with(ConfirmType.NONE, (template, admin) -> {
            String queue = Harness.queue(admin, of("x-single-active-consumer", true));
            var container = new SimpleMessageListenerContainer(template.getConnectionFactory());
            container.setConcurrentConsumers(3);
            Set<String> tags = ConcurrentHashMap.newKeySet();
            var order = new ConcurrentLinkedQueue<String>();
            run(container, queue, message -> {
                tags.add(message.getMessageProperties().getConsumerTag());
                order.add(text(message));
            }, () -> {
                Harness.eventually(() -> admin.getQueueInfo(queue).getConsumerCount() == 3);
                for (int index = 0; index < 300; index++) template.convertAndSend(queue, "" + index);
                Harness.eventually(() -> order.size() == 300);
                Harness.same(tags.size(), 1);
                int expected = 0;
                for (String one : order) Harness.same(one, "" + expected++);
            });
            admin.deleteQueue(queue);
            // A second exclusive container waits until the first is gone.
            String own = Harness.queue(admin, null);
            var first = new SimpleMessageListenerContainer(template.getConnectionFactory());
            var second = new SimpleMessageListenerContainer(template.getConnectionFactory());
            for (var one : List.of(first, second)) {
                one.setExclusive(true);
                one.setRecoveryInterval(100);
            }
            var got = new ConcurrentLinkedQueue<String>();
            run(first, own, message -> got.add("first"), () -> {
                Harness.eventually(() -> admin.getQueueInfo(own).getConsumerCount() == 1);
                run(second, own, message -> got.add("second"), () -> {
                    template.convertAndSend(own, "x");
                    Harness.eventually(() -> got.size() == 1);
                    first.stop();
                    Harness.eventually(() -> admin.getQueueInfo(own).getConsumerCount() == 1);
                    template.convertAndSend(own, "x");
                    Harness.eventually(() -> got.size() == 2);
                });
            });
            Harness.same(List.copyOf(got), List.of("first", "second"));
            admin.deleteQueue(own);
        });
    }

    private static void priorities() throws Exception {
        Templates.with(ConfirmType.NONE, (template, admin) -> {
            String queue = Harness.queue(admin, of("x-max-priority", 5));
            for (int priority : new int[] {1, 5, 0, 3, 5}) {
                template.convertAndSend("", queue, "" + priority, message -> {
                    message.getMessageProperties().setPriority(priority);
                    return message;
                });
            }
            Harness.eventually(() -> admin.getQueueInfo(queue).getMessageCount() == 5);
            var container = new SimpleMessageListenerContainer(template.getConnectionFactory());
            container.setPrefetchCount(1);
            container.setConsumerArguments(of("x-priority", 10));
            var order = new ConcurrentLinkedQueue<String>();
            run(container, queue, message -> order.add(text(message)), () -> Harness.eventually(() -> order.size() == 5));
            Harness.same(List.copyOf(order), List.of("5", "5", "3", "1", "0"));
            admin.deleteQueue(queue);
        });
    }

    private static void deleted() throws Exception {
        Templates.with(ConfirmType.NONE, (template, admin) -> {
            String queue = Harness.queue(admin, null);
            var container = new SimpleMessageListenerContainer(template.getConnectionFactory());
            container.setMissingQueuesFatal(false);
            container.setRecoveryInterval(100);
            container.setFailedDeclarationRetryInterval(100);
            container.setRetryDeclarationInterval(200);
            AtomicInteger count = new AtomicInteger();
            run(container, queue, message -> count.incrementAndGet(), () -> {
                template.convertAndSend(queue, "x");
                Harness.eventually(() -> count.get() == 1);
                admin.deleteQueue(queue);
                Thread.sleep(500);
                admin.declareQueue(new Queue(queue));
                template.convertAndSend(queue, "x");
                Harness.eventually(() -> count.get() == 2);
            });
            admin.deleteQueue(queue);
        });
    }

    private static void killed() throws Exception {
        Templates.with(ConfirmType.CORRELATED, (template, admin) -> {
            String queue = Harness.queue(admin, null);
            Set<Integer> handled = ConcurrentHashMap.newKeySet();
            var simple = new SimpleMessageListenerContainer(template.getConnectionFactory());
            var direct = new DirectMessageListenerContainer(template.getConnectionFactory());
            for (var container : List.of(simple, direct)) container.setRecoveryInterval(200);
            MessageListener listener = message -> handled.add(Integer.parseInt(text(message)));
            CountDownLatch started = new CountDownLatch(1);
            Thread publisher = new Thread(() -> {
                for (int index = 0; index < 2_000; index++) {
                    publish(template, queue, index);
                    if (index == 300) started.countDown();
                }
            });
            run(simple, queue, listener, () -> run(direct, queue, listener, () -> {
                publisher.start();
                Harness.that(started.await(Harness.PATIENCE_MS, TimeUnit.MILLISECONDS), "nothing was published");
                Harness.killBroker();
                publisher.join(2 * Harness.PATIENCE_MS);
                Harness.eventually(() -> handled.size() == 2_000);
                Harness.eventually(() -> admin.getQueueInfo(queue).getConsumerCount() == 2);
            }));
            Harness.eventually(() -> admin.getQueueInfo(queue).getMessageCount() == 0);
            admin.deleteQueue(queue);
        });
    }

    /** Publishes until the broker has confirmed. */
    private static void publish(RabbitTemplate template, String queue, int number) {
        while (true) {
            try {
                CorrelationData data = new CorrelationData("" + number);
                template.convertAndSend("", queue, "" + number, data);
                if (data.getFuture().get(Harness.PATIENCE_MS, TimeUnit.MILLISECONDS).isAck()) return;
            } catch (AmqpException | java.util.concurrent.ExecutionException | java.util.concurrent.TimeoutException away) {
                // The broker is away.
            } catch (InterruptedException ended) {
                return;
            }
        }
    }

    private Containers() {}
}
