package headrace.conformance;

import static headrace.conformance.Check.expect;
import static headrace.conformance.Check.fails;
import static headrace.conformance.Check.same;

import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionInfo;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.TxnFailedException;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.UUID;

/** Transactions. */
final class Transactions {
    private static final String AREA = "transactions";

    /** The lease of 10 s and about 30 s until the controller aborts the transaction, with room for a slow machine. */
    private static final int LEASE_ENDS_S = 110;

    private Transactions() {
    }

    static void add(List<Check> checks) {
        checks.add(new Check(AREA, "events are visible after the commit only", Transactions::commit));
        checks.add(new Check(AREA, "an aborted transaction leaves no event", Transactions::abort));
        checks.add(new Check(AREA, "another writer continues a transaction by its id", Transactions::continued));
        checks.add(new Check(AREA, "a transaction is aborted when its lease ends", Transactions::lease));
        checks.add(new Check(AREA, "the client pings: an open transaction outlives its lease", Transactions::ping));
        checks.add(new Check(AREA, "a transaction that ended takes no events", Transactions::ended));
        checks.add(new Check(AREA, "completed transactions are listed", Transactions::listed));
        checks.add(new Check(AREA, "a commit after a scale keeps all events", Transactions::scaled));
        checks.add(new Check(AREA, "many transactions at the same time", Transactions::many));
        checks.add(new Check(AREA, "sealing a stream aborts its open transactions", Transactions::sealed));
    }

    private static void await(Transaction<?> transaction, Transaction.Status wanted) throws Exception {
        for (int attempt = 0; attempt < 120 && transaction.checkStatus() != wanted; attempt++) {
            Thread.sleep(250);
        }
        same(wanted, transaction.checkStatus(), "status of the transaction");
    }

    private static void commit(Context context) throws Exception {
        Stream stream = context.create("a", 2);
        Transaction<String> transaction = context.transactional("a").beginTxn();
        same(Transaction.Status.OPEN, transaction.checkStatus(), "status");
        for (int number = 0; number < 20; number++) {
            transaction.writeEvent("key", "t:" + number);
        }
        transaction.flush();
        context.group("g", Context.reads(stream).build());
        EventStreamReader<String> reader = context.reader("r", "g");
        expect(Context.next(reader, 2_000) == null, "no event is visible before the commit");
        transaction.commit();
        List<String> found = Context.take(reader, 20);
        same("t:0", found.get(0), "first event");
        same("t:19", found.get(19), "last event");
        await(transaction, Transaction.Status.COMMITTED);
    }

    private static void abort(Context context) throws Exception {
        Stream stream = context.create("a", 2);
        Transaction<String> transaction = context.transactional("a").beginTxn();
        transaction.writeEvent("key", "never");
        transaction.flush();
        transaction.abort();
        await(transaction, Transaction.Status.ABORTED);
        context.write("a", "key", "seen", 1);
        same(List.of("seen:0"), context.everything("g", Context.reads(stream).build(), 1), "events");
    }

    private static void continued(Context context) throws Exception {
        Stream stream = context.create("a", 2);
        Transaction<String> transaction = context.transactional("a").beginTxn();
        transaction.writeEvent("key", "first");
        transaction.flush();
        Transaction<String> same = context.transactional("a").getTxn(transaction.getTxnId());
        same.writeEvent("key", "second");
        same.commit();
        same(List.of("first", "second"), context.everything("g", Context.reads(stream).build(), 2), "events");
        fails(RuntimeException.class, () -> context.transactional("a").getTxn(new UUID(0, 4711)).commit(), "an unknown id");
    }

    private static void lease(Context context) throws Exception {
        context.create("a", 1);
        EventWriterConfig brief = EventWriterConfig.builder().transactionTimeoutTime(10_000).build();
        TransactionalEventStreamWriter<String> writer = context.clients.createTransactionalEventWriter("a", Context.TEXT, brief);
        Transaction<String> transaction = writer.beginTxn();
        transaction.writeEvent("key", "lost");
        transaction.flush();
        // The writer no longer renews the lease. No other writer may open the transaction: its `getTxn` renews it as well.
        writer.close();
        for (int attempt = 0; attempt < LEASE_ENDS_S && transaction.checkStatus() == Transaction.Status.OPEN; attempt++) {
            Thread.sleep(1_000);
        }
        await(transaction, Transaction.Status.ABORTED);
    }

