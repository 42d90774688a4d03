import static java.util.Map.of;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.springframework.amqp.AmqpIOException;
import org.springframework.amqp.core.Base64UrlNamingStrategy;
import org.springframework.amqp.core.AnonymousQueue;
import org.springframework.amqp.core.BindingBuilder;
import org.springframework.amqp.core.DirectExchange;
import org.springframework.amqp.core.FanoutExchange;
import org.springframework.amqp.core.HeadersExchange;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.core.MessageBuilder;
import org.springframework.amqp.core.MessageDeliveryMode;
import org.springframework.amqp.core.MessagePropertiesBuilder;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.core.QueueBuilder;
import org.springframework.amqp.core.ReturnedMessage;
import org.springframework.amqp.core.TopicExchange;
import org.springframework.amqp.rabbit.AsyncRabbitTemplate;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory.ConfirmType;
import org.springframework.amqp.rabbit.connection.CorrelationData;
import org.springframework.amqp.rabbit.core.RabbitAdmin;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.amqp.rabbit.listener.SimpleMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.adapter.MessageListenerAdapter;
import org.springframework.amqp.rabbit.transaction.RabbitTransactionManager;
import org.springframework.transaction.support.TransactionTemplate;

/** What RabbitAdmin declares, and what RabbitTemplate sends, receives and asks. */
final class Templates {
    static void register() {
        Harness.check("the admin declares, describes and deletes", Templates::admin);
        Harness.check("a differing declaration is refused", Templates::differing);
        Harness.check("exchanges of every kind route", Templates::exchanges);
        Harness.check("correlated confirms, and returns with them", Templates::correlated);
        Harness.check("simple confirms in a scope of their own", Templates::simple);
        Harness.check("a full queue refuses with a nack", Templates::refused);
        Harness.check("properties survive the way", Templates::properties);
        Harness.check("receiving with a timeout, and replying", Templates::receiving);
        Harness.check("requests with direct replies", () -> requests(template -> {}));
        Harness.check("requests with temporary reply queues", () -> requests(template -> template.setUseTemporaryReplyQueues(true)));
        Harness.check("requests over a cached channel for replies",
            () -> requests(template -> template.setUseDirectReplyToContainer(false)));
        Harness.check("asynchronous requests, and one that is late", Templates::asynchronous);
        Harness.check("transactions with a manager", Templates::transactions);
    }

    interface Use {
        void run(RabbitTemplate template, RabbitAdmin admin) throws Exception;
    }

    static void with(ConfirmType confirms, Use use) throws Exception {
        CachingConnectionFactory connections = Harness.connections(confirms);
        try {
            use.run(new RabbitTemplate(connections), new RabbitAdmin(connections));
        } finally {
            connections.destroy();
        }
    }

    private static void admin() throws Exception {
        with(ConfirmType.NONE, (template, admin) -> {
            String name = Harness.name("q");
            Queue queue = QueueBuilder.durable(name).ttl(60_000).maxLength(5L).maxPriority(3).deadLetterExchange("").deadLetterRoutingKey("x").build();
            admin.declareQueue(queue);
            for (int index = 0; index < 7; index++) template.convertAndSend(name, "" + index);
            Harness.eventually(() -> admin.getQueueInfo(name).getMessageCount() == 5);
            Harness.same(admin.getQueueInfo(name).getConsumerCount(), 0);
            Harness.same(admin.purgeQueue(name), 5);
            admin.declareQueue(queue);
            Harness.that(admin.deleteQueue(name), "it is not deleted");
            Harness.same(admin.getQueueProperties(name), null);
            // Spring's anonymous queues are exclusive and named by the client, the others by the server.
            String anonymous = admin.declareQueue(new AnonymousQueue(new Base64UrlNamingStrategy("spring-")));
            Harness.that(anonymous.startsWith("spring-"), anonymous);
            Harness.that(admin.declareQueue().getName().startsWith("amq.gen-"), "it has no name of the server");
        });
    }

    private static void differing() throws Exception {
        with(ConfirmType.NONE, (template, admin) -> {
            String name = Harness.queue(admin, of("x-max-length", 5));
            try {
                admin.declareQueue(new Queue(name, true, false, false, of("x-max-length", 6)));
                throw new AssertionError("it was accepted");
            } catch (AmqpIOException refused) {
                String text = refused.getCause().getCause().getMessage();
                Harness.that(text.contains("inequivalent arg 'x-max-length'"), text);
            }
            admin.setIgnoreDeclarationExceptions(true);
            Harness.same(admin.declareQueue(new Queue(name, true, false, false, of("x-max-length", 6))), null);
            admin.deleteQueue(name);
        });
    }

