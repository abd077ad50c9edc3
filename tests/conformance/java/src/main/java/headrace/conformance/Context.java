package headrace.conformance;

import io.pravega.client.BatchClientFactory;
import io.pravega.client.ByteStreamClientFactory;
import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.KeyValueTableFactory;
import io.pravega.client.SynchronizerClientFactory;
import io.pravega.client.admin.KeyValueTableManager;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.control.impl.Controller;
import io.pravega.client.control.impl.ControllerImpl;
import io.pravega.client.control.impl.ControllerImplConfig;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.impl.ByteArraySerializer;
import io.pravega.client.stream.impl.StreamImpl;
import io.pravega.client.stream.impl.UTF8StringSerializer;
import java.net.URI;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/** What a check works with: a scope of its own and clients, all of which are closed after it. */
final class Context implements AutoCloseable {
    static final UTF8StringSerializer TEXT = new UTF8StringSerializer();
    static final ByteArraySerializer BYTES = new ByteArraySerializer();
    private static final long READ_MS = 60_000;

    final String scope;
    final ClientConfig config;
    final StreamManager streams;
    final EventStreamClientFactory clients;
    final ReaderGroupManager groups;
    final ScheduledExecutorService executor = Executors.newScheduledThreadPool(4);
    private final Deque<AutoCloseable> opened = new ArrayDeque<>();
    private Controller controller;

    Context(URI uri, String scope) {
        this.scope = scope;
        this.config = config(uri);
        this.streams = opens(StreamManager.create(config));
        streams.createScope(scope);
        this.clients = opens(EventStreamClientFactory.withScope(scope, config));
        this.groups = opens(ReaderGroupManager.withScope(scope, config));
    }

    /** The client reads the credentials from the environment by itself, but not the authority's certificate. */
    private static ClientConfig config(URI uri) {
        String trustStore = System.getenv("HEADRACE_TRUST_STORE");
        ClientConfig.ClientConfigBuilder builder = ClientConfig.builder().controllerURI(uri);
        return (trustStore == null ? builder : builder.trustStore(trustStore).validateHostName(true)).build();
    }

    <T extends AutoCloseable> T opens(T resource) {
        opened.push(resource);
        return resource;
    }

    // Streams

    Stream stream(String name) {
        return Stream.of(scope, name);
    }

