import java.io.PrintStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.Consumer;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.awscore.exception.AwsServiceException;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.http.urlconnection.UrlConnectionHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.services.sqs.model.BatchEntryIdsNotDistinctException;
import software.amazon.awssdk.services.sqs.model.ChangeMessageVisibilityBatchRequestEntry;
import software.amazon.awssdk.services.sqs.model.DeleteMessageBatchRequestEntry;
import software.amazon.awssdk.services.sqs.model.EmptyBatchRequestException;
import software.amazon.awssdk.services.sqs.model.InvalidAttributeNameException;
import software.amazon.awssdk.services.sqs.model.InvalidBatchEntryIdException;
import software.amazon.awssdk.services.sqs.model.InvalidMessageContentsException;
import software.amazon.awssdk.services.sqs.model.Message;
import software.amazon.awssdk.services.sqs.model.MessageAttributeValue;
import software.amazon.awssdk.services.sqs.model.MessageSystemAttributeName;
import software.amazon.awssdk.services.sqs.model.PurgeQueueInProgressException;
import software.amazon.awssdk.services.sqs.model.QueueAttributeName;
import software.amazon.awssdk.services.sqs.model.QueueDoesNotExistException;
import software.amazon.awssdk.services.sqs.model.QueueNameExistsException;
import software.amazon.awssdk.services.sqs.model.ReceiptHandleIsInvalidException;
import software.amazon.awssdk.services.sqs.model.ResourceNotFoundException;
import software.amazon.awssdk.services.sqs.model.SendMessageBatchRequestEntry;
import software.amazon.awssdk.services.sqs.model.SendMessageResponse;
import software.amazon.awssdk.services.sqs.model.TooManyEntriesInBatchRequestException;

/**
 * Tests the Java SDK (version 2) against the broker at MALOTE_SQS_AT: all actions, the errors that programs compare, and
 * FIFO queues. The SDK verifies the MD5s of bodies and attributes. The last line counts the passed and failed checks.
 */
public final class Main {
    private final SqsClient sqs;
    private int names;

    private Main(SqsClient sqs) {
        this.sqs = sqs;
    }

    private String name(String suffix) {
        return "java-" + ProcessHandle.current().pid() + "-" + names++ + suffix;
    }

    private static void equal(Object got, Object want) {
        if (!Objects.equals(got, want)) {
            throw new AssertionError("got " + got + ", want " + want);
        }
    }

    /** Checks the type and the code of an error, because programs compare either of them. */
    private static void refused(Class<? extends AwsServiceException> type, String code, Runnable call) {
        try {
            call.run();
        } catch (AwsServiceException error) {
            if (!type.isInstance(error)) {
                throw new AssertionError("got " + error + ", want " + type);
            }
            equal(error.awsErrorDetails().errorCode(), code);
            return;
        }
        throw new AssertionError(code + " was expected, but the call succeeded");
    }

    private String queue(String suffix, Map<QueueAttributeName, String> attributes) {
        return sqs.createQueue(q -> q.queueName(name(suffix)).attributes(attributes)).queueUrl();
    }

    private String attribute(String url, QueueAttributeName which) {
        return sqs.getQueueAttributes(a -> a.queueUrl(url).attributeNames(which)).attributes().get(which);
    }

    private List<Message> receive(String url) {
        return sqs.receiveMessage(r -> r.queueUrl(url).maxNumberOfMessages(10).waitTimeSeconds(10)
                .visibilityTimeout(60).messageAttributeNames("All")
                .messageSystemAttributeNames(MessageSystemAttributeName.ALL)).messages();
    }

    private void giveBack(String url, Message message) {
        sqs.changeMessageVisibility(c -> c.queueUrl(url).receiptHandle(message.receiptHandle()).visibilityTimeout(0));
    }

