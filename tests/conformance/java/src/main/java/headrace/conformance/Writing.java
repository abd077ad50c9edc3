package headrace.conformance;

import static headrace.conformance.Check.expect;
import static headrace.conformance.Check.fails;
import static headrace.conformance.Check.same;

import io.pravega.client.stream.EventPointer;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.Stream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Writers of events. */
final class Writing {
    private static final String AREA = "writing events";

    private Writing() {
    }

    static void add(List<Check> checks) {
        checks.add(new Check(AREA, "order per routing key over several segments", Writing::keys));
        checks.add(new Check(AREA, "events without a routing key", Writing::noKeys));
        checks.add(new Check(AREA, "a batch with one routing key", Writing::batches));
        checks.add(new Check(AREA, "an event of 1 byte and one of 8 MiB less its header", Writing::sizes));
        for (int mebibytes : new int[] {9, 20, 30}) {
            checks.add(new Check(AREA, "an event of " + mebibytes + " MiB", context -> large(context, mebibytes)));
        }
        checks.add(new Check(AREA, "large and small events keep their order", Writing::mixed));
        checks.add(new Check(AREA, "many writers of one stream", Writing::manyWriters));
        checks.add(new Check(AREA, "writers that share connections", Writing::pooled));
        checks.add(new Check(AREA, "a writer of a sealed stream fails", Writing::sealed));
        checks.add(new Check(AREA, "fetch an event by its pointer", Writing::pointers));
        checks.add(new Check(AREA, "keys of many scripts", Writing::scripts));
    }

    private static void keys(Context context) {
        Stream stream = context.create("a", 4);
        EventStreamWriter<String> writer = context.writer("a");
        for (int number = 0; number < 50; number++) {
            for (int key = 0; key < 20; key++) {
                writer.writeEvent("key-" + key, key + ":" + number);
            }
        }
        writer.flush();
        Map<String, List<String>> found = new HashMap<>();
        for (String event : context.everything("g", Context.reads(stream).build(), 1_000)) {
            String[] parts = event.split(":");
            found.computeIfAbsent(parts[0], key -> new ArrayList<>()).add(parts[1]);
        }
        List<String> expected = new ArrayList<>();
        for (int number = 0; number < 50; number++) {
            expected.add(String.valueOf(number));
        }
        same(20, found.size(), "keys");
        found.forEach((key, numbers) -> same(expected, numbers, "events of key " + key));
    }

    private static void noKeys(Context context) throws Exception {
        Stream stream = context.create("a", 3);
        EventStreamWriter<String> writer = context.writer("a");
        List<CompletableFuture<Void>> stored = new ArrayList<>();
        for (int number = 0; number < 100; number++) {
            stored.add(writer.writeEvent("e" + number));
        }
        for (CompletableFuture<Void> one : stored) {
            one.get(60, TimeUnit.SECONDS);
        }
        same(100, new HashSet<>(context.everything("g", Context.reads(stream).build(), 100)).size(), "different events");
    }

    private static void batches(Context context) throws Exception {
        Stream stream = context.create("a", 2);
        EventStreamWriter<String> writer = context.writer("a");
        writer.writeEvents("key", List.of("a", "b", "c")).get(60, TimeUnit.SECONDS);
        writer.writeEvents("key", List.of("d", "e")).get(60, TimeUnit.SECONDS);
        same(List.of("a", "b", "c", "d", "e"), context.everything("g", Context.reads(stream).build(), 5), "events");
        String half = "x".repeat(5 << 20);
        writer.writeEvents("key", List.of(half, half)).get(60, TimeUnit.SECONDS);
        fails(RuntimeException.class, () -> writer.writeEvents("key", List.of("x".repeat(9 << 20), "y")).get(60, TimeUnit.SECONDS),
                "a batch with an event above the limit");
    }

    private static void sizes(Context context) throws Exception {
        context.create("a", 1);
        byte[] largest = random((8 << 20) - 8);
        try (EventStreamWriter<byte[]> writer = bytesWriter(context, false)) {
            writer.writeEvent("key", new byte[] {7}).get(60, TimeUnit.SECONDS);
            writer.writeEvent("key", largest).get(60, TimeUnit.SECONDS);
        }
        try (EventStreamReader<byte[]> reader = bytesReader(context)) {
            expect(Arrays.equals(new byte[] {7}, nextBytes(reader)), "the small event is as it was written");
            expect(Arrays.equals(largest, nextBytes(reader)), "the largest event is as it was written");
        }
    }

    private static void large(Context context, int mebibytes) throws Exception {
        context.create("a", 1);
        byte[] event = random(mebibytes << 20);
        try (EventStreamWriter<byte[]> writer = bytesWriter(context, true)) {
            writer.writeEvent("key", event).get(100, TimeUnit.SECONDS);
        }
        try (EventStreamReader<byte[]> reader = bytesReader(context)) {
            expect(Arrays.equals(event, nextBytes(reader)), "the event is as it was written");
        }
    }

