package malote;

import static malote.Harness.*;

import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.RuleProperties;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.models.SubQueue;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;

/** Topics, subscriptions, rules and forwarding. The entities are declared in ../entities.json. */
final class Topics {
    static final List<Case> CASES = List.of(
        new Case("subscriptions get the messages that match their rules", Topics::rulesDecide),
        new Case("create, list and delete rules", Topics::rulesAreManaged),
        new Case("a subscription has its own dead letters", Topics::deadLetters),
        new Case("a topic drops duplicates", Topics::duplicates),
        new Case("sessions of a subscription", Topics::sessionsOfOne),
        new Case("messages are forwarded to queues and topics", Topics::forwarding));

    private Topics() {
    }

    private static ServiceBusReceiverClient subscription(ServiceBusClientBuilder builder, String topic, String name) {
        return builder.receiver().topicName(topic).subscriptionName(name).disableAutoComplete().buildClient();
    }

    private static void publish(ServiceBusClientBuilder builder, String topic, ServiceBusMessage... messages) {
        try (var sender = builder.sender().topicName(topic).buildClient()) {
            sender.sendMessages(List.of(messages));
        }
    }

    /** All messages of a subscription. */
    private static List<ServiceBusReceivedMessage> all(ServiceBusClientBuilder builder, String topic, String name) {
        try (var receiver = subscription(builder, topic, name)) {
            return drain(receiver);
        }
    }

    private static ServiceBusMessage news(String body, String subject, long size) {
        ServiceBusMessage message = of("s", body).setSubject(subject);
        message.getApplicationProperties().put("size", size);
        return message;
    }

    private static void rulesDecide() {
        var builder = builder();
        List.of("all", "sport", "large").forEach(name -> all(builder, "news", name));
        publish(builder, "news", news("1", "sport", 99), news("2", "art", 11), news("3", "art", 1));
        same("all", bodies(all(builder, "news", "all")), List.of("1", "2", "3"));
        same("sport", bodies(all(builder, "News", "SPORT")), List.of("1"));
        List<ServiceBusReceivedMessage> large = all(builder, "news", "large");
        same("large", bodies(large), List.of("2"));
        same("subject", large.get(0).getSubject(), "large");
        same("set by the action", large.get(0).getApplicationProperties().get("seen"), "yes");
    }

    private static void rulesAreManaged() {
        var builder = builder();
        all(builder, "news", "ruled");
        try (var rules = builder.ruleManager().topicName("news").subscriptionName("ruled").buildClient()) {
            rules.createRule("mine", new CreateRuleOptions(new SqlRuleFilter("n > 1")).setAction(new SqlRuleAction("SET touched = 1")));
            rules.createRule("by-label", new CreateRuleOptions(new CorrelationRuleFilter().setLabel("special")));
            refused("a rule with an existing name", ServiceBusFailureReason.MESSAGING_ENTITY_ALREADY_EXISTS, () -> rules.createRule("mine", new CreateRuleOptions(new SqlRuleFilter("1 = 1"))));
            refusedAs("an invalid filter", "", () -> rules.createRule("bad", new CreateRuleOptions(new SqlRuleFilter("n >"))));
            List<String> names = new ArrayList<>();
            rules.listRules().forEach(rule -> names.add(rule.getName() + " " + kind(rule)));
            same("rules", names.stream().sorted().toList(),
                List.of("$Default TrueRuleFilter", "by-label CorrelationRuleFilter", "mine SqlRuleFilter SqlRuleAction"));
            rules.deleteRule("$Default");
            ServiceBusMessage no = of("s", "no");
            no.getApplicationProperties().put("n", 1);
            ServiceBusMessage yes = of("s", "yes");
            yes.getApplicationProperties().put("n", 2);
            publish(builder, "news", no, yes, of("s", "labelled").setSubject("special"));
            same("came", bodies(all(builder, "news", "ruled")), List.of("yes", "labelled"));
            rules.deleteRule("mine");
            rules.deleteRule("by-label");
            refused("a missing rule", ServiceBusFailureReason.MESSAGING_ENTITY_NOT_FOUND, () -> rules.deleteRule("mine"));
            rules.createRule("$Default", new CreateRuleOptions(new SqlRuleFilter("1=1")));
        }
    }

    private static String kind(RuleProperties rule) {
        String action = rule.getAction() instanceof SqlRuleAction ? " SqlRuleAction" : "";
        return rule.getFilter().getClass().getSimpleName() + action;
    }

    private static void deadLetters() {
        var builder = builder();
        all(builder, "news", "sport");
        publish(builder, "news", news("x", "sport", 1));
        try (var receiver = subscription(builder, "news", "sport"); var dead = builder.receiver().topicName("news")
            .subscriptionName("sport").subQueue(SubQueue.DEAD_LETTER_QUEUE).disableAutoComplete().buildClient()) {
            receiver.deadLetter(one(receiver));
            ServiceBusReceivedMessage got = one(dead);
            same("body", got.getBody().toString(), "x");
            dead.complete(got);
        }
    }

    private static void duplicates() {
        var builder = builder();
        String id = UUID.randomUUID().toString();
        publish(builder, "once", text("x").setMessageId(id));
        publish(builder, "once", text("x").setMessageId(id));
        same("came", all(builder, "once", "s").size(), 1);
    }

    private static void sessionsOfOne() {
        var builder = builder();
        String session = UUID.randomUUID().toString();
        publish(builder, "news", of(session, "0"), of(session, "1"));
        try (var acceptor = builder.sessionReceiver().topicName("news").subscriptionName("by-session").disableAutoComplete()
            .buildClient(); var receiver = acceptor.acceptSession(session)) {
            same("order", bodies(drain(receiver)), List.of("0", "1"));
        }
    }

    private static void forwarding() {
        var builder = builder();
        all(builder, "news", "all");
        send(builder, "in", text("on").setMessageId("f"));
        try (var out = receiver(builder, "out"); var graves = receiver(builder, "graves")) {
            ServiceBusReceivedMessage got = one(out);
            same("id", got.getMessageId(), "f");
            out.abandon(got);
            got = one(graves);
            same("source", got.getDeadLetterSource(), "out");
            graves.complete(got);
        }
        send(builder, "in-to-topic", of("s", "to all"));
        same("came", bodies(all(builder, "news", "all")), List.of("to all"));
    }
}