    private void queues() {
        String called = name("");
        String url = sqs.createQueue(q -> q.queueName(called).tags(Map.of("team", "a"))
                .attributes(Map.of(QueueAttributeName.VISIBILITY_TIMEOUT, "60"))).queueUrl();
        equal(sqs.createQueue(q -> q.queueName(called)).queueUrl(), url);
        refused(QueueNameExistsException.class, "QueueAlreadyExists", () -> sqs.createQueue(
                q -> q.queueName(called).attributes(Map.of(QueueAttributeName.VISIBILITY_TIMEOUT, "61"))));
        equal(sqs.getQueueUrl(q -> q.queueName(called)).queueUrl(), url);
        for (int n = 0; n < 3; n++) {
            String other = called + "-p" + n;
            sqs.createQueue(q -> q.queueName(other));
        }
        equal(sqs.listQueuesPaginator(l -> l.queueNamePrefix(called + "-p").maxResults(2)).queueUrls().stream().count(),
                3L);
        sqs.setQueueAttributes(s -> s.queueUrl(url).attributes(Map.of(QueueAttributeName.MAXIMUM_MESSAGE_SIZE, "2048")));
        equal(attribute(url, QueueAttributeName.MAXIMUM_MESSAGE_SIZE), "2048");
        refused(InvalidAttributeNameException.class, "InvalidAttributeName", () -> sqs.setQueueAttributes(
                s -> s.queueUrl(url).attributesWithStrings(Map.of("VisibilityTimeoutSeconds", "1"))));
        sqs.tagQueue(t -> t.queueUrl(url).tags(Map.of("stage", "test")));
        sqs.untagQueue(t -> t.queueUrl(url).tagKeys("team"));
        equal(sqs.listQueueTags(t -> t.queueUrl(url)).tags(), Map.of("stage", "test"));
        sqs.addPermission(p -> p.queueUrl(url).label("one").awsAccountIds("123456789012").actions("SendMessage"));
        equal(attribute(url, QueueAttributeName.POLICY).contains("SQS:SendMessage"), true);
        sqs.removePermission(p -> p.queueUrl(url).label("one"));
        sqs.purgeQueue(p -> p.queueUrl(url));
        refused(PurgeQueueInProgressException.class, "AWS.SimpleQueueService.PurgeQueueInProgress",
                () -> sqs.purgeQueue(p -> p.queueUrl(url)));
        sqs.deleteQueue(d -> d.queueUrl(url));
        refused(QueueDoesNotExistException.class, "AWS.SimpleQueueService.NonExistentQueue",
                () -> sqs.getQueueUrl(q -> q.queueName(called)));
    }