    private static void mixed(Context context) throws Exception {
        context.create("a", 2);
        List<byte[]> events = List.of(random(10), random(10 << 20), random(20), random(17 << 20), random(30));
        try (EventStreamWriter<byte[]> writer = bytesWriter(context, true)) {
            List<CompletableFuture<Void>> stored = new ArrayList<>();
            for (byte[] event : events) {
                stored.add(writer.writeEvent("key", event));
            }
            for (CompletableFuture<Void> one : stored) {
                one.get(100, TimeUnit.SECONDS);
            }
        }
        try (EventStreamReader<byte[]> reader = bytesReader(context)) {
            for (byte[] event : events) {
                expect(Arrays.equals(event, nextBytes(reader)), "an event of " + event.length + " bytes is the next one");
            }
        }
    }

    private static void manyWriters(Context context) {
        Stream stream = context.create("a", 2);
        List<EventStreamWriter<String>> writers = new ArrayList<>();
        for (int number = 0; number < 20; number++) {
            writers.add(context.writer("a"));
        }
        for (int round = 0; round < 10; round++) {
            for (int number = 0; number < writers.size(); number++) {
                writers.get(number).writeEvent("key-" + number, number + ":" + round);
            }
        }
        writers.forEach(EventStreamWriter::flush);
        same(200, new HashSet<>(context.everything("g", Context.reads(stream).build(), 200)).size(), "different events");
    }

    private static void pooled(Context context) {
        Stream stream = context.create("a", 4);
        EventWriterConfig pooling = EventWriterConfig.builder().enableConnectionPooling(true).build();
        try (EventStreamWriter<String> writer = context.clients.createEventWriter("a", Context.TEXT, pooling);
                EventStreamWriter<String> other = context.clients.createEventWriter("a", Context.TEXT, pooling)) {
            for (int number = 0; number < 200; number++) {
                writer.writeEvent("key-" + number, "w" + number);
                other.writeEvent("key-" + number, "o" + number);
            }
            writer.flush();
            other.flush();
        }
        same(400, new HashSet<>(context.everything("g", Context.reads(stream).build(), 400)).size(), "different events");
    }

    private static void sealed(Context context) throws Exception {
        context.create("a", 1);
        EventStreamWriter<String> writer = context.writer("a");
        writer.writeEvent("key", "one").get(60, TimeUnit.SECONDS);
        context.streams.sealStream(context.scope, "a");
        fails(Exception.class, () -> {
            writer.writeEvent("key", "two").get(60, TimeUnit.SECONDS);
            writer.writeEvent("key", "three").get(60, TimeUnit.SECONDS);
        }, "an event after the end of the stream");
    }

    private static void pointers(Context context) throws Exception {
        Stream stream = context.create("a", 1);
        context.write("a", "key", "e", 3);
        context.group("g", Context.reads(stream).build());
        EventStreamReader<String> reader = context.reader("r", "g");
        EventRead<String> first = Context.next(reader, 60_000);
        Context.take(reader, 2);
        same("e:0", reader.fetchEvent(first.getEventPointer()), "event of the pointer");
        EventPointer restored = EventPointer.fromBytes(first.getEventPointer().toBytes());
        same("e:0", context.streams.fetchEvent(restored, Context.TEXT).get(30, TimeUnit.SECONDS), "event by the manager");
    }

    private static void scripts(Context context) {
        Stream stream = context.create("a", 4);
        EventStreamWriter<String> writer = context.writer("a");
        for (int number = 0; number < 5; number++) {
            for (String key : List.of("k", "\u00e9", "\u65e5\u672c", "\ud83d\ude00", "")) {
                writer.writeEvent(key, key + ":" + number);
            }
        }
        writer.flush();
        same(25, new HashSet<>(context.everything("g", Context.reads(stream).build(), 25)).size(), "different events");
    }

    private static byte[] random(int length) {
        byte[] bytes = new byte[length];
        new Random(length).nextBytes(bytes);
        return bytes;
    }

    private static EventStreamWriter<byte[]> bytesWriter(Context context, boolean large) {
        EventWriterConfig config = EventWriterConfig.builder().enableLargeEvents(large).build();
        return context.clients.createEventWriter("a", Context.BYTES, config);
    }

    private static EventStreamReader<byte[]> bytesReader(Context context) {
        context.group("g", Context.reads(context.stream("a")).build());
        return context.clients.createReader("r", "g", Context.BYTES, ReaderConfig.builder().build());
    }

    private static byte[] nextBytes(EventStreamReader<byte[]> reader) {
        for (int attempt = 0; attempt < 60; attempt++) {
            byte[] event = reader.readNextEvent(1_000).getEvent();
            if (event != null) {
                return event;
            }
        }
        throw new AssertionError("no event came");
    }
}
