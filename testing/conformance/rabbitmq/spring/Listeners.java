import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicInteger;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.rabbit.annotation.EnableRabbit;
import org.springframework.amqp.rabbit.annotation.Exchange;
import org.springframework.amqp.rabbit.annotation.QueueBinding;
import org.springframework.amqp.rabbit.annotation.RabbitHandler;
import org.springframework.amqp.rabbit.annotation.RabbitListener;
import org.springframework.amqp.rabbit.batch.SimpleBatchingStrategy;
import org.springframework.amqp.rabbit.config.DirectRabbitListenerContainerFactory;
import org.springframework.amqp.rabbit.config.SimpleRabbitListenerContainerFactory;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory.ConfirmType;
import org.springframework.amqp.rabbit.core.BatchingRabbitTemplate;
import org.springframework.amqp.rabbit.core.RabbitAdmin;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.amqp.rabbit.listener.RabbitListenerEndpointRegistry;
import org.springframework.amqp.support.converter.Jackson2JsonMessageConverter;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.messaging.handler.annotation.Header;
import org.springframework.messaging.handler.annotation.Payload;
import org.springframework.messaging.handler.annotation.SendTo;
import org.springframework.scheduling.concurrent.ThreadPoolTaskScheduler;

/** An application with annotations: declared topology, dispatching by type, replies and batches. */
final class Listeners {
    static final String SUFFIX = Harness.name("spring");

    static void register() {
        Harness.check("an annotated application declares and listens", () -> with(Listeners::application));
        Harness.check("messages are dispatched by type", () -> with(Listeners::dispatched));
        Harness.check("an annotated listener answers, also later", () -> with(Listeners::answers));
        Harness.check("batches of the consumer and of the producer", () -> with(Listeners::batches));
        Harness.check("a listener is stopped and started", () -> with(Listeners::stopped));
    }

    record Order(String id, int total) {}

    record Refund(String id) {}

    @Configuration
    @EnableRabbit
    static class Application {
        final LinkedBlockingQueue<Object> received = new LinkedBlockingQueue<>();

        @Bean
        String suffix() {
            return SUFFIX;
        }

        @Bean(destroyMethod = "destroy")
        CachingConnectionFactory connections() {
            return Harness.connections(ConfirmType.NONE);
        }

        @Bean
        RabbitAdmin admin(CachingConnectionFactory connections) {
            return new RabbitAdmin(connections);
        }

        @Bean
        Jackson2JsonMessageConverter json() {
            return new Jackson2JsonMessageConverter("*");
        }

        @Bean
        RabbitTemplate template(CachingConnectionFactory connections, Jackson2JsonMessageConverter json) {
            RabbitTemplate template = new RabbitTemplate(connections);
            template.setMessageConverter(json);
            template.setReplyTimeout(Harness.PATIENCE_MS);
            return template;
        }

        @Bean
        SimpleRabbitListenerContainerFactory rabbitListenerContainerFactory(CachingConnectionFactory connections, Jackson2JsonMessageConverter json) {
            var factory = new SimpleRabbitListenerContainerFactory();
            factory.setConnectionFactory(connections);
            factory.setMessageConverter(json);
            factory.setDefaultRequeueRejected(false);
            return factory;
        }

        @Bean
        DirectRabbitListenerContainerFactory directFactory(CachingConnectionFactory connections, Jackson2JsonMessageConverter json) {
            var factory = new DirectRabbitListenerContainerFactory();
            factory.setConnectionFactory(connections);
            factory.setMessageConverter(json);
            return factory;
        }

        @Bean
        SimpleRabbitListenerContainerFactory batchFactory(CachingConnectionFactory connections) {
            var factory = new SimpleRabbitListenerContainerFactory();
            factory.setConnectionFactory(connections);
            factory.setBatchListener(true);
            factory.setConsumerBatchEnabled(true);
            factory.setBatchSize(10);
            factory.setReceiveTimeout(500L);
            return factory;
        }