    private static void exchanges() throws Exception {
        with(ConfirmType.NONE, (template, admin) -> {
            var direct = new DirectExchange(Harness.name("x"));
            var topic = new TopicExchange(Harness.name("x"));
            var fanout = new FanoutExchange(Harness.name("x"));
            var headers = new HeadersExchange(Harness.name("x"));
            for (var exchange : List.of(direct, topic, fanout, headers)) admin.declareExchange(exchange);
            Queue queue = new Queue(Harness.queue(admin, null));
            admin.declareBinding(BindingBuilder.bind(queue).to(direct).with("k"));
            admin.declareBinding(BindingBuilder.bind(queue).to(topic).with("order.*.#"));
            admin.declareBinding(BindingBuilder.bind(queue).to(fanout));
            admin.declareBinding(BindingBuilder.bind(queue).to(headers).whereAll(of("a", 1, "b", "x")).match());
            // And from an exchange to an exchange.
            admin.declareBinding(BindingBuilder.bind(fanout).to(direct).with("to-all"));
            template.convertAndSend(direct.getName(), "k", "direct");
            template.convertAndSend(topic.getName(), "order.created.now", "topic");
            template.convertAndSend(fanout.getName(), "", "fanout");
            template.convertAndSend(headers.getName(), "", "headers", message -> {
                message.getMessageProperties().getHeaders().putAll(of("a", 1, "b", "x", "c", true));
                return message;
            });
            template.convertAndSend(direct.getName(), "to-all", "bound");
            template.convertAndSend(topic.getName(), "payment.created", "nowhere");
            template.setReceiveTimeout(Harness.PATIENCE_MS);
            List<Object> got = new ArrayList<>();
            for (int index = 0; index < 5; index++) got.add(template.receiveAndConvert(queue.getName()));
            Harness.same(got, List.of("direct", "topic", "fanout", "headers", "bound"));
            for (var exchange : List.of(direct, topic, fanout, headers)) Harness.that(admin.deleteExchange(exchange.getName()), "not deleted");
            Harness.same(admin.getQueueInfo(queue.getName()).getMessageCount(), 0);
            admin.deleteQueue(queue.getName());
        });
    }

    private static void correlated() throws Exception {
        with(ConfirmType.CORRELATED, (template, admin) -> {
            String queue = Harness.queue(admin, null);
            template.setMandatory(true);
            var returned = new LinkedBlockingQueue<ReturnedMessage>();
            template.setReturnsCallback(returned::add);
            List<CorrelationData> sent = new ArrayList<>();
            for (int index = 0; index < 500; index++) {
                CorrelationData data = new CorrelationData("id-" + index);
                sent.add(data);
                template.convertAndSend("", index % 100 == 99 ? "nowhere-" + queue : queue, "" + index, data);
            }
            for (int index = 0; index < 500; index++) {
                Harness.that(sent.get(index).getFuture().get(Harness.PATIENCE_MS, TimeUnit.MILLISECONDS).isAck(), "refused");
                // The return is there when the confirm is.
                Harness.same(sent.get(index).getReturned() != null, index % 100 == 99);
            }
            // The callback runs on a thread of its own.
            Harness.eventually(() -> returned.size() == 5);
            ReturnedMessage one = returned.poll();
            Harness.same(List.of(one.getReplyCode(), one.getReplyText(), one.getRoutingKey()), List.of(312, "NO_ROUTE", "nowhere-" + queue));
            Harness.same(admin.getQueueInfo(queue).getMessageCount(), 495);
            // Publishing to a missing exchange ends the channel, and refuses what it had not confirmed.
            CorrelationData lost = new CorrelationData("lost");
            template.convertAndSend(Harness.name("x"), "k", "x", lost);
            Harness.same(lost.getFuture().get(Harness.PATIENCE_MS, TimeUnit.MILLISECONDS).isAck(), false);
            admin.deleteQueue(queue);
        });
    }

