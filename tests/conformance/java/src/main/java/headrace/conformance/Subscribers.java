package headrace.conformance;

import static headrace.conformance.Check.expect;
import static headrace.conformance.Check.fails;
import static headrace.conformance.Check.same;

import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig.StreamDataRetention;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamCut;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** Reader groups whose position retention waits for. */
final class Subscribers {
    private static final String AREA = "consumption-based retention";

    private Subscribers() {
    }

    static void add(List<Check> checks) {
        checks.add(new Check(AREA, "a group publishes its position on request", Subscribers::manual));
        checks.add(new Check(AREA, "a group publishes its position at checkpoints", Subscribers::automatic));
        checks.add(new Check(AREA, "a group without retention does not subscribe", Subscribers::none));
        checks.add(new Check(AREA, "a subscription ends with its group", Subscribers::deleted));
    }

    private static List<String> listed(Context context) throws Exception {
        return context.controller().listSubscribers(context.scope, "a").get(30, TimeUnit.SECONDS);
    }

    private static void manual(Context context) throws Exception {
        Stream stream = context.create("a", 2);
        context.write("a", "key", "e", 5);
        ReaderGroup group = context.group("g", Context.reads(stream).disableAutomaticCheckpoints()
                .retentionType(StreamDataRetention.MANUAL_RELEASE_AT_USER_STREAMCUT).build());
        same(List.of(context.scope + "/g"), listed(context), "subscribers");
        EventStreamReader<String> reader = context.reader("r", "g");
        Context.take(reader, 5);
        Map<Stream, StreamCut> cuts = Groups.cuts(context, group, reader);
        group.updateRetentionStreamCut(cuts);
        group.updateRetentionStreamCut(cuts);
        fails(RuntimeException.class, () -> group.updateRetentionStreamCut(Map.of(stream, context.head("a"))),
                "a position before the one that was published");
    }

    private static void automatic(Context context) throws Exception {
        Stream stream = context.create("a", 1);
        context.write("a", "key", "e", 10);
        ReaderGroup group = context.group("g", Context.reads(stream).automaticCheckpointIntervalMillis(1_500)
                .retentionType(StreamDataRetention.AUTOMATIC_RELEASE_AT_LAST_CHECKPOINT).build());
        EventStreamReader<String> reader = context.reader("r", "g");
        Context.take(reader, 10);
        for (int round = 0; round < 8; round++) {
            reader.readNextEvent(1_000);
        }
        same(List.of(context.scope + "/g"), listed(context), "subscribers");
        fails(UnsupportedOperationException.class, () -> group.updateRetentionStreamCut(Map.of(stream, context.tail("a"))),
                "a position on request");
    }

    private static void none(Context context) throws Exception {
        Stream stream = context.create("a", 1);
        ReaderGroup group = context.group("g", Context.reads(stream).build());
        same(List.of(), listed(context), "subscribers");
        group.resetReaderGroup(Context.reads(stream)
                .retentionType(StreamDataRetention.MANUAL_RELEASE_AT_USER_STREAMCUT).build());
        same(List.of(context.scope + "/g"), listed(context), "subscribers after the change");
        group.resetReaderGroup(Context.reads(stream).build());
        same(List.of(), listed(context), "subscribers after the change back");
    }

    private static void deleted(Context context) throws Exception {
        Stream stream = context.create("a", 1);
        context.group("g", Context.reads(stream).retentionType(StreamDataRetention.MANUAL_RELEASE_AT_USER_STREAMCUT).build());
        context.groups.deleteReaderGroup("g");
        same(List.of(), listed(context), "subscribers");
        expect(context.streams.sealStream(context.scope, "a"), "the stream is sealed");
        expect(context.streams.deleteStream(context.scope, "a"), "the stream is deleted");
    }
}
