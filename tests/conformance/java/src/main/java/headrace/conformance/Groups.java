package headrace.conformance;

import static headrace.conformance.Check.expect;
import static headrace.conformance.Check.same;

import io.pravega.client.stream.Checkpoint;
import io.pravega.client.stream.ConfigMismatchException;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.Position;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ReaderGroupNotFoundException;
import io.pravega.client.stream.ReaderNotInReaderGroupException;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamCut;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Reader groups: sharing segments, checkpoints, resets, configuration. */
final class Groups {
    private static final String AREA = "reader groups";

    private Groups() {
    }

    static void add(List<Check> checks) {
        checks.add(new Check(AREA, "create, find and delete a group", Groups::life));
        checks.add(new Check(AREA, "readers share segments, and each event is read once", Groups::sharing));
        checks.add(new Check(AREA, "segments of a reader that goes offline are read by others", Groups::offline));
        checks.add(new Check(AREA, "several streams", Groups::severalStreams));
        checks.add(new Check(AREA, "a checkpoint on request, and a reset to it", Groups::checkpoint));
        checks.add(new Check(AREA, "automatic checkpoints", Groups::automatic));
        checks.add(new Check(AREA, "automatic checkpoints are off", Groups::noAutomatic));
        checks.add(new Check(AREA, "more checkpoints at the same time than allowed are refused", Groups::tooMany));
        checks.add(new Check(AREA, "reset to the last checkpoint without naming it", Groups::resetToLast));
        checks.add(new Check(AREA, "stream cuts generated while reading, and a group between two of them", Groups::cuts));
        checks.add(new Check(AREA, "a reset to other streams, and its readers are told", Groups::resetStreams));
        checks.add(new Check(AREA, "unread bytes without and with a checkpoint", Groups::unread));
        checks.add(new Check(AREA, "the end of a sealed stream is reported", Groups::endOfStream));
        checks.add(new Check(AREA, "another configuration of an existing group is refused", Groups::mismatch));
        checks.add(new Check(AREA, "distribution of segments over readers", Groups::distribution));
    }

    /** A checkpoint, and the events that its only reader read before it, and with the one call after it. */
    record Taken(Checkpoint checkpoint, List<String> before, List<String> after) {
    }

    static Taken checkpoint(Context context, ReaderGroup group, String name, EventStreamReader<String> reader) throws Exception {
        CompletableFuture<Checkpoint> made = group.initiateCheckpoint(name, context.executor);
        List<String> before = new ArrayList<>();
        List<String> after = new ArrayList<>();
        boolean reached = false;
        for (int round = 0; round < 300 && !reached; round++) {
            EventRead<String> read = reader.readNextEvent(200);
            reached = read.isCheckpoint();
            add(before, read);
        }
        expect(reached, "the reader meets the checkpoint");
        // The checkpoint is complete for a reader that goes on, because the application may have stored its state then.
        add(after, reader.readNextEvent(200));
        return new Taken(made.get(30, TimeUnit.SECONDS), before, after);
    }

    static Map<Stream, StreamCut> cuts(Context context, ReaderGroup group, EventStreamReader<String> reader) throws Exception {
        CompletableFuture<Map<Stream, StreamCut>> made = group.generateStreamCuts(context.executor);
        for (int round = 0; round < 100 && !made.isDone(); round++) {
            expect(reader.readNextEvent(200).getEvent() == null, "no event comes before the stream cut is done");
        }
        return made.get(10, TimeUnit.SECONDS);
    }

    private static void life(Context context) throws Exception {
        Stream stream = context.create("a", 1);
        ReaderGroupConfig configuration = Context.reads(stream).build();
        expect(context.groups.createReaderGroup("g", configuration), "the group is new");
        ReaderGroup group = context.opens(context.groups.getReaderGroup("g"));
        same("g", group.getGroupName(), "name");
        same(context.scope, group.getScope(), "scope");
        same(Set.of(stream.getScopedName()), group.getStreamNames(), "streams");
        context.groups.deleteReaderGroup("g");
        Check.fails(ReaderGroupNotFoundException.class, () -> context.groups.getReaderGroup("g"), "a group that is gone");
        expect(context.groups.createReaderGroup("g", configuration), "the name is free again");
    }

