package headrace.conformance;

import static headrace.conformance.Check.expect;
import static headrace.conformance.Check.same;

import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Scaling while clients write and read. */
final class Scaling {
    private static final String AREA = "scaling";

    private Scaling() {
    }

    static void add(List<Check> checks) {
        checks.add(new Check(AREA, "split and merge; order per key while writing and reading", Scaling::order));
        checks.add(new Check(AREA, "split one segment of several", Scaling::one));
        checks.add(new Check(AREA, "a scale below the minimum of the policy is refused", Scaling::minimum));
        checks.add(new Check(AREA, "a scale that does not cover the key space is refused", Scaling::holes));
        checks.add(new Check(AREA, "an update with a higher minimum splits segments", Scaling::grows));
    }

    private static StreamConfiguration elastic(int minimum) {
        return StreamConfiguration.builder().scalingPolicy(ScalingPolicy.byEventRate(10_000, 2, minimum)).build();
    }

    private static void order(Context context) throws Exception {
        Stream stream = context.create("a", elastic(1));
        context.group("g", Context.reads(stream).build());
        EventStreamReader<String> reader = context.reader("r", "g");
        EventStreamWriter<String> writer = context.writer("a");
        Map<String, Integer> next = new HashMap<>();
        int[] widths = {3, 1, 4, 2};
        int number = 0;
        for (int width : widths) {
            for (int round = 0; round < 25; round++, number++) {
                for (int key = 0; key < 8; key++) {
                    writer.writeEvent("key-" + key, key + ":" + number);
                }
            }
            expect(context.scale("a", width), "the stream is scaled to " + width);
            same(width, context.activeSegments("a").size(), "segments");
        }
        writer.flush();
        for (String event : Context.take(reader, 8 * number)) {
            String[] parts = event.split(":");
            int expected = next.merge(parts[0], 1, Integer::sum) - 1;
            same(expected, Integer.valueOf(parts[1]), "next event of key " + parts[0]);
        }
    }

    private static void one(Context context) throws Exception {
        Stream stream = context.create("a", 2);
        context.write("a", "key", "old", 5);
        expect(context.scale("a", List.of(1L), 0.5, 1.0, 2), "the second segment is split");
        same(3, context.activeSegments("a").size(), "segments");
        context.write("a", "key", "new", 5);
        List<String> found = context.everything("g", Context.reads(stream).build(), 10);
        same("old:0", found.get(0), "first event");
        same("new:4", found.get(9), "last event");
    }

    private static void minimum(Context context) throws Exception {
        context.create("a", 2);
        expect(!context.scale("a", 1), "a merge below the minimum is refused");
        same(2, context.activeSegments("a").size(), "segments");
    }

    private static void holes(Context context) throws Exception {
        context.create("a", 2);
        expect(!context.scale("a", List.of(0L), 0.0, 0.4, 2), "a part of the key space would have no segment");
        expect(!context.scale("a", List.of(7L), 0.0, 0.5, 2), "there is no such segment");
        same(2, context.activeSegments("a").size(), "segments");
    }

    private static void grows(Context context) throws Exception {
        context.create("a", 1);
        EventStreamWriter<String> writer = context.writer("a");
        writer.writeEvent("key", "one").get();
        expect(context.streams.updateStream(context.scope, "a", elastic(3)), "the update is done");
        same(3, context.activeSegments("a").size(), "segments");
        writer.writeEvent("key", "two").get();
        List<String> found = context.everything("g", Context.reads(context.stream("a")).build(), 2);
        same(List.of("one", "two"), found, "events");
    }
}