    Stream create(String name, int segments) {
        return create(name, StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(segments)).build());
    }

    Stream create(String name, StreamConfiguration configuration) {
        Check.expect(streams.createStream(scope, name, configuration), "stream " + name + " is new");
        return stream(name);
    }

    StreamCut tail(String name) throws Exception {
        return streams.fetchStreamInfo(scope, name).get(30, TimeUnit.SECONDS).getTailStreamCut();
    }

    StreamCut head(String name) throws Exception {
        return streams.fetchStreamInfo(scope, name).get(30, TimeUnit.SECONDS).getHeadStreamCut();
    }

    /** The controller as the client itself uses it. The public classes of the client cannot scale a stream. */
    Controller controller() {
        if (controller == null) {
            controller = opens(new ControllerImpl(ControllerImplConfig.builder().clientConfig(config).build(), executor));
        }
        return controller;
    }

    List<Long> activeSegments(String name) throws Exception {
        return controller().getCurrentSegments(scope, name).get(30, TimeUnit.SECONDS).getSegments().stream()
                .map(one -> one.getSegmentId()).sorted().toList();
    }

    /** Replaces all active segments by as many equal ones; returns whether the controller accepted it. */
    boolean scale(String name, int segments) throws Exception {
        return scale(name, activeSegments(name), 0.0, 1.0, segments);
    }

    boolean scale(String name, List<Long> sealed, double low, double high, int parts) throws Exception {
        Map<Double, Double> ranges = new TreeMap<>();
        for (int part = 0; part < parts; part++) {
            double start = low + (high - low) * part / parts;
            ranges.put(start, part == parts - 1 ? high : low + (high - low) * (part + 1) / parts);
        }
        Stream stream = new StreamImpl(scope, name);
        return controller().scaleStream(stream, sealed, ranges, executor).getFuture().get(60, TimeUnit.SECONDS);
    }

    // Events

    EventStreamWriter<String> writer(String name) {
        return opens(clients.createEventWriter(name, TEXT, EventWriterConfig.builder().build()));
    }

    TransactionalEventStreamWriter<String> transactional(String name) {
        return opens(clients.createTransactionalEventWriter(name, TEXT, EventWriterConfig.builder().build()));
    }

    /** Writes `count` events `prefix:0`, ... with this routing key and waits until they are stored. */
    void write(String name, String key, String prefix, int count) {
        try (EventStreamWriter<String> writer = clients.createEventWriter(name, TEXT, EventWriterConfig.builder().build())) {
            for (int number = 0; number < count; number++) {
                writer.writeEvent(key, prefix + ":" + number);
            }
            writer.flush();
        }
    }

    static ReaderGroupConfig.ReaderGroupConfigBuilder reads(Stream... streams) {
        ReaderGroupConfig.ReaderGroupConfigBuilder builder = ReaderGroupConfig.builder().groupRefreshTimeMillis(500);
        for (Stream stream : streams) {
            builder.stream(stream);
        }
        return builder;
    }

    ReaderGroup group(String name, ReaderGroupConfig configuration) {
        groups.createReaderGroup(name, configuration);
        return opens(groups.getReaderGroup(name));
    }

    EventStreamReader<String> reader(String id, String group) {
        return opens(clients.createReader(id, group, TEXT, ReaderConfig.builder().build()));
    }

    /** The next event. Checkpoints are skipped; null if there is none for a while. */
    static EventRead<String> next(EventStreamReader<String> reader, long timeoutMs) {
        long end = System.currentTimeMillis() + timeoutMs;
        do {
            EventRead<String> read = reader.readNextEvent(1_000);
            if (read.getEvent() != null) {
                return read;
            }
            if (read.isReadCompleted()) {
                return null;
            }
        } while (System.currentTimeMillis() < end);
        return null;
    }

    /** The next `count` events. */
    static List<String> take(EventStreamReader<String> reader, int count) {
        List<String> found = new ArrayList<>();
        while (found.size() < count) {
            EventRead<String> read = next(reader, READ_MS);
            if (read == null) {
                throw new AssertionError("only " + found.size() + " of " + count + " events were read: " + found);
            }
            found.add(read.getEvent());
        }
        return found;
    }

    /** All events of a stream, or those between two cuts, by a group that is made for it. */
    List<String> everything(String group, ReaderGroupConfig configuration, int expected) {
        group(group, configuration);
        try (EventStreamReader<String> reader = clients.createReader("all", group, TEXT, ReaderConfig.builder().build())) {
            List<String> found = new ArrayList<>(take(reader, expected));
            EventRead<String> more = next(reader, 3_000);
            Check.expect(more == null, "there are no more than " + expected + " events");
            return found;
        }
    }

    // Other clients

    BatchClientFactory batch() {
        return opens(BatchClientFactory.withScope(scope, config));
    }

    ByteStreamClientFactory byteStreams() {
        return opens(ByteStreamClientFactory.withScope(scope, config));
    }

    SynchronizerClientFactory synchronizers() {
        return opens(SynchronizerClientFactory.withScope(scope, config));
    }

    KeyValueTableManager tables() {
        return opens(KeyValueTableManager.create(config));
    }

    KeyValueTableFactory tableClients() {
        return opens(KeyValueTableFactory.withScope(scope, config));
    }

    @Override
    public void close() {
        while (!opened.isEmpty()) {
            try {
                opened.pop().close();
            } catch (Exception error) {
                System.err.println("closing: " + error);
            }
        }
        executor.shutdownNow();
    }
}