    private static void simple() throws Exception {
        with(ConfirmType.SIMPLE, (template, admin) -> {
            String queue = Harness.queue(admin, null);
            var confirmed = Collections.synchronizedList(new ArrayList<Long>());
            boolean all = template.invoke(operations -> {
                for (int index = 0; index < 200; index++) operations.convertAndSend(queue, "" + index);
                operations.waitForConfirmsOrDie(Harness.PATIENCE_MS);
                return true;
            }, (tag, multiple) -> confirmed.add(tag), (tag, multiple) -> {});
            Harness.that(all && confirmed.contains(200L), "the last is not confirmed: " + confirmed);
            Harness.same(admin.getQueueInfo(queue).getMessageCount(), 200);
            admin.deleteQueue(queue);
        });
    }

    private static void refused() throws Exception {
        with(ConfirmType.CORRELATED, (template, admin) -> {
            String queue = Harness.queue(admin, of("x-max-length", 1, "x-overflow", "reject-publish"));
            List<Boolean> results = new ArrayList<>();
            for (int index = 0; index < 2; index++) {
                CorrelationData data = new CorrelationData();
                template.convertAndSend("", queue, "x", data);
                results.add(data.getFuture().get(Harness.PATIENCE_MS, TimeUnit.MILLISECONDS).isAck());
            }
            Harness.same(results, List.of(true, false));
            admin.deleteQueue(queue);
        });
    }

    private static void properties() throws Exception {
        with(ConfirmType.NONE, (template, admin) -> {
            String queue = Harness.queue(admin, null);
            Map<String, Object> nested = new HashMap<>(of("long", 1L << 40, "list", List.of("a", 1), "table", of("deep", true)));
            var sent = MessagePropertiesBuilder.newInstance().setContentType("text/plain").setContentEncoding("UTF-8").copyHeaders(nested)
                .setDeliveryMode(MessageDeliveryMode.NON_PERSISTENT).setPriority(4).setCorrelationId("c").setReplyTo("r")
                .setExpiration("600000").setMessageId("m").setType("t").setAppId("a").setTimestamp(new java.util.Date(1_700_000_000_000L)).build();
            template.send("", queue, MessageBuilder.withBody("é".getBytes("UTF-8")).andProperties(sent).build());
            Message got = template.receive(queue, Harness.PATIENCE_MS);
            var is = got.getMessageProperties();
            Harness.same(new String(got.getBody(), "UTF-8"), "é");
            Harness.same(List.of(is.getContentType(), is.getContentEncoding(), is.getReceivedDeliveryMode(), is.getPriority(), is.getCorrelationId(),
                is.getReplyTo(), is.getExpiration(), is.getMessageId(), is.getType(), is.getAppId(), is.getTimestamp()),
                List.of("text/plain", "UTF-8", MessageDeliveryMode.NON_PERSISTENT, 4, "c", "r", "600000", "m", "t", "a", sent.getTimestamp()));
            Harness.same(is.getHeaders().get("long"), 1L << 40);
            Harness.same(is.getHeaders().get("list"), List.of("a", 1));
            Harness.same(is.getHeaders().get("table"), of("deep", true));
            Harness.same(List.of(is.getReceivedExchange(), is.getReceivedRoutingKey(), is.isRedelivered()), List.of("", queue, false));
            admin.deleteQueue(queue);
        });
    }

    private static void receiving() throws Exception {
        with(ConfirmType.NONE, (template, admin) -> {
            String queue = Harness.queue(admin, null);
            String answers = Harness.queue(admin, null);
            // With a timeout the template consumes, and cancels its consumer afterwards.
            Harness.same(template.receive(queue, 200), null);
            Harness.same(template.receive(queue), null);
            template.convertAndSend(queue, "a");
            Harness.same(template.receiveAndConvert(queue, Harness.PATIENCE_MS), "a");
            template.convertAndSend(queue, (Object) "b", message -> {
                message.getMessageProperties().setReplyTo(answers);
                return message;
            });
            template.setReceiveTimeout(Harness.PATIENCE_MS);
            Harness.that(template.<String, String>receiveAndReply(queue, text -> text + "!"), "nothing came");
            Harness.same(template.receiveAndConvert(answers), "b!");
            Harness.eventually(() -> admin.getQueueInfo(queue).getConsumerCount() == 0);
            for (String one : List.of(queue, answers)) admin.deleteQueue(one);
        });
    }

    interface Configure {
        void apply(RabbitTemplate template);
    }

