package headrace.conformance;

import static headrace.conformance.Check.expect;
import static headrace.conformance.Check.same;

import io.pravega.client.BatchClientFactory;
import io.pravega.client.batch.SegmentIterator;
import io.pravega.client.batch.SegmentRange;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamCut;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;

/** Batch reading of segments. */
final class BatchReads {
    private static final String AREA = "batch reading";

    private BatchReads() {
    }

    static void add(List<Check> checks) {
        checks.add(new Check(AREA, "all segments of a stream across a scale", BatchReads::everything));
        checks.add(new Check(AREA, "the segments between two cuts", BatchReads::between));
        checks.add(new Check(AREA, "segments after a truncation", BatchReads::truncated));
    }

    private static List<String> read(BatchClientFactory batch, Iterator<SegmentRange> ranges) {
        List<String> found = new ArrayList<>();
        while (ranges.hasNext()) {
            try (SegmentIterator<String> events = batch.readSegment(ranges.next(), Context.TEXT)) {
                events.forEachRemaining(found::add);
            }
        }
        return found;
    }

    private static void everything(Context context) throws Exception {
        Stream stream = context.create("a", 2);
        for (int key = 0; key < 10; key++) {
            context.write("a", "key-" + key, "k" + key, 5);
        }
        expect(context.scale("a", 4), "the stream is scaled");
        for (int key = 0; key < 10; key++) {
            context.write("a", "key-" + key, "n" + key, 5);
        }
        BatchClientFactory batch = context.batch();
        List<SegmentRange> ranges = new ArrayList<>();
        batch.getSegments(stream, StreamCut.UNBOUNDED, StreamCut.UNBOUNDED).getIterator().forEachRemaining(ranges::add);
        same(6, ranges.size(), "segments");
        same(100, new HashSet<>(read(batch, ranges.iterator())).size(), "different events");
    }

    private static void between(Context context) throws Exception {
        Stream stream = context.create("a", 1);
        context.write("a", "key", "before", 5);
        StreamCut from = context.tail("a");
        context.write("a", "key", "within", 5);
        expect(context.scale("a", 2), "the stream is scaled");
        context.write("a", "key", "also", 5);
        StreamCut to = context.tail("a");
        context.write("a", "key", "after", 5);
        BatchClientFactory batch = context.batch();
        HashSet<String> found = new HashSet<>(read(batch, batch.getSegments(stream, from, to).getIterator()));
        same(10, found.size(), "events");
        expect(found.contains("within:0") && found.contains("also:4"), "the events are those between the cuts: " + found);
    }

    private static void truncated(Context context) throws Exception {
        Stream stream = context.create("a", 1);
        context.write("a", "key", "before", 5);
        context.streams.truncateStream(context.scope, "a", context.tail("a"));
        context.write("a", "key", "after", 5);
        BatchClientFactory batch = context.batch();
        List<String> found = read(batch, batch.getSegments(stream, null, null).getIterator());
        same(List.of("after:0", "after:1", "after:2", "after:3", "after:4"), found, "events");
    }
}
