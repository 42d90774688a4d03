package malote;

import static malote.Harness.*;

import com.azure.core.exception.ResourceExistsException;
import com.azure.core.exception.ResourceNotFoundException;
import com.azure.core.http.policy.HttpPipelinePolicy;
import com.azure.core.util.UrlBuilder;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClientBuilder;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.CreateSubscriptionOptions;
import com.azure.messaging.servicebus.administration.models.FalseRuleFilter;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.administration.models.TrueRuleFilter;
import java.net.URI;
import java.time.Duration;
import java.util.List;
import java.util.UUID;

/** Queues, topics, subscriptions and rules, created and changed with the administration client. */
final class Administration {
    static final List<Case> CASES = List.of(
        new Case("create, change and delete queues", Administration::queues),
        new Case("create, change and delete topics and subscriptions", Administration::topics),
        new Case("create, change and delete rules", Administration::rules));

    private Administration() {
    }

    /** The builder uses only the host of the connection string, and HTTPS. */
    private static ServiceBusAdministrationClient client() {
        URI at = URI.create("http://" + variable("MALOTE_ADMIN_AT"));
        HttpPipelinePolicy toServer = (context, next) -> {
            UrlBuilder url = UrlBuilder.parse(context.getHttpRequest().getUrl());
            url.setScheme("http").setHost(at.getHost()).setPort(at.getPort());
            context.getHttpRequest().setUrl(url.toString());
            return next.process();
        };
        return new ServiceBusAdministrationClientBuilder()
            .connectionString(connectionString("RootManageSharedAccessKey", "SAS_KEY_VALUE")).addPolicy(toServer).buildClient();
    }

    private static String name(String kind) {
        return kind + "-" + UUID.randomUUID().toString().substring(0, 13);
    }

    private static void missing(String what, Runnable attempt) {
        try {
            attempt.run();
        } catch (ResourceNotFoundException expected) {
            return;
        }
        throw new AssertionError(what + " is there");
    }

    private static void queues() {
        var client = client();
        String name = name("java");
        same("exists", client.getQueueExists(name), false);
        var asked = new CreateQueueOptions().setUserMetadata("<m> & more").setLockDuration(Duration.ofSeconds(20)).setSessionRequired(true);
        client.createQueue(name, asked);
        var described = client.getQueue(name);
        same("metadata", described.getUserMetadata(), "<m> & more");
        same("lock", described.getLockDuration(), Duration.ofSeconds(20));
        same("sessions", described.isSessionRequired(), true);
        same("deliveries", described.getMaxDeliveryCount(), 10);
        same("changed", client.updateQueue(described.setMaxDeliveryCount(5)).getMaxDeliveryCount(), 5);
        try {
            client.createQueue(name);
            throw new AssertionError("the queue was created twice");
        } catch (ResourceExistsException expected) {
            // Expected.
        }
        send(builder(), name, of("s", "x"));
        var facts = client.getQueueRuntimeProperties(name);
        same("messages", facts.getTotalMessageCount(), 1L);
        same("active", facts.getActiveMessageCount(), 1);
        that(client.listQueues().stream().anyMatch(queue -> queue.getName().equals(name)), "the queue is not listed");
        client.deleteQueue(name);
        missing("the queue", () -> client.getQueue(name));
        missing("the queue", () -> client.deleteQueue(name));
        same("namespace", client.getNamespaceProperties().getName(), "localhost");
    }

    private static void topics() {
        var client = client();
        String name = name("java-topic");
        client.createTopic(name);
        same("changed", client.updateTopic(client.getTopic(name).setUserMetadata("t")).getUserMetadata(), "t");
        client.createSubscription(name, "s", new CreateSubscriptionOptions().setMaxDeliveryCount(4));
        var described = client.getSubscription(name, "s");
        same("deliveries", described.getMaxDeliveryCount(), 4);
        same("changed", client.updateSubscription(described.setMaxDeliveryCount(7)).getMaxDeliveryCount(), 7);
        same("subscriptions", client.getTopicRuntimeProperties(name).getSubscriptionCount(), 1);
        same("messages", client.getSubscriptionRuntimeProperties(name, "s").getTotalMessageCount(), 0L);
        same("listed", client.listSubscriptions(name).stream().count(), 1L);
        missing("the subscription", () -> client.getSubscription(name, "none"));
        client.deleteSubscription(name, "s");
        client.deleteTopic(name);
        missing("the topic", () -> client.getTopic(name));
    }

    private static void rules() {
        var client = client();
        String name = name("java-rules");
        client.createTopic(name);
        client.createSubscription(name, "s");
        that(client.getRule(name, "s", "$Default").getFilter() instanceof TrueRuleFilter, "the default rule does not match everything");
        var sql = new CreateRuleOptions(new SqlRuleFilter("a = 1")).setAction(new SqlRuleAction("SET b = 2"));
        client.createRule(name, "sql", "s", sql);
        var described = client.getRule(name, "s", "sql");
        same("filter", ((SqlRuleFilter) described.getFilter()).getSqlExpression(), "a = 1");
        same("action", ((SqlRuleAction) described.getAction()).getSqlExpression(), "SET b = 2");
        var correlation = new CorrelationRuleFilter("c").setLabel("news");
        correlation.getProperties().put("k", "v");
        client.createRule(name, "correlation", "s", new CreateRuleOptions(correlation));
        var filter = (CorrelationRuleFilter) client.getRule(name, "s", "correlation").getFilter();
        same("correlation", filter.getCorrelationId() + filter.getLabel() + filter.getProperties(), "cnews{k=v}");
        that(client.updateRule(name, "s", described.setFilter(new FalseRuleFilter())).getFilter() instanceof FalseRuleFilter, "changed");
        same("listed", client.listRules(name, "s").stream().count(), 3L);
        client.deleteRule(name, "s", "sql");
        missing("the rule", () -> client.getRule(name, "s", "sql"));
        client.deleteTopic(name);
    }
}