    private static void requests(Configure configure) throws Exception {
        with(ConfirmType.NONE, (template, admin) -> {
            configure.apply(template);
            template.setReplyTimeout(Harness.PATIENCE_MS);
            String queue = Harness.queue(admin, null);
            var container = container(template, queue, new Object() {
                public String handleMessage(String text) {
                    return text + "!";
                }
            });
            try {
                List<CompletableFuture<Object>> answers = new ArrayList<>();
                for (int index = 0; index < 40; index++) {
                    String text = "call " + index;
                    answers.add(CompletableFuture.supplyAsync(() -> template.convertSendAndReceive("", queue, text)));
                }
                for (int index = 0; index < 40; index++) Harness.same(answers.get(index).get(), "call " + index + "!");
            } finally {
                container.stop();
                template.stop();
                admin.deleteQueue(queue);
            }
        });
    }

    static SimpleMessageListenerContainer container(RabbitTemplate template, String queue, Object listener) {
        var container = new SimpleMessageListenerContainer(template.getConnectionFactory());
        container.setQueueNames(queue);
        container.setMessageListener(new MessageListenerAdapter(listener));
        container.setShutdownTimeout(10_000);
        container.start();
        return container;
    }

    private static void asynchronous() throws Exception {
        with(ConfirmType.CORRELATED, (template, admin) -> {
            String queue = Harness.queue(admin, null);
            String silent = Harness.queue(admin, null);
            var container = container(template, queue, new Object() {
                public String handleMessage(String text) {
                    return text.toUpperCase();
                }
            });
            AsyncRabbitTemplate async = new AsyncRabbitTemplate(template);
            async.setReceiveTimeout(Harness.PATIENCE_MS);
            async.setEnableConfirms(true);
            async.setMandatory(true);
            async.start();
            try {
                var future = async.<String>convertSendAndReceive("", queue, "abc");
                Harness.same(future.get(Harness.PATIENCE_MS, TimeUnit.MILLISECONDS), "ABC");
                var unroutable = async.<String>convertSendAndReceive("", "nowhere-" + queue, "abc");
                try {
                    unroutable.get(Harness.PATIENCE_MS, TimeUnit.MILLISECONDS);
                    throw new AssertionError("it was answered");
                } catch (java.util.concurrent.ExecutionException returned) {
                    Harness.that(returned.getCause().toString().contains("returned"), returned.getCause().toString());
                }
                async.setReceiveTimeout(5_000);
                var late = async.<String>convertSendAndReceive("", silent, "abc");
                // The library drops the confirm of a request whose answer came first; this one has no answer.
                Harness.that(late.getConfirm().get(Harness.PATIENCE_MS, TimeUnit.MILLISECONDS), "it is not confirmed");
                try {
                    late.get(Harness.PATIENCE_MS, TimeUnit.MILLISECONDS);
                    throw new AssertionError("it was answered");
                } catch (java.util.concurrent.ExecutionException timeout) {
                    Harness.that(timeout.getCause().toString().contains("timed out"), timeout.getCause().toString());
                }
            } finally {
                async.stop();
                container.stop();
                for (String one : List.of(queue, silent)) admin.deleteQueue(one);
            }
        });
    }

    private static void transactions() throws Exception {
        with(ConfirmType.NONE, (template, admin) -> {
            template.setChannelTransacted(true);
            String queue = Harness.queue(admin, null);
            String target = Harness.queue(admin, null);
            var transaction = new TransactionTemplate(new RabbitTransactionManager(template.getConnectionFactory()));
            transaction.executeWithoutResult(status -> {
                for (int index = 0; index < 3; index++) template.convertAndSend(queue, "" + index);
            });
            Harness.same(admin.getQueueInfo(queue).getMessageCount(), 3);
            // Receiving and sending are undone together.
            try {
                transaction.executeWithoutResult(status -> {
                    template.convertAndSend(target, template.receiveAndConvert(queue));
                    throw new IllegalStateException("roll back");
                });
                throw new AssertionError("it was committed");
            } catch (IllegalStateException expected) {
                Harness.eventually(() -> admin.getQueueInfo(queue).getMessageCount() == 3);
                Harness.same(admin.getQueueInfo(target).getMessageCount(), 0);
            }
            transaction.executeWithoutResult(status -> template.convertAndSend(target, template.receiveAndConvert(queue)));
            Harness.eventually(() -> admin.getQueueInfo(target).getMessageCount() == 1);
            Harness.same(template.receiveAndConvert(target), "0");
            for (String one : List.of(queue, target)) admin.deleteQueue(one);
        });
    }

    private Templates() {}
}
