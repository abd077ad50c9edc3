package headrace.conformance;

import io.pravega.client.segment.impl.Segment;
import io.pravega.client.stream.Checkpoint;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.Position;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ReinitializationRequiredException;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.impl.PositionImpl;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;

/**
 * Readers of the Java client that another process commands: `GroupCommands CONTROLLER_URI SCOPE`.
 *
 * Each line of the input is a command with its arguments, separated by tabs. Its answer is a line that begins with `done`
 * or `error`. Readers read all the time in threads of their own, and print lines that begin with `event`, `checkpoint`,
 * `ended` or `failed`. The process ends with its input.
 */
public final class GroupCommands {
    private static final long ANSWER_S = 60;

    private final Context context;
    private final Map<String, Reading> readers = new HashMap<>();
    private final Map<String, ReaderGroup> groups = new HashMap<>();

    private GroupCommands(Context context) {
        this.context = context;
    }

    /** A reader in its own thread. */
    private static final class Reading extends Thread {
        private final EventStreamReader<String> reader;
        private volatile boolean stopped;
        private volatile Position position;

        Reading(String name, EventStreamReader<String> reader) {
            super(name);
            this.reader = reader;
            setDaemon(true);
            start();
        }

        @Override
        public void run() {
            try {
                while (!stopped) {
                    EventRead<String> read = reader.readNextEvent(200);
                    position = read.getPosition();
                    if (read.getEvent() != null) {
                        print("event", getName(), String.valueOf(micros()), read.getEvent());
                    } else if (read.isCheckpoint()) {
                        print("checkpoint", getName(), read.getCheckpointName(),
                                offsets(((PositionImpl) position).getOwnedSegmentsWithOffsets()));
                    } else if (read.isReadCompleted()) {
                        print("ended", getName());
                        return;
                    }
                }
            } catch (ReinitializationRequiredException error) {
                print("failed", getName(), error.getClass().getSimpleName());
            } catch (RuntimeException error) {
                print("failed", getName(), String.valueOf(error));
                error.printStackTrace();
            }
        }

        /** The reader reads no more events after this. */
        void end() throws InterruptedException {
            stopped = true;
            join(TimeUnit.SECONDS.toMillis(ANSWER_S));
            Check.expect(!isAlive(), "the reader stops");
        }
    }

    public static void main(String[] arguments) throws Exception {
        try (Context context = new Context(URI.create(arguments[0]), arguments[1])) {
            GroupCommands commands = new GroupCommands(context);
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                try {
                    print("done", commands.run(List.of(line.split("\t"))));
                } catch (Exception | AssertionError error) {
                    error.printStackTrace();
                    print("error", String.valueOf(error));
                }
            }
        }
        System.exit(0);
    }

    private String run(List<String> command) throws Exception {
        String name = command.get(1);
        switch (command.get(0)) {
            case "create": // GROUP STREAM CHECKPOINTS_MS
                return String.valueOf(context.groups.createReaderGroup(name,
                        configuration(command.get(2), Long.parseLong(command.get(3))).build()));
            case "join": // READER GROUP
                readers.put(name, new Reading(name, context.clients.createReader(name, command.get(2), Context.TEXT,
                        ReaderConfig.builder().build())));
                return "";
            case "stop": // READER
                readers.get(name).end();
                return "";
            case "close": // READER
                readers.get(name).end();
                readers.remove(name).reader.close();
                return "";
            case "offline": // GROUP READER: of this process at its position, another one at its last checkpoint
                Reading reading = readers.get(command.get(2));
                group(name).readerOffline(command.get(2), reading == null ? null : reading.position);
                return "";
            case "readers": // GROUP
                return String.join(" ", group(name).getOnlineReaders().stream().sorted().toList());
            case "distribution": // GROUP
                return new TreeMap<>(group(name).getReaderSegmentDistribution().getReaderSegmentDistribution()).toString();
            case "unread": // GROUP
                return String.valueOf(group(name).getMetrics().unreadBytes());
            case "checkpoint": // GROUP NAME
                Checkpoint made = group(name).initiateCheckpoint(command.get(2), context.executor)
                        .get(ANSWER_S, TimeUnit.SECONDS);
                return cuts(made.asImpl().getPositions().values().stream().toList());
            case "cuts": // GROUP
                return cuts(group(name).generateStreamCuts(context.executor).get(ANSWER_S, TimeUnit.SECONDS).values());
            case "reset": // GROUP STREAM CHECKPOINTS_MS: to the beginning of the stream
                group(name).resetReaderGroup(configuration(command.get(2), Long.parseLong(command.get(3))).build());
                return "";
            case "reset-to-checkpoint": // GROUP
                group(name).resetReaderGroup();
                return "";
            default:
                throw new IllegalArgumentException("no such command: " + command);
        }
    }

    private ReaderGroup group(String name) {
        return groups.computeIfAbsent(name, one -> context.opens(context.groups.getReaderGroup(one)));
    }

    private ReaderGroupConfig.ReaderGroupConfigBuilder configuration(String stream, long checkpointsMs) {
        ReaderGroupConfig.ReaderGroupConfigBuilder builder = Context.reads(context.stream(stream));
        return checkpointsMs == 0 ? builder.disableAutomaticCheckpoints()
                : builder.automaticCheckpointIntervalMillis(checkpointsMs);
    }

    private static String cuts(Collection<StreamCut> cuts) {
        Map<Segment, Long> all = new HashMap<>();
        cuts.forEach(cut -> all.putAll(cut.asImpl().getPositions()));
        return offsets(all);
    }

    /** `SEGMENT_ID=OFFSET` of each segment, ordered. */
    private static String offsets(Map<Segment, Long> positions) {
        Map<Long, Long> found = new TreeMap<>();
        positions.forEach((segment, offset) -> found.put(segment.getSegmentId(), offset));
        return String.join(" ", found.entrySet().stream().map(one -> one.getKey() + "=" + one.getValue()).toList());
    }

    private static long micros() {
        return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }

    private static synchronized void print(String... parts) {
        System.out.println(String.join("\t", parts));
        System.out.flush();
    }
}