    private static void ping(Context context) throws Exception {
        context.create("a", 1);
        EventWriterConfig brief = EventWriterConfig.builder().transactionTimeoutTime(10_000).build();
        try (TransactionalEventStreamWriter<String> writer =
                context.clients.createTransactionalEventWriter("a", Context.TEXT, brief)) {
            Transaction<String> transaction = writer.beginTxn();
            transaction.writeEvent("key", "kept");
            Thread.sleep(45_000);
            same(Transaction.Status.OPEN, transaction.checkStatus(), "status after 45 s");
            transaction.commit();
            await(transaction, Transaction.Status.COMMITTED);
        }
    }

    private static void ended(Context context) throws Exception {
        context.create("a", 1);
        Transaction<String> transaction = context.transactional("a").beginTxn();
        transaction.writeEvent("key", "one");
        transaction.commit();
        fails(TxnFailedException.class, () -> transaction.writeEvent("key", "two"), "an event after the commit");
        Transaction<String> aborted = context.transactional("a").beginTxn();
        aborted.abort();
        await(aborted, Transaction.Status.ABORTED);
        fails(TxnFailedException.class, aborted::commit, "a commit after the abort");
    }

    private static void listed(Context context) throws Exception {
        Stream stream = context.create("a", 1);
        TransactionalEventStreamWriter<String> writer = context.transactional("a");
        Map<UUID, Transaction.Status> expected = new HashMap<>();
        for (int number = 0; number < 6; number++) {
            Transaction<String> transaction = writer.beginTxn();
            transaction.writeEvent("key", "t" + number);
            if (number % 2 == 0) {
                transaction.commit();
                await(transaction, Transaction.Status.COMMITTED);
                expected.put(transaction.getTxnId(), Transaction.Status.COMMITTED);
            } else {
                transaction.abort();
                await(transaction, Transaction.Status.ABORTED);
                expected.put(transaction.getTxnId(), Transaction.Status.ABORTED);
            }
        }
        Map<UUID, Transaction.Status> found = new HashMap<>();
        for (TransactionInfo one : context.streams.listCompletedTransactions(stream)) {
            same(stream, one.getStream(), "stream of the transaction");
            found.put(one.getTransactionId(), one.getTransactionStatus());
        }
        same(expected, found, "completed transactions");
    }

    private static void scaled(Context context) throws Exception {
        Stream stream = context.create("a", 1);
        TransactionalEventStreamWriter<String> writer = context.transactional("a");
        Transaction<String> transaction = writer.beginTxn();
        for (int number = 0; number < 10; number++) {
            transaction.writeEvent("key-" + number, "t" + number);
        }
        transaction.flush();
        expect(context.scale("a", 2), "the stream is scaled");
        context.write("a", "key", "w", 5);
        transaction.writeEvent("key", "late");
        transaction.commit();
        await(transaction, Transaction.Status.COMMITTED);
        same(16, new HashSet<>(context.everything("g", Context.reads(stream).build(), 16)).size(), "different events");
    }

    private static void many(Context context) throws Exception {
        Stream stream = context.create("a", 2);
        TransactionalEventStreamWriter<String> writer = context.transactional("a");
        List<Transaction<String>> open = java.util.stream.IntStream.range(0, 20).mapToObj(number -> writer.beginTxn()).toList();
        for (int round = 0; round < 5; round++) {
            for (int number = 0; number < open.size(); number++) {
                open.get(number).writeEvent("key-" + number, number + ":" + round);
            }
        }
        for (Transaction<String> transaction : open) {
            transaction.commit();
        }
        same(100, new HashSet<>(context.everything("g", Context.reads(stream).build(), 100)).size(), "different events");
    }

    private static void sealed(Context context) throws Exception {
        context.create("a", 1);
        Transaction<String> transaction = context.transactional("a").beginTxn();
        transaction.writeEvent("key", "lost");
        expect(context.streams.sealStream(context.scope, "a"), "the stream is sealed");
        await(transaction, Transaction.Status.ABORTED);
    }
}
