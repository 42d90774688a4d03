package malote;

import static malote.Harness.*;

import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusTransactionContext;
import com.azure.messaging.servicebus.models.AbandonOptions;
import com.azure.messaging.servicebus.models.CompleteOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.DeferOptions;
import java.util.List;

/** Transactions: sends and settlements take effect together or not at all. */
final class Transactions {
    static final List<Case> CASES = List.of(
        new Case("a transaction is committed", Transactions::committed),
        new Case("a transaction is rolled back", Transactions::rolledBack),
        new Case("all settlements in a transaction", Transactions::settlements),
        new Case("a transaction with several entities", Transactions::acrossEntities),
        new Case("a transaction with a session", Transactions::withSessions));

    private Transactions() {
    }

    private static void committed() {
        String queue = queue();
        var builder = builder();
        send(builder, queue, text("in"));
        try (var sender = sender(builder, queue); var receiver = receiver(builder, queue)) {
            ServiceBusReceivedMessage got = one(receiver);
            ServiceBusTransactionContext transaction = sender.createTransaction();
            sender.sendMessage(text("out"), transaction);
            sender.sendMessages(List.of(text("out too"), text("out three")), transaction);
            receiver.complete(got, new CompleteOptions().setTransactionContext(transaction));
            that(receiver.peekMessage(got.getSequenceNumber() + 1) == null, "a message exists before the commit");
            sender.commitTransaction(transaction);
            List<ServiceBusReceivedMessage> after = receive(receiver, 3);
            same("after the commit", bodies(after), List.of("out", "out too", "out three"));
            after.forEach(receiver::complete);
            nothing(receiver);
        }
    }

    private static void rolledBack() {
        String queue = queue("\"lock_ms\": 10000");
        var builder = builder();
        send(builder, queue, text("in"));
        try (var sender = sender(builder, queue); var receiver = receiver(builder, queue)) {
            ServiceBusReceivedMessage got = one(receiver);
            ServiceBusTransactionContext transaction = receiver.createTransaction();
            sender.sendMessage(text("never"), transaction);
            receiver.complete(got, new CompleteOptions().setTransactionContext(transaction));
            receiver.rollbackTransaction(transaction);
            same("the message after the rollback", receiver.peekMessage(1).getBody().toString(), "in");
            // The client considers it settled, so it arrives when its lock has expired.
            ServiceBusReceivedMessage again = one(receiver);
            same("body", again.getBody().toString(), "in");
            receiver.complete(again);
            nothing(receiver);
        }
    }

    private static void settlements() {
        String queue = queue();
        var builder = builder();
        send(builder, queue, text("abandoned"), text("deferred"), text("dead"));
        try (var receiver = receiver(builder, queue); var dead = grave(builder, queue)) {
            List<ServiceBusReceivedMessage> got = receive(receiver, 3);
            ServiceBusTransactionContext transaction = receiver.createTransaction();
            receiver.abandon(got.get(0), new AbandonOptions().setTransactionContext(transaction));
            receiver.defer(got.get(1), new DeferOptions().setTransactionContext(transaction));
            receiver.deadLetter(got.get(2), new DeadLetterOptions().setDeadLetterReason("r").setTransactionContext(transaction));
            receiver.commitTransaction(transaction);
            same("abandoned", one(receiver).getBody().toString(), "abandoned");
            same("deferred", receiver.receiveDeferredMessage(got.get(1).getSequenceNumber()).getBody().toString(), "deferred");
            same("dead", one(dead).getDeadLetterReason(), "r");
        }
    }

    private static void acrossEntities() {
        String from = queue();
        String to = queue();
        send(builder(), from, text("x"));
        var builder = builder().enableCrossEntityTransactions();
        // Sends to other entities go through the entity that is used first.
        try (var receiver = receiver(builder, from); var sender = sender(builder, to)) {
            ServiceBusReceivedMessage got = one(receiver);
            ServiceBusTransactionContext transaction = receiver.createTransaction();
            receiver.complete(got, new CompleteOptions().setTransactionContext(transaction));
            sender.sendMessage(text("onwards"), transaction);
            receiver.commitTransaction(transaction);
        }
        var other = builder();
        try (var receiver = receiver(other, from); var onwards = receiver(other, to)) {
            same("arrived", one(onwards).getBody().toString(), "onwards");
            nothing(receiver);
        }
    }

    private static void withSessions() {
        String queue = sessions();
        var builder = builder();
        send(builder, queue, of("s", "0"), of("s", "1"));
        try (var acceptor = builder.sessionReceiver().queueName(queue).disableAutoComplete().buildClient();
            var receiver = acceptor.acceptSession("s"); var sender = sender(builder, queue)) {
            List<ServiceBusReceivedMessage> got = receive(receiver, 2);
            ServiceBusTransactionContext transaction = receiver.createTransaction();
            receiver.complete(got.get(0), new CompleteOptions().setTransactionContext(transaction));
            sender.sendMessage(of("s", "2"), transaction);
            receiver.commitTransaction(transaction);
            receiver.complete(got.get(1));
            same("after", one(receiver).getBody().toString(), "2");
        }
    }
}
