package headrace.conformance;

import com.sun.management.OperatingSystemMXBean;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroupConfig;
import java.lang.management.ManagementFactory;
import java.net.URI;
import java.util.Random;

/**
 * Writes events as fast as they are taken, and reads them: `Speed CONTROLLER_URI EVENT_BYTES EVENTS ROUNDS`.
 *
 * Each round has a stream of two segments. It prints a line for the writing and one for the reading: what was done, MB/s,
 * and milliseconds of this process's processors for each MB. `benchmarks.java_client` reads these lines.
 */
public final class Speed {
    private static final int KEYS = 16;
    private static final OperatingSystemMXBean SYSTEM = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private Speed() {
    }

    private interface Work {
        void run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        byte[] event = new byte[Integer.parseInt(arguments[1])];
        new Random(1).nextBytes(event);
        int count = Integer.parseInt(arguments[2]);
        try (Context context = new Context(URI.create(arguments[0]), "speed-" + System.nanoTime())) {
            for (int round = 0; round < Integer.parseInt(arguments[3]); round++) {
                String stream = "round-" + round;
                context.create(stream, 2);
                try (EventStreamWriter<byte[]> writer = context.clients.createEventWriter(
                        stream, Context.BYTES, EventWriterConfig.builder().build())) {
                    measure("write", event.length, count, () -> {
                        for (int number = 0; number < count; number++) {
                            writer.writeEvent("key-" + number % KEYS, event);
                        }
                        writer.flush();
                    });
                }
                String group = "group-" + round;
                context.group(group, ReaderGroupConfig.builder().stream(context.stream(stream)).build());
                try (EventStreamReader<byte[]> reader = context.clients.createReader(
                        "reader", group, Context.BYTES, ReaderConfig.builder().build())) {
                    measure("read", event.length, count, () -> {
                        for (int read = 0; read < count;) {
                            read += reader.readNextEvent(10_000).getEvent() == null ? 0 : 1;
                        }
                    });
                }
            }
        }
        System.exit(0);
    }

    private static void measure(String name, int bytes, int count, Work work) throws Exception {
        long began = System.nanoTime();
        long used = SYSTEM.getProcessCpuTime();
        work.run();
        double megabytes = (double) bytes * count / 1e6;
        double seconds = (System.nanoTime() - began) / 1e9;
        System.out.println(name + " " + megabytes / seconds + " " + (SYSTEM.getProcessCpuTime() - used) / 1e6 / megabytes);
    }
}