    private static void sharing(Context context) {
        Stream stream = context.create("a", 4);
        ReaderGroup group = context.group("g", Context.reads(stream).build());
        EventStreamReader<String> one = context.reader("one", "g");
        EventStreamReader<String> two = context.reader("two", "g");
        for (int round = 0; round < 10; round++) {
            one.readNextEvent(300);
            two.readNextEvent(300);
        }
        same(Set.of("one", "two"), group.getOnlineReaders(), "readers");
        for (int key = 0; key < 40; key++) {
            context.write("a", "key-" + key, "k" + key, 5);
        }
        List<String> byOne = new ArrayList<>();
        List<String> byTwo = new ArrayList<>();
        for (int round = 0; round < 400 && byOne.size() + byTwo.size() < 200; round++) {
            add(byOne, one.readNextEvent(200));
            add(byTwo, two.readNextEvent(200));
        }
        Set<String> all = new HashSet<>(byOne);
        all.addAll(byTwo);
        same(200, byOne.size() + byTwo.size(), "events");
        same(200, all.size(), "different events");
        expect(!byOne.isEmpty() && !byTwo.isEmpty(), "both readers read: " + byOne.size() + " and " + byTwo.size());
    }

    private static void offline(Context context) {
        Stream stream = context.create("a", 2);
        for (int key = 0; key < 10; key++) {
            context.write("a", "key-" + key, "k" + key, 5);
        }
        ReaderGroup group = context.group("g", Context.reads(stream).build());
        EventStreamReader<String> one = context.reader("one", "g");
        Set<String> found = new HashSet<>(Context.take(one, 10));
        EventRead<String> last = Context.next(one, 30_000);
        found.add(last.getEvent());
        Position position = last.getPosition();
        group.readerOffline("one", position);
        same(Set.of(), group.getOnlineReaders(), "readers");
        EventStreamReader<String> two = context.reader("two", "g");
        List<String> rest = Context.take(two, 39);
        found.addAll(rest);
        same(50, found.size(), "different events");
        fails(one);
    }

