package headrace.conformance;

import static headrace.conformance.Check.expect;
import static headrace.conformance.Check.same;

import io.pravega.client.segment.impl.Segment;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.impl.StreamCutImpl;
import io.pravega.client.stream.impl.StreamSegments;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;

/** Stream cuts across scales, with segments that were read to their ends. */
final class Cuts {
    private static final String AREA = "stream cuts";

    private Cuts() {
    }

    static void add(List<Check> checks) {
        checks.add(new Check(AREA, "head and tail of a stream", Cuts::ends));
        checks.add(new Check(AREA, "a group from a cut at the ends of sealed segments (-1)", Cuts::startAtEnd));
        checks.add(new Check(AREA, "a group up to the ends of sealed segments (-1)", Cuts::stopAtEnd));
        checks.add(new Check(AREA, "unread bytes and a reset with a checkpoint at the end of a segment", Cuts::checkpointAtEnd));
        checks.add(new Check(AREA, "unread bytes while a merged segment waits for one of two", Cuts::waitingForMerge));
        checks.add(new Check(AREA, "truncate at the ends of sealed segments (-1)", Cuts::truncateAtEnd));
    }

    private static void ends(Context context) throws Exception {
        context.create("a", 2);
        context.write("a", "key", "e", 5);
        long before = sum(context.head("a"));
        long after = sum(context.tail("a"));
        same(0L, before, "bytes before the head");
        same(55L, after, "bytes before the tail");
        same(context.tail("a"), StreamCut.fromBytes(context.tail("a").toBytes()), "the bytes of a cut");
        same(context.tail("a"), StreamCut.from(context.tail("a").asText()), "the text of a cut");
    }

    private static long sum(StreamCut cut) {
        return cut.asImpl().getPositions().values().stream().mapToLong(offset -> offset).sum();
    }

    private static StreamCut atEnds(StreamCut cut) {
        Map<Segment, Long> ends = new HashMap<>();
        cut.asImpl().getPositions().keySet().forEach(segment -> ends.put(segment, -1L));
        return new StreamCutImpl(cut.asImpl().getStream(), ends);
    }

    private static void startAtEnd(Context context) throws Exception {
        Stream stream = context.create("a", 2);
        context.write("a", "key", "old", 5);
        StreamCut ends = atEnds(context.tail("a"));
        expect(context.scale("a", 3), "the stream is scaled");
        context.write("a", "key", "new", 5);
        ReaderGroupConfig start = ReaderGroupConfig.builder().groupRefreshTimeMillis(500).stream(stream, ends).build();
        same("new:0", context.everything("g", start, 5).get(0), "first event");
    }

    private static void stopAtEnd(Context context) throws Exception {
        Stream stream = context.create("a", 2);
        context.write("a", "key", "old", 5);
        StreamCut ends = atEnds(context.tail("a"));
        expect(context.scale("a", 3), "the stream is scaled");
        context.write("a", "key", "new", 5);
        ReaderGroupConfig stop = ReaderGroupConfig.builder().groupRefreshTimeMillis(500)
                .stream(stream, StreamCut.UNBOUNDED, ends).build();
        same("old:4", context.everything("g", stop, 5).get(4), "last event");
    }

    private static void checkpointAtEnd(Context context) throws Exception {
        atEndOfScaled(context);
        afterOneOfSealed(context);
    }

    /** A sealed segment is left at a checkpoint only: a group without automatic ones stays at its end until then. */
    private static void atEndOfScaled(Context context) throws Exception {
        Stream stream = context.create("a", 1);
        context.write("a", "key", "old", 5);
        expect(context.scale("a", 2), "the stream is scaled");
        context.write("a", "key", "new", 4);
        ReaderGroup group = context.group("g", Context.reads(stream).disableAutomaticCheckpoints().build());
        EventStreamReader<String> reader = context.reader("r", "g");
        Context.take(reader, 5);
        expect(Context.next(reader, 3_000) == null, "the reader waits at the end of the segment for a checkpoint");
        Groups.Taken taken = Groups.checkpoint(context, group, "c", reader);
        same(List.of(-1L), offsets(taken, stream), "the end of the segment in the checkpoint");
        long unread = group.getMetrics().unreadBytes();
        // The client subtracts -1. Pravega's own server counts the bytes of the segment at -1, too.
        expect(unread >= 4 * 13 && unread <= 9 * 13 + 1, "4 of 9 events of 13 bytes are unread: " + unread);
        List<String> found = new ArrayList<>(taken.after());
        found.addAll(Context.take(reader, 4 - found.size()));
        same("new:3", found.get(3), "last event");
        ReaderGroupConfig.ReaderGroupConfigBuilder often = Context.reads(stream).automaticCheckpointIntervalMillis(1_000);
        group.resetReaderGroup(often.startFromCheckpoint(taken.checkpoint()).build());
        same(found, Context.take(context.reader("again", "g"), 4), "events after the reset");
        ReaderGroupConfig fresh = ReaderGroupConfig.builder().groupRefreshTimeMillis(500)
                .automaticCheckpointIntervalMillis(1_000).startFromCheckpoint(taken.checkpoint()).build();
        same(found, context.everything("fresh", fresh, 4), "events of a new group");
    }

    private static List<Long> offsets(Groups.Taken taken, Stream stream) {
        return List.copyOf(taken.checkpoint().asImpl().getPositions().get(stream).asImpl().getPositions().values());
    }