        @Bean
        Queue batched() {
            return new Queue("batched-" + SUFFIX);
        }

        @Bean
        Queue unpacked() {
            return new Queue("unpacked-" + SUFFIX);
        }

        @Bean
        Queue results() {
            return new Queue("results-" + SUFFIX);
        }

        @RabbitListener(id = "orders", concurrency = "2", bindings = @QueueBinding(
            value = @org.springframework.amqp.rabbit.annotation.Queue(name = "orders-#{@suffix}", durable = "true",
                arguments = @org.springframework.amqp.rabbit.annotation.Argument(name = "x-message-ttl", value = "86400000", type = "java.lang.Integer")),
            exchange = @Exchange(name = "orders-#{@suffix}", type = "topic"), key = {"order.created", "order.updated"}))
        void onOrder(@Payload Order order, @Header("amqp_receivedRoutingKey") String key, @Header(name = "tenant", required = false) String tenant) {
            received.add(List.of(order, key, String.valueOf(tenant)));
        }

        @RabbitListener(queuesToDeclare = @org.springframework.amqp.rabbit.annotation.Queue(name = "questions-#{@suffix}"))
        @SendTo
        Map<String, Object> onQuestion(Order order) {
            if (order.total() < 0) throw new IllegalArgumentException("a negative total");
            return Map.of("doubled", 2 * order.total());
        }

        @RabbitListener(queuesToDeclare = @org.springframework.amqp.rabbit.annotation.Queue(name = "later-#{@suffix}"), containerFactory = "directFactory")
        CompletableFuture<String> onLater(String text) {
            return CompletableFuture.supplyAsync(() -> text + " later");
        }

        @RabbitListener(queuesToDeclare = @org.springframework.amqp.rabbit.annotation.Queue(name = "forwarded-#{@suffix}"))
        @SendTo("results-#{@suffix}")
        String onForwarded(String text) {
            return text + " forwarded";
        }

        @RabbitListener(queues = "batched-#{@suffix}", containerFactory = "batchFactory")
        void onBatch(List<Message> batch) {
            received.add(batch.size());
        }

        @RabbitListener(queues = "unpacked-#{@suffix}")
        void onUnpacked(Message message) {
            received.add(new String(message.getBody()));
        }
    }

    @RabbitListener(queuesToDeclare = @org.springframework.amqp.rabbit.annotation.Queue(name = "typed-#{@suffix}"))
    static class Dispatcher {
        final LinkedBlockingQueue<String> received = new LinkedBlockingQueue<>();

        @RabbitHandler
        void onOrder(Order order) {
            received.add("order " + order.id());
        }

        @RabbitHandler
        void onRefund(Refund refund) {
            received.add("refund " + refund.id());
        }

        @RabbitHandler(isDefault = true)
        void onOther(Object other) {
            received.add("other " + other);
        }
    }

    interface Use {
        void run(AnnotationConfigApplicationContext context, Application application, RabbitTemplate template) throws Exception;
    }

    private static void with(Use use) throws Exception {
        try (var context = new AnnotationConfigApplicationContext(Application.class, Dispatcher.class)) {
            use.run(context, context.getBean(Application.class), context.getBean(RabbitTemplate.class));
            RabbitAdmin admin = context.getBean(RabbitAdmin.class);
            context.getBean(RabbitListenerEndpointRegistry.class).stop();
            for (String queue : List.of("orders", "questions", "later", "forwarded", "batched", "unpacked", "results", "typed")) {
                admin.deleteQueue(queue + "-" + SUFFIX);
            }
            admin.deleteExchange("orders-" + SUFFIX);
        }
    }