    private void messages() {
        String url = queue("", Map.of());
        String body = "olá <&>\r\n";
        SdkBytes binary = SdkBytes.fromByteArray(new byte[] {0, (byte) 255, 10});
        SendMessageResponse sent = sqs.sendMessage(m -> m.queueUrl(url).messageBody(body).messageAttributes(Map.of(
                "kind", MessageAttributeValue.builder().dataType("String").stringValue("email").build(),
                "price", MessageAttributeValue.builder().dataType("Number.eur").stringValue("007.10").build(),
                "raw", MessageAttributeValue.builder().dataType("Binary").binaryValue(binary).build())));
        List<SendMessageBatchRequestEntry> entries = new ArrayList<>();
        entries.add(SendMessageBatchRequestEntry.builder().id("late").messageBody("x").delaySeconds(901).build());
        for (int n = 0; n < 9; n++) {
            entries.add(SendMessageBatchRequestEntry.builder().id("e" + n).messageBody("e" + n).build());
        }
        var batch = sqs.sendMessageBatch(b -> b.queueUrl(url).entries(entries));
        equal(batch.successful().size(), 9);
        equal(batch.failed().size(), 1);
        equal(batch.failed().get(0).code(), "InvalidParameterValue");
        List<Message> got = receive(url);
        equal(got.size(), 10);
        Message first = got.get(0);
        equal(first.body(), body);
        equal(first.messageId(), sent.messageId());
        equal(first.messageAttributes().get("price").stringValue(), "007.10");
        equal(first.messageAttributes().get("raw").binaryValue(), binary);
        equal(first.attributes().get(MessageSystemAttributeName.APPROXIMATE_RECEIVE_COUNT), "1");
        sqs.changeMessageVisibility(
                c -> c.queueUrl(url).receiptHandle(first.receiptHandle()).visibilityTimeout(120));
        var changed = sqs.changeMessageVisibilityBatch(c -> c.queueUrl(url).entries(
                ChangeMessageVisibilityBatchRequestEntry.builder().id("a").receiptHandle(got.get(1).receiptHandle())
                        .visibilityTimeout(0).build(),
                ChangeMessageVisibilityBatchRequestEntry.builder().id("b").receiptHandle("nonsense")
                        .visibilityTimeout(0).build()));
        equal(changed.successful().size(), 1);
        equal(changed.failed().get(0).code(), "ReceiptHandleIsInvalid");
        List<Message> back = receive(url);
        equal(back.size(), 1);
        equal(back.get(0).attributes().get(MessageSystemAttributeName.APPROXIMATE_RECEIVE_COUNT), "2");
        sqs.deleteMessage(d -> d.queueUrl(url).receiptHandle(first.receiptHandle()));
        List<DeleteMessageBatchRequestEntry> gone = new ArrayList<>();
        gone.add(DeleteMessageBatchRequestEntry.builder().id("back").receiptHandle(back.get(0).receiptHandle()).build());
        for (int n = 2; n < got.size(); n++) {
            gone.add(DeleteMessageBatchRequestEntry.builder().id("" + n).receiptHandle(got.get(n).receiptHandle()).build());
        }
        equal(sqs.deleteMessageBatch(d -> d.queueUrl(url).entries(gone)).successful().size(), 9);
        equal(attribute(url, QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES_NOT_VISIBLE), "0");
    }

    private void batch(String url, String... ids) {
        var entries = Arrays.stream(ids)
                .map(id -> SendMessageBatchRequestEntry.builder().id(id).messageBody("x").build()).toList();
        sqs.sendMessageBatch(b -> b.queueUrl(url).entries(entries));
    }

    private void refusals() {
        String url = queue("", Map.of());
        refused(InvalidMessageContentsException.class, "InvalidMessageContents",
                () -> sqs.sendMessage(m -> m.queueUrl(url).messageBody("\u0001")));
        refused(AwsServiceException.class, "InvalidParameterValue",
                () -> sqs.sendMessage(m -> m.queueUrl(url).messageBody("x".repeat((1 << 20) + 1))));
        String start = "AWS.SimpleQueueService.";
        refused(EmptyBatchRequestException.class, start + "EmptyBatchRequest", () -> batch(url));
        refused(BatchEntryIdsNotDistinctException.class, start + "BatchEntryIdsNotDistinct",
                () -> batch(url, "a", "a"));
        refused(InvalidBatchEntryIdException.class, start + "InvalidBatchEntryId", () -> batch(url, "a b"));
        refused(TooManyEntriesInBatchRequestException.class, start + "TooManyEntriesInBatchRequest",
                () -> batch(url, "abcdefghijk".split("")));
        refused(ReceiptHandleIsInvalidException.class, "ReceiptHandleIsInvalid",
                () -> sqs.deleteMessage(d -> d.queueUrl(url).receiptHandle("nonsense")));
        refused(AwsServiceException.class, "InvalidParameterValue",
                () -> sqs.receiveMessage(r -> r.queueUrl(url).maxNumberOfMessages(11)));
    }

    private SendMessageResponse send(String url, String body, String group, String dedup) {
        return sqs.sendMessage(
                m -> m.queueUrl(url).messageBody(body).messageGroupId(group).messageDeduplicationId(dedup));
    }

    private List<Message> take(String url, int max) {
        return sqs.receiveMessage(r -> r.queueUrl(url).maxNumberOfMessages(max)).messages();
    }