    /** A routing key of the active segment whose key range begins there. */
    private static String key(Context context, String name, double low) throws Exception {
        StreamSegments segments = context.controller().getCurrentSegments(context.scope, name).get(30, TimeUnit.SECONDS);
        long wanted = segments.getSegmentForKey(low + 0.01).getSegmentId();
        int number = 0;
        while (segments.getSegmentForKey("key-" + number).getSegmentId() != wanted) {
            number++;
        }
        return "key-" + number;
    }

    /**
     * Reads on, with a checkpoint after each event, until a checkpoint names one segment of two: the reader has finished
     * the other one. Each group that this is used with has two segments and looks at its state with each call.
     */
    private static Groups.Taken finishOne(Context context, Stream stream, ReaderGroup group, EventStreamReader<String> reader,
            List<String> found) throws Exception {
        for (int number = 0; number < 30; number++) {
            Groups.Taken taken = Groups.checkpoint(context, group, "one-" + number, reader);
            found.addAll(taken.before());
            if (offsets(taken, stream).size() == 1) {
                return taken;
            }
            found.addAll(taken.after());
            if (taken.after().isEmpty()) {
                found.addAll(Context.take(reader, 1));
            }
        }
        throw new AssertionError("no checkpoint without the short segment came; events: " + found);
    }

    private static void waitingForMerge(Context context) throws Exception {
        Stream stream = context.create("a", StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.byEventRate(1_000, 2, 1)).build());
        expect(context.scale("a", 2), "the stream is split");
        String low = key(context, "a", 0.0);
        context.write("a", low, "low", 2);
        context.write("a", key(context, "a", 0.5), "long", 60);
        expect(context.scale("a", 1), "the stream is merged");
        context.write("a", low, "new", 2);
        ReaderGroup group = context.group("g", ReaderGroupConfig.builder().stream(stream).groupRefreshTimeMillis(0)
                .disableAutomaticCheckpoints().build());
        EventStreamReader<String> reader = context.reader("r", "g");
        expect(Context.next(reader, 3_000) == null, "the reader waits at the end of the first segment for a checkpoint");
        List<String> found = new ArrayList<>(Groups.checkpoint(context, group, "first", reader).after());
        Groups.Taken taken = finishOne(context, stream, group, reader, found);
        long left = bytes("long", 60) - bytes(found, "long") + bytes("new", 2);
        long unread = group.getMetrics().unreadBytes();
        // Pravega's own server counts the bytes of a segment that the checkpoint leaves out, too.
        expect(unread >= left && unread <= left + bytes("low", 2), left + " bytes are unread: " + unread);
        found.addAll(taken.after());
        for (int number = 0; number < 5 && found.size() < 64; number++) {
            for (EventRead<String> read = Context.next(reader, 2_000); read != null; read = Context.next(reader, 2_000)) {
                found.add(read.getEvent());
            }
            Groups.Taken next = Groups.checkpoint(context, group, "last-" + number, reader);
            found.addAll(next.before());
            found.addAll(next.after());
        }
        same(64, found.size(), "events");
        same(64, new HashSet<>(found).size(), "different events");
        same(List.of("new:0", "new:1"), found.subList(62, 64), "the events of the merged segment come last");
    }

    /** The checkpoint leaves out the segment that the group has finished, and nothing follows it. */
    private static void afterOneOfSealed(Context context) throws Exception {
        Stream stream = context.create("b", 2);
        context.write("b", key(context, "b", 0.0), "low", 2);
        context.write("b", key(context, "b", 0.5), "long", 60);
        context.streams.sealStream(context.scope, "b");
        ReaderGroup group = context.group("h", ReaderGroupConfig.builder().stream(stream).groupRefreshTimeMillis(0)
                .disableAutomaticCheckpoints().build());
        EventStreamReader<String> reader = context.reader("r", "h");
        List<String> found = new ArrayList<>(Context.take(reader, 1));
        Groups.Taken taken = finishOne(context, stream, group, reader, found);
        long left = bytes("long", 60) - bytes(found, "long");
        long unread = group.getMetrics().unreadBytes();
        expect(unread >= left && unread <= left + bytes("low", 2), left + " bytes are unread: " + unread);
        group.resetReaderGroup();
        List<String> rest = Context.take(context.reader("again", "h"), 62 - found.size());
        ReaderGroupConfig fresh = ReaderGroupConfig.builder().startFromCheckpoint(taken.checkpoint()).build();
        same(rest, context.everything("from", fresh, rest.size()), "events of a new group");
        found.addAll(rest);
        same(62, new HashSet<>(found).size(), "different events");
    }

    /** The bytes that these events take in a segment, with their headers. */
    private static long bytes(List<String> events, String prefix) {
        return events.stream().filter(one -> one.startsWith(prefix)).mapToLong(one -> one.length() + 8).sum();
    }

    private static long bytes(String prefix, int count) {
        return bytes(IntStream.range(0, count).mapToObj(number -> prefix + ":" + number).toList(), prefix);
    }

    private static void truncateAtEnd(Context context) throws Exception {
        Stream stream = context.create("a", 2);
        context.write("a", "key", "old", 5);
        StreamCut ends = atEnds(context.tail("a"));
        expect(context.scale("a", 3), "the stream is scaled");
        context.write("a", "key", "new", 5);
        expect(context.streams.truncateStream(context.scope, "a", ends), "the stream is truncated");
        same("new:0", context.everything("g", Context.reads(stream).build(), 5).get(0), "first event");
    }
}
