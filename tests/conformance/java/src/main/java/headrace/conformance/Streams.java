package headrace.conformance;

import static headrace.conformance.Check.expect;
import static headrace.conformance.Check.fails;
import static headrace.conformance.Check.same;

import io.pravega.client.stream.RetentionPolicy;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import java.time.Duration;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/** Scopes, streams, their configuration, tags, and their end. */
final class Streams {
    private static final String AREA = "scopes and streams";

    private Streams() {
    }

    static void add(List<Check> checks) {
        checks.add(new Check(AREA, "create, list, check and delete a scope", Streams::scopes));
        checks.add(new Check(AREA, "a scope with streams is deleted only recursively", Streams::recursive));
        checks.add(new Check(AREA, "create and list streams; a second creation changes nothing", Streams::create));
        checks.add(new Check(AREA, "list more streams than one page has", Streams::pages));
        checks.add(new Check(AREA, "tags: set, list by tag, change", Streams::tags));
        checks.add(new Check(AREA, "the configuration comes back, and an update is in force", Streams::configuration));
        checks.add(new Check(AREA, "seal and delete; an unsealed stream is not deleted", Streams::end));
        checks.add(new Check(AREA, "truncate at the tail", Streams::truncate));
        checks.add(new Check(AREA, "a deleted stream can be created again and is empty", Streams::again));
        checks.add(new Check(AREA, "names that are not allowed are refused", Streams::names));
    }

    private static void scopes(Context context) {
        String scope = context.scope + "-other";
        expect(context.streams.createScope(scope), "the scope is new");
        expect(!context.streams.createScope(scope), "the scope exists");
        expect(context.streams.checkScopeExists(scope), "the scope is there");
        expect(listed(context.streams.listScopes()).contains(scope), "the scope is listed");
        expect(context.streams.deleteScope(scope), "the scope is deleted");
        expect(!context.streams.deleteScope(scope), "the scope is gone");
        expect(!context.streams.checkScopeExists(scope), "the scope does not exist");
    }

    private static void recursive(Context context) throws Exception {
        context.create("a", 2);
        context.create("b", 1);
        context.group("g", Context.reads(context.stream("a")).build());
        fails(RuntimeException.class, () -> context.streams.deleteScope(context.scope), "a scope that is not empty");
        expect(context.streams.deleteScopeRecursive(context.scope), "the scope is deleted with its streams");
        expect(!context.streams.checkScopeExists(context.scope), "the scope is gone");
    }

    private static void create(Context context) {
        context.create("a", 3);
        StreamConfiguration one = StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(1)).build();
        expect(!context.streams.createStream(context.scope, "a", one), "the stream exists");
        expect(context.streams.checkStreamExists(context.scope, "a"), "the stream is there");
        expect(!context.streams.checkStreamExists(context.scope, "b"), "there is no other");
        same(Set.of(context.stream("a")), listed(context.streams.listStreams(context.scope)), "streams");
    }

    private static void pages(Context context) {
        Set<Stream> expected = new HashSet<>();
        for (int number = 0; number < 40; number++) {
            expected.add(context.create("stream-" + number, 1));
        }
        same(expected, listed(context.streams.listStreams(context.scope)), "streams");
    }

    private static void tags(Context context) {
        StreamConfiguration.StreamConfigurationBuilder configuration =
                StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(1));
        context.create("a", configuration.tag("eu").tag("orders").build());
        context.create("b", StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(1)).tag("eu").build());
        same(Set.of("eu", "orders"), Set.copyOf(context.streams.getStreamTags(context.scope, "a")), "tags");
        same(Set.of(context.stream("a")), listed(context.streams.listStreams(context.scope, "orders")), "by tag");
        same(2, listed(context.streams.listStreams(context.scope, "eu")).size(), "streams with the tag eu");
        StreamConfiguration changed = StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(1)).tag("us").build();
        expect(context.streams.updateStream(context.scope, "a", changed), "the update is done");
        same(Set.of(), listed(context.streams.listStreams(context.scope, "orders")), "by the tag that is gone");
        same(Set.of(context.stream("a")), listed(context.streams.listStreams(context.scope, "us")), "by the new tag");
    }

    private static void configuration(Context context) throws Exception {
        StreamConfiguration created = StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.byEventRate(100, 2, 2))
                .retentionPolicy(RetentionPolicy.byTime(Duration.ofDays(1), Duration.ofDays(2)))
                .tag("t").timestampAggregationTimeout(5_000).rolloverSizeBytes(1 << 20).build();
        // The manager of 0.13 sends neither the time-out nor the roll-over size; the controller's client does.
        expect(context.controller().createStream(context.scope, "a", created).get(60, TimeUnit.SECONDS), "the stream is new");
        same(created, context.streams.fetchStreamInfo(context.scope, "a").get(30, TimeUnit.SECONDS).getStreamConfiguration(),
                "configuration");
        StreamConfiguration updated = StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(4))
                .retentionPolicy(RetentionPolicy.bySizeBytes(1 << 30)).build();
        expect(context.streams.updateStream(context.scope, "a", updated), "the update is done");
        same(updated, context.streams.fetchStreamInfo(context.scope, "a").get(30, TimeUnit.SECONDS).getStreamConfiguration(),
                "configuration after the update");
        same(4, context.activeSegments("a").size(), "segments after the minimum was raised");
    }

    private static void end(Context context) throws Exception {
        context.create("a", 2);
        fails(RuntimeException.class, () -> context.streams.deleteStream(context.scope, "a"), "an unsealed stream");
        expect(context.streams.sealStream(context.scope, "a"), "the stream is sealed");
        expect(context.streams.fetchStreamInfo(context.scope, "a").get(30, TimeUnit.SECONDS).isSealed(), "it is shown as sealed");
        fails(RuntimeException.class, () -> context.streams.updateStream(context.scope, "a",
                StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(3)).build()), "an update of a sealed stream");
        expect(context.streams.deleteStream(context.scope, "a"), "the stream is deleted");
        expect(!context.streams.deleteStream(context.scope, "a"), "the stream is gone");
    }

    private static void truncate(Context context) throws Exception {
        Stream stream = context.create("a", 2);
        context.write("a", "key", "before", 10);
        expect(context.streams.truncateStream(context.scope, "a", context.tail("a")), "the stream is truncated");
        same(context.tail("a"), context.head("a"), "head");
        context.write("a", "key", "after", 3);
        same(List.of("after:0", "after:1", "after:2"), context.everything("g", Context.reads(stream).build(), 3), "events");
    }

    private static void again(Context context) {
        Stream stream = context.create("a", 1);
        context.write("a", "key", "old", 3);
        context.streams.sealStream(context.scope, "a");
        context.streams.deleteStream(context.scope, "a");
        context.create("a", 1);
        context.write("a", "key", "new", 2);
        same(List.of("new:0", "new:1"), context.everything("g", Context.reads(stream).build(), 2), "events");
    }

    private static void names(Context context) throws Exception {
        fails(IllegalArgumentException.class, () -> context.streams.createScope("a/b"), "a scope with a slash");
        fails(IllegalArgumentException.class, () -> context.create("_hidden", 1), "a stream that begins with _");
        fails(RuntimeException.class, () -> context.streams.createStream("no-such-scope", "a",
                StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(1)).build()), "a scope that is not there");
    }

    private static <T> Set<T> listed(Iterator<T> items) {
        Set<T> found = new HashSet<>();
        items.forEachRemaining(found::add);
        return found;
    }
}