    private void fifo() {
        String url = queue(".fifo", Map.of(QueueAttributeName.FIFO_QUEUE, "true"));
        SendMessageResponse first = send(url, "a1", "a", "1");
        equal(send(url, "again", "a", "1").messageId(), first.messageId());
        SendMessageResponse second = send(url, "a2", "a", "2");
        equal(second.sequenceNumber().compareTo(first.sequenceNumber()) > 0, true);
        send(url, "b1", "b", "3");
        refused(AwsServiceException.class, "MissingParameter",
                () -> sqs.sendMessage(m -> m.queueUrl(url).messageBody("x")));
        Message a = take(url, 1).get(0);
        equal(a.body(), "a1");
        // The group is locked, so the next message is of another group.
        equal(take(url, 10).stream().map(Message::body).toList(), List.of("b1"));
        equal(take(url, 10).size(), 0);
        giveBack(url, a);
        equal(take(url, 10).stream().map(Message::body).toList(), List.of("a1", "a2"));
    }

    private void deadLetters() {
        String dead = queue("", Map.of());
        String arn = attribute(dead, QueueAttributeName.QUEUE_ARN);
        String policy = "{\"deadLetterTargetArn\":\"" + arn + "\",\"maxReceiveCount\":\"1\"}";
        String url = queue("", Map.of(QueueAttributeName.REDRIVE_POLICY, policy));
        equal(sqs.listDeadLetterSourceQueues(l -> l.queueUrl(dead)).queueUrls(), List.of(url));
        sqs.sendMessage(m -> m.queueUrl(url).messageBody("poison"));
        giveBack(url, receive(url).get(0));
        Message poison = receive(dead).get(0);
        equal(poison.body(), "poison");
        equal(poison.attributes().get(MessageSystemAttributeName.DEAD_LETTER_QUEUE_SOURCE_ARN),
                attribute(url, QueueAttributeName.QUEUE_ARN));
        giveBack(dead, poison);
        sqs.startMessageMoveTask(s -> s.sourceArn(arn));
        equal(receive(url).get(0).body(), "poison");
        equal(sqs.listMessageMoveTasks(l -> l.sourceArn(arn)).results().size(), 1);
        refused(AwsServiceException.class, "InvalidParameterValue",
                () -> sqs.cancelMessageMoveTask(c -> c.taskHandle("nonsense")));
        refused(ResourceNotFoundException.class, "ResourceNotFoundException",
                () -> sqs.startMessageMoveTask(s -> s.sourceArn(arn + "-other")));
    }

    public static void main(String[] args) {
        SqsClient client = SqsClient.builder()
                .endpointOverride(URI.create(System.getenv("MALOTE_SQS_AT")))
                .region(Region.EU_WEST_1)
                .credentialsProvider(StaticCredentialsProvider.create(AwsBasicCredentials.create("made", "up")))
                .httpClientBuilder(UrlConnectionHttpClient.builder().socketTimeout(Duration.ofSeconds(60)))
                .overrideConfiguration(o -> o.retryStrategy(r -> r.maxAttempts(1)))
                .build();
        Map<String, Consumer<Main>> checks = Map.of(
                "queues", Main::queues, "messages", Main::messages, "refusals", Main::refusals,
                "fifo", Main::fifo, "deadLetters", Main::deadLetters);
        Main main = new Main(client);
        PrintStream errors = new PrintStream(System.err, true, StandardCharsets.UTF_8);
        int passed = 0;
        int failed = 0;
        for (var check : checks.entrySet()) {
            try {
                check.getValue().accept(main);
                passed++;
            } catch (RuntimeException | AssertionError why) {
                failed++;
                errors.println("FAILED java " + check.getKey() + ": " + why);
            }
        }
        System.out.println(passed + " passed, " + failed + " failed");
        System.exit(failed == 0 ? 0 : 1);
    }
}
