package headrace.conformance;

import static headrace.conformance.Check.expect;
import static headrace.conformance.Check.same;

import io.pravega.client.segment.impl.Segment;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.TimeWindow;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.impl.WriterPosition;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;

/** Times that writers note, and windows that readers see. */
final class Watermarks {
    private static final String AREA = "watermarks";

    /** Far more than the 10 s in which the controller computes watermarks. */
    private static final long WINDOW_MS = 180_000;

    private Watermarks() {
    }

    static void add(List<Check> checks) {
        checks.add(new Check(AREA, "a reader sees a window from noted times", Watermarks::window));
        checks.add(new Check(AREA, "times of transactions", Watermarks::transactions));
        checks.add(new Check(AREA, "a time before the last one is refused", Watermarks::backwards));
        checks.add(new Check(AREA, "without notes there is no window", Watermarks::none));
    }

    /** Writes and reads all that is there, until the reader has a window. */
    private static TimeWindow await(Context context, Stream stream, EventStreamReader<String> reader, Runnable write)
            throws Exception {
        long end = System.currentTimeMillis() + WINDOW_MS;
        TimeWindow window = reader.getCurrentTimeWindow(stream);
        while (System.currentTimeMillis() < end && window.getLowerTimeBound() == null) {
            write.run();
            while (Context.next(reader, 500) != null) {
                // The window moves only when the reader passes the place of a watermark.
            }
            window = reader.getCurrentTimeWindow(stream);
        }
        return window;
    }

    private static void window(Context context) throws Exception {
        Stream stream = context.create("a", 2);
        EventStreamWriter<String> writer = context.writer("a");
        context.group("g", Context.reads(stream).build());
        EventStreamReader<String> reader = context.reader("r", "g");
        long[] time = {1_000};
        TimeWindow window = await(context, stream, reader, () -> {
            for (int key = 0; key < 4; key++) {
                writer.writeEvent("key-" + key, "e" + time[0]);
            }
            writer.flush();
            writer.noteTime(time[0]);
            time[0] += 1_000;
        });
        expect(window.getLowerTimeBound() != null, "the window has a lower bound");
        expect(window.getLowerTimeBound() >= 1_000 && window.getLowerTimeBound() < time[0], "the lower bound was noted: " + window);
        expect(window.getUpperTimeBound() == null || window.getUpperTimeBound() >= window.getLowerTimeBound(),
                "the upper bound is not below the lower one: " + window);
    }

    private static void transactions(Context context) throws Exception {
        Stream stream = context.create("a", 1);
        TransactionalEventStreamWriter<String> writer = context.transactional("a");
        context.group("g", Context.reads(stream).build());
        EventStreamReader<String> reader = context.reader("r", "g");
        long[] time = {1_000};
        TimeWindow window = await(context, stream, reader, () -> {
            Transaction<String> transaction = writer.beginTxn();
            try {
                transaction.writeEvent("key", "e" + time[0]);
                transaction.commit(time[0]);
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
            time[0] += 1_000;
        });
        expect(window.getLowerTimeBound() != null, "the window has a lower bound");
    }

    private static void backwards(Context context) throws Exception {
        Stream stream = context.create("a", 1);
        EventStreamWriter<String> writer = context.writer("a");
        writer.writeEvent("key", "e").get();
        writer.noteTime(5_000);
        writer.noteTime(4_000); // The client logs the refusal, and does not tell the application.
        note(context, stream, 5_000);
        note(context, stream, 5_000);
        try {
            note(context, stream, 4_000);
        } catch (ExecutionException error) {
            same("failed to note time because: INVALID_TIME", error.getCause().getMessage(), "reason of the refusal");
            return;
        }
        throw new AssertionError("a time before the last one was accepted");
    }

    /** Notes a time as a writer of the client does, but waits for the controller's answer. */
    private static void note(Context context, Stream stream, long time) throws Exception {
        WriterPosition position = new WriterPosition(Map.of(new Segment(context.scope, stream.getStreamName(), 0), 13L));
        context.controller().noteTimestampFromWriter("w", stream, time, position).get(30, TimeUnit.SECONDS);
    }

    private static void none(Context context) {
        Stream stream = context.create("a", 1);
        context.write("a", "key", "e", 3);
        context.group("g", Context.reads(stream).build());
        EventStreamReader<String> reader = context.reader("r", "g");
        Context.take(reader, 3);
        TimeWindow window = reader.getCurrentTimeWindow(stream);
        expect(window.getLowerTimeBound() == null && window.getUpperTimeBound() == null, "the window has no bounds: " + window);
    }
}
