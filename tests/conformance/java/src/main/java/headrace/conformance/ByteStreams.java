package headrace.conformance;

import static headrace.conformance.Check.expect;
import static headrace.conformance.Check.fails;
import static headrace.conformance.Check.same;

import io.pravega.client.ByteStreamClientFactory;
import io.pravega.client.byteStream.ByteStreamReader;
import io.pravega.client.byteStream.ByteStreamWriter;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;

/** Byte streams. */
final class ByteStreams {
    private static final String AREA = "byte streams";

    private ByteStreams() {
    }

    static void add(List<Check> checks) {
        checks.add(new Check(AREA, "write and read bytes", ByteStreams::write));
        checks.add(new Check(AREA, "write and read 20 MiB", ByteStreams::large));
        checks.add(new Check(AREA, "seek, skip, head and tail", ByteStreams::seek));
        checks.add(new Check(AREA, "truncate", ByteStreams::truncate));
        checks.add(new Check(AREA, "a reader waits for bytes and meets the end of a sealed stream", ByteStreams::end));
        checks.add(new Check(AREA, "a second writer continues at the tail", ByteStreams::continues));
    }

    private static void write(Context context) throws Exception {
        context.create("a", 1);
        ByteStreamClientFactory factory = context.byteStreams();
        try (ByteStreamWriter writer = factory.createByteStreamWriter("a")) {
            writer.write(new byte[] {1, 2, 3});
            writer.write(4);
            writer.write(ByteBuffer.wrap(new byte[] {5, 6}));
            writer.flush();
            same(6L, writer.fetchTailOffset(), "tail");
        }
        ByteStreamReader reader = context.opens(factory.createByteStreamReader("a"));
        byte[] found = new byte[6];
        readFully(reader, found);
        same("[1, 2, 3, 4, 5, 6]", Arrays.toString(found), "bytes");
    }

    private static void large(Context context) throws Exception {
        context.create("a", 1);
        ByteStreamClientFactory factory = context.byteStreams();
        byte[] bytes = new byte[20 << 20];
        new Random(1).nextBytes(bytes);
        try (ByteStreamWriter writer = factory.createByteStreamWriter("a")) {
            writer.write(bytes);
            writer.flushAsync().get(100, TimeUnit.SECONDS);
        }
        ByteStreamReader reader = context.opens(factory.createByteStreamReader("a"));
        byte[] found = new byte[bytes.length];
        readFully(reader, found);
        expect(Arrays.equals(bytes, found), "the bytes are as they were written");
    }

    private static void seek(Context context) throws Exception {
        context.create("a", 1);
        ByteStreamClientFactory factory = context.byteStreams();
        try (ByteStreamWriter writer = factory.createByteStreamWriter("a")) {
            for (int number = 0; number < 100; number++) {
                writer.write(number);
            }
            writer.flush();
        }
        ByteStreamReader reader = context.opens(factory.createByteStreamReader("a"));
        same(0L, reader.fetchHeadOffset(), "head");
        same(100L, reader.fetchTailOffset(), "tail");
        reader.seekToOffset(42);
        same(42, reader.read(), "byte at 42");
        reader.skip(7);
        same(50, reader.read(), "byte after skipping");
        same(51L, reader.getOffset(), "offset");
        reader.seekToOffset(0);
        same(0, reader.read(), "byte at 0");
    }

    private static void truncate(Context context) throws Exception {
        context.create("a", 1);
        ByteStreamClientFactory factory = context.byteStreams();
        try (ByteStreamWriter writer = factory.createByteStreamWriter("a")) {
            writer.write(new byte[100]);
            writer.flush();
            writer.truncateDataBefore(60);
            same(60L, writer.fetchHeadOffset(), "head");
        }
        ByteStreamReader reader = context.opens(factory.createByteStreamReader("a"));
        same(60L, reader.fetchHeadOffset(), "head");
        reader.seekToOffset(10);
        fails(IOException.class, reader::read, "a truncated byte");
    }

    private static void end(Context context) throws Exception {
        context.create("a", 1);
        ByteStreamClientFactory factory = context.byteStreams();
        ByteStreamReader reader = context.opens(factory.createByteStreamReader("a"));
        try (ByteStreamWriter writer = factory.createByteStreamWriter("a")) {
            context.executor.schedule(() -> {
                writer.write(new byte[] {9});
                writer.closeAndSeal();
                return null;
            }, 2, TimeUnit.SECONDS);
            same(9, reader.read(), "the byte that came later");
            same(-1, reader.read(), "the end");
        }
    }

    private static void continues(Context context) throws Exception {
        context.create("a", 1);
        ByteStreamClientFactory factory = context.byteStreams();
        for (int round = 0; round < 3; round++) {
            try (ByteStreamWriter writer = factory.createByteStreamWriter("a")) {
                writer.write(new byte[] {(byte) round});
                writer.flush();
            }
        }
        byte[] found = new byte[3];
        readFully(context.opens(factory.createByteStreamReader("a")), found);
        same("[0, 1, 2]", Arrays.toString(found), "bytes");
    }

    private static void readFully(ByteStreamReader reader, byte[] into) throws IOException {
        int read = 0;
        while (read < into.length) {
            int count = reader.read(into, read, into.length - read);
            if (count < 0) {
                throw new AssertionError("the stream ends after " + read + " bytes");
            }
            read += count;
        }
    }
}