    /** A reader that left the group fails eventually: at its next look at the group's state, not before. */
    private static void fails(EventStreamReader<String> reader) {
        try {
            Check.fails(ReaderNotInReaderGroupException.class, () -> {
                for (int idle = 0; idle < 20;) {
                    idle += reader.readNextEvent(1_000).getEvent() == null ? 1 : 0;
                }
            }, "a reader that is offline");
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    private static void severalStreams(Context context) {
        Stream a = context.create("a", 2);
        Stream b = context.create("b", 1);
        Stream c = context.create("c", 3);
        for (String name : List.of("a", "b", "c")) {
            context.write(name, "key", name, 10);
        }
        same(30, new HashSet<>(context.everything("g", Context.reads(a, b, c).build(), 30)).size(), "different events");
    }

    private static void checkpoint(Context context) throws Exception {
        Stream stream = context.create("a", 2);
        for (int key = 0; key < 4; key++) {
            context.write("a", "key-" + key, "k" + key, 5);
        }
        ReaderGroup group = context.group("g", Context.reads(stream).disableAutomaticCheckpoints().build());
        EventStreamReader<String> reader = context.reader("r", "g");
        Set<String> before = new HashSet<>(Context.take(reader, 8));
        Taken taken = checkpoint(context, group, "c", reader);
        same("c", taken.checkpoint().getName(), "name of the checkpoint");
        before.addAll(taken.before());
        Set<String> after = new HashSet<>(taken.after());
        after.addAll(Context.take(reader, 20 - before.size() - after.size()));
        Checkpoint restored = Checkpoint.fromBytes(taken.checkpoint().toBytes());
        group.resetReaderGroup(Context.reads(stream).disableAutomaticCheckpoints().startFromCheckpoint(restored).build());
        fails(reader);
        EventStreamReader<String> again = context.reader("again", "g");
        same(after, new HashSet<>(Context.take(again, after.size())), "events after the checkpoint");
        expect(Context.next(again, 2_000) == null, "there are no more events");
        before.retainAll(after);
        same(Set.of(), before, "events on both sides of the checkpoint");
    }

    private static void automatic(Context context) {
        Stream stream = context.create("a", 1);
        context.write("a", "key", "e", 50);
        context.group("g", Context.reads(stream).automaticCheckpointIntervalMillis(2_000).build());
        EventStreamReader<String> reader = context.reader("r", "g");
        int checkpoints = 0;
        int events = 0;
        for (int round = 0; round < 60 && (checkpoints < 2 || events < 50); round++) {
            EventRead<String> read = reader.readNextEvent(1_000);
            checkpoints += read.isCheckpoint() ? 1 : 0;
            events += read.getEvent() != null ? 1 : 0;
        }
        expect(checkpoints >= 2, "at least two checkpoints came: " + checkpoints);
        same(50, events, "events");
    }

    private static void noAutomatic(Context context) {
        Stream stream = context.create("a", 1);
        context.write("a", "key", "e", 3);
        ReaderGroupConfig off = Context.reads(stream).disableAutomaticCheckpoints().build();
        expect(context.groups.createReaderGroup("g", off), "the group is new");
        EventStreamReader<String> reader = context.reader("r", "g");
        Context.take(reader, 3);
        for (int round = 0; round < 5; round++) {
            expect(!reader.readNextEvent(1_000).isCheckpoint(), "no checkpoint comes");
        }
    }

    private static void tooMany(Context context) throws Exception {
        Stream stream = context.create("a", 1);
        ReaderGroup group = context.group("g", Context.reads(stream).maxOutstandingCheckpointRequest(1)
                .disableAutomaticCheckpoints().build());
        EventStreamReader<String> reader = context.reader("r", "g");
        reader.readNextEvent(1_000);
        CompletableFuture<Checkpoint> first = group.initiateCheckpoint("one", context.executor);
        Check.fails(RuntimeException.class, () -> {
            try {
                group.initiateCheckpoint("two", context.executor).get(20, TimeUnit.SECONDS);
            } catch (java.util.concurrent.ExecutionException error) {
                throw new RuntimeException(error);
            }
        }, "a second checkpoint");
        for (int round = 0; round < 60 && !first.isDone(); round++) {
            reader.readNextEvent(500);
        }
        same("one", first.get(5, TimeUnit.SECONDS).getName(), "the first checkpoint");
    }

    private static void resetToLast(Context context) throws Exception {
        Stream stream = context.create("a", 1);
        context.write("a", "key", "e", 10);
        ReaderGroup group = context.group("g", Context.reads(stream).disableAutomaticCheckpoints().build());
        EventStreamReader<String> reader = context.reader("r", "g");
        Context.take(reader, 4);
        // The reader looks for checkpoints each 500 ms only, so that it may read all events before it meets this one.
        int before = 4 + checkpoint(context, group, "c", reader).before().size();
        context.write("a", "key", "late", 5);
        Context.take(reader, 1);
        group.resetReaderGroup();
        fails(reader);
        String expected = before < 10 ? "e:" + before : "late:0";
        same(expected, Context.take(context.reader("again", "g"), 1).get(0), "first event after the reset");
    }

    private static void cuts(Context context) throws Exception {
        Stream stream = context.create("a", 1);
        ReaderGroup group = context.group("g", Context.reads(stream).disableAutomaticCheckpoints().build());
        EventStreamReader<String> reader = context.reader("r", "g");
        context.write("a", "key", "one", 10);
        Context.take(reader, 10);
        StreamCut from = cuts(context, group, reader).get(stream);
        context.write("a", "key", "two", 10);
        Context.take(reader, 10);
        StreamCut to = StreamCut.from(cuts(context, group, reader).get(stream).asText());
        context.write("a", "key", "three", 10);
        ReaderGroupConfig between = ReaderGroupConfig.builder().groupRefreshTimeMillis(500).stream(stream, from, to).build();
        List<String> found = context.everything("between", between, 10);
        same("two:0", found.get(0), "first event");
        same("two:9", found.get(9), "last event");
        ReaderGroupConfig start = ReaderGroupConfig.builder().groupRefreshTimeMillis(500)
                .startFromStreamCuts(Map.of(stream, to)).build();
        same("three:0", context.everything("from", start, 10).get(0), "first event of a group with a start only");
    }

    private static void resetStreams(Context context) {
        Stream a = context.create("a", 1);
        Stream b = context.create("b", 1);
        context.write("a", "key", "a", 3);
        context.write("b", "key", "b", 3);
        ReaderGroup group = context.group("g", Context.reads(a).build());
        EventStreamReader<String> reader = context.reader("r", "g");
        Context.take(reader, 3);
        group.resetReaderGroup(Context.reads(b).build());
        fails(reader);
        same(List.of("b:0", "b:1", "b:2"), Context.take(context.reader("again", "g"), 3), "events");
        same(Set.of(b.getScopedName()), group.getStreamNames(), "streams");
    }

    private static void unread(Context context) throws Exception {
        Stream stream = context.create("a", 1);
        context.write("a", "key", "e", 10);
        ReaderGroup group = context.group("g", Context.reads(stream).disableAutomaticCheckpoints().build());
        same(110L, group.getMetrics().unreadBytes(), "unread bytes before reading");
        EventStreamReader<String> reader = context.reader("r", "g");
        Context.take(reader, 4);
        long before = 4 + checkpoint(context, group, "c", reader).before().size();
        same(110 - 11 * before, group.getMetrics().unreadBytes(), "unread bytes after a checkpoint");
        StreamCut end = context.tail("a");
        context.write("a", "key", "m", 10);
        ReaderGroup bounded = context.group("bounded", ReaderGroupConfig.builder().stream(stream, context.head("a"), end).build());
        same(110L, bounded.getMetrics().unreadBytes(), "unread bytes up to an end");
    }

    private static void endOfStream(Context context) throws Exception {
        Stream stream = context.create("a", 2);
        context.write("a", "key", "e", 5);
        context.streams.sealStream(context.scope, "a");
        // Readers release sealed segments only at checkpoints. A segment whose end a reader has not met yet at the first
        // one waits for the second, which comes after 30 s by default.
        ReaderGroup group = context.group("g", Context.reads(stream).automaticCheckpointIntervalMillis(1_000).build());
        CompletableFuture<Void> told = new CompletableFuture<>();
        group.getEndOfDataNotifier(context.executor).registerListener(notification -> told.complete(null));
        EventStreamReader<String> reader = context.reader("r", "g");
        Context.take(reader, 5);
        boolean completed = false;
        for (int round = 0; round < 30 && !completed; round++) {
            completed = reader.readNextEvent(1_000).isReadCompleted();
        }
        expect(completed, "the reader is told that the stream ends");
        told.get(30, TimeUnit.SECONDS);
    }

    private static void mismatch(Context context) throws Exception {
        Stream stream = context.create("a", 1);
        expect(context.groups.createReaderGroup("g", Context.reads(stream).build()), "the group is new");
        Check.fails(ConfigMismatchException.class, () -> context.groups.createReaderGroup("g",
                Context.reads(stream).automaticCheckpointIntervalMillis(7_000).build()), "another configuration");
    }

    private static void distribution(Context context) {
        Stream stream = context.create("a", 4);
        ReaderGroup group = context.group("g", Context.reads(stream).build());
        same(4, group.getReaderSegmentDistribution().getUnassignedSegments(), "unassigned segments");
        EventStreamReader<String> reader = context.reader("r", "g");
        for (int round = 0; round < 30 && group.getReaderSegmentDistribution().getUnassignedSegments() > 0; round++) {
            reader.readNextEvent(300);
        }
        same(Map.of("r", 4), group.getReaderSegmentDistribution().getReaderSegmentDistribution(), "segments by reader");
    }

    private static void add(List<String> events, EventRead<String> read) {
        if (read.getEvent() != null) {
            events.add(read.getEvent());
        }
    }
}