    private static void application(AnnotationConfigApplicationContext context, Application application, RabbitTemplate template) throws Exception {
        String exchange = "orders-" + SUFFIX;
        template.convertAndSend(exchange, "order.created", new Order("a", 1), message -> {
            message.getMessageProperties().setHeader("tenant", "t");
            return message;
        });
        Harness.same(Harness.next(application.received), List.of(new Order("a", 1), "order.created", "t"));
        template.convertAndSend(exchange, "order.deleted", new Order("b", 2));
        template.convertAndSend(exchange, "order.updated", new Order("c", 3));
        Harness.same(Harness.next(application.received), List.of(new Order("c", 3), "order.updated", "null"));
        Harness.same(context.getBean(RabbitAdmin.class).getQueueInfo(exchange).getConsumerCount(), 2);
    }

    private static void dispatched(AnnotationConfigApplicationContext context, Application application, RabbitTemplate template) throws Exception {
        for (Object one : List.of(new Order("o", 1), new Refund("r"), "text")) template.convertAndSend("typed-" + SUFFIX, one);
        List<String> got = new ArrayList<>();
        for (int index = 0; index < 3; index++) got.add(Harness.next(context.getBean(Dispatcher.class).received));
        Harness.same(got, List.of("order o", "refund r", "other text"));
    }

    private static void answers(AnnotationConfigApplicationContext context, Application application, RabbitTemplate template) throws Exception {
        for (int index = 0; index < 20; index++) {
            Harness.same(template.convertSendAndReceive("questions-" + SUFFIX, new Order("x", index)), Map.of("doubled", 2 * index));
        }
        Harness.same(template.convertSendAndReceive("later-" + SUFFIX, "now and"), "now and later");
        template.convertAndSend("forwarded-" + SUFFIX, "x");
        Harness.same(template.receiveAndConvert("results-" + SUFFIX, Harness.PATIENCE_MS), "x forwarded");
    }

    private static void batches(AnnotationConfigApplicationContext context, Application application, RabbitTemplate template) throws Exception {
        context.getBean(RabbitListenerEndpointRegistry.class).stop();
        for (int index = 0; index < 25; index++) template.convertAndSend("batched-" + SUFFIX, "" + index);
        Harness.eventually(() -> context.getBean(RabbitAdmin.class).getQueueInfo("batched-" + SUFFIX).getMessageCount() == 25);
        context.getBean(RabbitListenerEndpointRegistry.class).start();
        int sum = 0;
        List<Object> sizes = new ArrayList<>();
        while (sum < 25) {
            Object size = Harness.next(application.received);
            sizes.add(size);
            sum += (Integer) size;
        }
        Harness.that(sizes.get(0).equals(10) && sum == 25, "" + sizes);
        ThreadPoolTaskScheduler scheduler = new ThreadPoolTaskScheduler();
        scheduler.initialize();
        try {
            // One message of the broker has several of the application.
            var batching = new BatchingRabbitTemplate(context.getBean(CachingConnectionFactory.class), new SimpleBatchingStrategy(4, 100_000, 60_000), scheduler);
            for (int index = 0; index < 4; index++) batching.convertAndSend("unpacked-" + SUFFIX, "m" + index);
            for (int index = 0; index < 4; index++) Harness.same(Harness.next(application.received), "m" + index);
        } finally {
            scheduler.shutdown();
        }
    }

    private static void stopped(AnnotationConfigApplicationContext context, Application application, RabbitTemplate template) throws Exception {
        var container = context.getBean(RabbitListenerEndpointRegistry.class).getListenerContainer("orders");
        RabbitAdmin admin = context.getBean(RabbitAdmin.class);
        container.stop();
        String name = "orders-" + SUFFIX;
        Harness.eventually(() -> admin.getQueueInfo(name).getConsumerCount() == 0);
        template.convertAndSend(name, "order.created", new Order("waits", 1));
        Harness.eventually(() -> admin.getQueueInfo(name).getMessageCount() == 1);
        container.start();
        Harness.same(Harness.next(application.received), List.of(new Order("waits", 1), "order.created", "null"));
    }

    private Listeners() {}
}
