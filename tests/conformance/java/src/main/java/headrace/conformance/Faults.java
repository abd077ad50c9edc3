package headrace.conformance;

import static headrace.conformance.Check.expect;
import static headrace.conformance.Check.same;

import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.Transaction;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Processes that are killed under clients. */
final class Faults {
    private static final String AREA = "faults";
    private static final Pattern STORE = Pattern.compile("\"host\":[^}]*?\"pid\": (\\d+)", Pattern.DOTALL);

    private Faults() {
    }

    static void add(List<Check> checks, Path state) {
        checks.add(new Check(AREA, "kill -9 of all segment stores under a writer: no event is lost or doubled",
                context -> writing(context, state)));
        checks.add(new Check(AREA, "kill -9 of all segment stores under a reader group", context -> reading(context, state)));
        checks.add(new Check(AREA, "kill -9 of all segment stores with an open transaction", context -> open(context, state)));
    }

    /** Kills all segment stores that the state file names; the local stack starts them again. */
    private static void kill(Path state) throws IOException {
        Matcher stores = STORE.matcher(Files.readString(state));
        int killed = 0;
        while (stores.find()) {
            ProcessHandle.of(Long.parseLong(stores.group(1))).ifPresent(ProcessHandle::destroyForcibly);
            killed++;
        }
        expect(killed > 0, "the state file names segment stores");
    }

    private static void writing(Context context, Path state) throws Exception {
        Stream stream = context.create("a", 2);
        EventStreamWriter<String> writer = context.writer("a");
        List<CompletableFuture<Void>> stored = new ArrayList<>();
        for (int number = 0; number < 300; number++) {
            stored.add(writer.writeEvent("key", "e:" + number));
            if (number == 100) {
                kill(state);
            }
            Thread.sleep(10);
        }
        for (CompletableFuture<Void> one : stored) {
            one.get(120, TimeUnit.SECONDS);
        }
        List<String> found = context.everything("g", Context.reads(stream).build(), 300);
        for (int number = 0; number < 300; number++) {
            same("e:" + number, found.get(number), "event");
        }
    }

    private static void reading(Context context, Path state) throws Exception {
        Stream stream = context.create("a", 2);
        for (int key = 0; key < 10; key++) {
            context.write("a", "key-" + key, "k" + key, 10);
        }
        context.group("g", Context.reads(stream).automaticCheckpointIntervalMillis(1_000).build());
        EventStreamReader<String> reader = context.reader("r", "g");
        List<String> found = new ArrayList<>(Context.take(reader, 30));
        kill(state);
        for (int key = 0; key < 10; key++) {
            context.write("a", "key-" + key, "later" + key, 5);
        }
        found.addAll(Context.take(reader, 120));
        same(150, new HashSet<>(found).size(), "different events");
    }

    private static void open(Context context, Path state) throws Exception {
        Stream stream = context.create("a", 2);
        Transaction<String> transaction = context.transactional("a").beginTxn();
        transaction.writeEvent("key", "t:0");
        transaction.flush();
        kill(state);
        for (int number = 1; number < 10; number++) {
            transaction.writeEvent("key", "t:" + number);
        }
        transaction.commit();
        List<String> found = context.everything("g", Context.reads(stream).build(), 10);
        same("t:9", found.get(9), "last event");
    }
}
