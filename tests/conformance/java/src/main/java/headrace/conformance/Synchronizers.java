package headrace.conformance;

import static headrace.conformance.Check.expect;
import static headrace.conformance.Check.fails;
import static headrace.conformance.Check.same;

import io.pravega.client.SynchronizerClientFactory;
import io.pravega.client.state.InitialUpdate;
import io.pravega.client.state.Revision;
import io.pravega.client.state.Revisioned;
import io.pravega.client.state.RevisionedStreamClient;
import io.pravega.client.state.StateSynchronizer;
import io.pravega.client.state.SynchronizerConfig;
import io.pravega.client.state.Update;
import io.pravega.client.stream.TruncatedDataException;
import io.pravega.client.stream.impl.JavaSerializer;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;

/** Revisioned streams and state synchronizers. */
final class Synchronizers {
    private static final String AREA = "revisioned streams and state synchronizers";

    private Synchronizers() {
    }

    static void add(List<Check> checks) {
        checks.add(new Check(AREA, "write conditionally and read from a revision", Synchronizers::conditional));
        checks.add(new Check(AREA, "the mark of a revisioned stream", Synchronizers::mark));
        checks.add(new Check(AREA, "truncate a revisioned stream", Synchronizers::truncate));
        checks.add(new Check(AREA, "synchronizers see each other's updates", Synchronizers::shared));
        checks.add(new Check(AREA, "concurrent updates are not lost", Synchronizers::concurrent));
        checks.add(new Check(AREA, "compaction keeps the state", Synchronizers::compact));
    }

    private static RevisionedStreamClient<String> client(Context context) {
        return context.opens(context.synchronizers()
                .createRevisionedStreamClient("a", Context.TEXT, SynchronizerConfig.builder().build()));
    }

    private static void conditional(Context context) {
        context.create("a", 1);
        RevisionedStreamClient<String> client = client(context);
        Revision start = client.fetchLatestRevision();
        Revision first = client.writeConditionally(start, "one");
        expect(first != null, "the first write succeeds");
        expect(client.writeConditionally(start, "conflict") == null, "a write at an old revision fails");
        Revision second = client.writeConditionally(first, "two");
        client.writeUnconditionally("three");
        List<String> found = new ArrayList<>();
        client.readFrom(start).forEachRemaining(entry -> found.add(entry.getValue()));
        same(List.of("one", "two", "three"), found, "values");
        List<String> later = new ArrayList<>();
        client.readRange(first, second).forEachRemaining(entry -> later.add(entry.getValue()));
        same(List.of("two"), later, "values of a range");
        same(second, Revision.fromString(second.toString()), "the text of a revision");
    }

    private static void mark(Context context) {
        context.create("a", 1);
        RevisionedStreamClient<String> client = client(context);
        expect(client.getMark() == null, "there is no mark yet");
        client.writeUnconditionally("one");
        Revision revision = client.fetchLatestRevision();
        expect(client.compareAndSetMark(null, revision), "the mark is set");
        same(revision, client.getMark(), "mark");
        expect(!client.compareAndSetMark(null, revision), "another expectation fails");
        expect(client.compareAndSetMark(revision, null), "the mark is removed");
        expect(client.getMark() == null, "there is no mark any more");
    }

    private static void truncate(Context context) throws Exception {
        context.create("a", 1);
        RevisionedStreamClient<String> client = client(context);
        Revision start = client.fetchOldestRevision();
        client.writeUnconditionally("one");
        Revision middle = client.fetchLatestRevision();
        client.writeUnconditionally("two");
        client.truncateToRevision(middle);
        same(middle, client.fetchOldestRevision(), "oldest revision");
        fails(TruncatedDataException.class, () -> client.readFrom(start).next(), "truncated values");
        same("two", client.readFrom(middle).next().getValue(), "value");
    }

    /** A state that is a list of texts. */
    private record State(String scopedName, Revision revision, List<String> items) implements Revisioned {
        @Override
        public String getScopedStreamName() {
            return scopedName;
        }

        @Override
        public Revision getRevision() {
            return revision;
        }
    }

    private record Append(String item) implements Update<State>, Serializable {
        @Override
        public State applyTo(State before, Revision revision) {
            List<String> items = new ArrayList<>(before.items());
            items.add(item);
            return new State(before.scopedName(), revision, items);
        }
    }

    private record Begin(List<String> items) implements InitialUpdate<State>, Serializable {
        @Override
        public State create(String scopedName, Revision revision) {
            return new State(scopedName, revision, items);
        }
    }

    private static StateSynchronizer<State> synchronizer(Context context) {
        SynchronizerClientFactory factory = context.synchronizers();
        StateSynchronizer<State> made = context.opens(factory.createStateSynchronizer(
                "a", new JavaSerializer<Append>(), new JavaSerializer<Begin>(), SynchronizerConfig.builder().build()));
        made.initialize(new Begin(new ArrayList<>()));
        return made;
    }

    private static void shared(Context context) {
        context.create("a", 1);
        StateSynchronizer<State> one = synchronizer(context);
        StateSynchronizer<State> two = synchronizer(context);
        one.updateState((state, updates) -> {
            updates.add(new Append("by one"));
        });
        two.updateState((state, updates) -> {
            updates.add(new Append("by two"));
        });
        one.updateStateUnconditionally(new Append("once more"));
        two.fetchUpdates();
        one.fetchUpdates();
        same(List.of("by one", "by two", "once more"), two.getState().items(), "items of the second");
        same(two.getState().items(), one.getState().items(), "items of the first");
    }

    private static void concurrent(Context context) throws Exception {
        context.create("a", 1);
        List<StateSynchronizer<State>> all = new ArrayList<>();
        for (int number = 0; number < 4; number++) {
            all.add(synchronizer(context));
        }
        CountDownLatch done = new CountDownLatch(all.size());
        for (StateSynchronizer<State> one : all) {
            new Thread(() -> {
                for (int number = 0; number < 10; number++) {
                    one.updateState((state, updates) -> {
                        updates.add(new Append(String.valueOf(state.items().size())));
                    });
                }
                done.countDown();
            }).start();
        }
        done.await();
        all.get(0).fetchUpdates();
        List<String> expected = new ArrayList<>();
        for (int number = 0; number < 40; number++) {
            expected.add(String.valueOf(number));
        }
        same(expected, all.get(0).getState().items(), "items");
    }

    private static void compact(Context context) {
        context.create("a", 1);
        StateSynchronizer<State> one = synchronizer(context);
        for (int number = 0; number < 10; number++) {
            one.updateState((state, updates) -> {
                updates.add(new Append("item"));
            });
        }
        one.compact(state -> new Begin(new ArrayList<>(state.items())));
        same(0L, one.bytesWrittenSinceCompaction(), "bytes since the compaction");
        StateSynchronizer<State> two = synchronizer(context);
        two.fetchUpdates();
        same(10, two.getState().items().size(), "items");
    }
}
