package headrace.conformance;

import static headrace.conformance.Check.expect;
import static headrace.conformance.Check.same;

import io.pravega.client.segment.impl.Segment;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.impl.StreamCutImpl;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;

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
        Stream stream = context.create("a", 1);
        context.write("a", "key", "old", 5);
        expect(context.scale("a", 2), "the stream is scaled");
        context.write("a", "key", "new", 4);
        ReaderGroup group = context.group("g", Context.reads(stream).disableAutomaticCheckpoints().build());
        EventStreamReader<String> reader = context.reader("r", "g");
        Context.take(reader, 5);
        Groups.Taken taken = Groups.checkpoint(context, group, "c", reader);
        int left = 4 - taken.before().size();
        long unread = group.getMetrics().unreadBytes();
        // A segment at -1 counts as one byte less than none, also with Pravega's own server.
        expect(unread >= 13 * left && unread <= 13 * left + 1, left + " events of 13 bytes are unread: " + unread);
        group.resetReaderGroup(Context.reads(stream).disableAutomaticCheckpoints().startFromCheckpoint(taken.checkpoint()).build());
        same("new:3", Context.take(context.reader("again", "g"), left).get(left - 1), "last event");
        ReaderGroupConfig fresh =
                ReaderGroupConfig.builder().groupRefreshTimeMillis(500).startFromCheckpoint(taken.checkpoint()).build();
        same("new:3", context.everything("fresh", fresh, left).get(left - 1), "last event of a new group");
    }

    private static void waitingForMerge(Context context) throws Exception {
        Stream stream = context.create("a", StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.byEventRate(1_000, 2, 1)).build());
        expect(context.scale("a", 2), "the stream is split");
        for (int key = 0; key < 10; key++) {
            context.write("a", "key-" + key, "k" + key, 4);
        }
        expect(context.scale("a", 1), "the stream is merged");
        context.write("a", "key", "new", 2);
        ReaderGroup group = context.group("g", Context.reads(stream).disableAutomaticCheckpoints().build());
        EventStreamReader<String> reader = context.reader("r", "g");
        List<String> found = new ArrayList<>();
        for (int number = 0; found.size() < 42; number++) {
            found.addAll(Context.take(reader, 1));
            long unread = group.getMetrics().unreadBytes();
            expect(unread >= 0 && unread <= 42 * 20, "unread bytes after " + found.size() + " events: " + unread);
            if (number % 4 == 3) {
                Groups.Taken taken = Groups.checkpoint(context, group, "c" + number, reader);
                found.addAll(taken.before());
                found.addAll(taken.after());
            }
        }
        same(42, new HashSet<>(found).size(), "different events");
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
