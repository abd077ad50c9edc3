package headrace.conformance;

import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Runs the checks one after the other: `Conformance CONTROLLER_URI RESULTS_FILE STATE_FILE [PART_OF_A_NAME]`.
 *
 * Each check has a scope and clients of its own, and five minutes. The results are a JSON array. The state file is that of
 * the local stack; the checks that kill processes find them there.
 */
public final class Conformance {
    private static final long CHECK_S = 300;

    private record Result(Check check, String outcome, double seconds, String note) {
        String json() {
            return "{\"area\": " + quoted(check.area()) + ", \"name\": " + quoted(check.name()) + ", \"outcome\": "
                    + quoted(outcome) + ", \"seconds\": " + Math.round(seconds * 10) / 10.0 + ", \"note\": " + quoted(note) + "}";
        }
    }

    private Conformance() {
    }

    public static void main(String[] arguments) throws Exception {
        System.setProperty("pravega.client.endOfDataNotification.poll.interval.seconds", "1");
        URI uri = URI.create(arguments[0]);
        String part = arguments.length > 3 ? arguments[3] : "";
        List<Check> checks = new ArrayList<>();
        Streams.add(checks);
        Writing.add(checks);
        Transactions.add(checks);
        Groups.add(checks);
        Subscribers.add(checks);
        Cuts.add(checks);
        BatchReads.add(checks);
        ByteStreams.add(checks);
        Synchronizers.add(checks);
        Tables.add(checks);
        Watermarks.add(checks);
        Scaling.add(checks);
        Faults.add(checks, Path.of(arguments[2]));
        List<String> lines = new ArrayList<>();
        int failed = 0;
        for (Check check : checks) {
            if (!(check.area() + ": " + check.name()).contains(part)) {
                continue;
            }
            Result result = run(check, uri, "conformance-" + lines.size() + "-" + System.currentTimeMillis() % 1_000_000);
            failed += result.outcome().equals("passed") ? 0 : 1;
            System.out.printf("%-7s %6.1f s  %s: %s%s%n", result.outcome(), result.seconds(), check.area(), check.name(),
                    result.note().isEmpty() ? "" : "\n        " + result.note());
            lines.add(result.json());
            Files.writeString(Path.of(arguments[1]), "[\n" + String.join(",\n", lines) + "\n]\n");
        }
        System.out.println(lines.size() - failed + " passed, " + failed + " failed");
        System.exit(failed == 0 ? 0 : 1);
    }

    private static Result run(Check check, URI uri, String scope) {
        long start = System.nanoTime();
        String outcome = "passed";
        String note = "";
        CompletableFuture<Void> done = new CompletableFuture<>();
        Thread worker = new Thread(() -> {
            try (Context context = new Context(uri, scope)) {
                check.body().run(context);
                done.complete(null);
            } catch (Throwable error) {
                done.completeExceptionally(error);
            }
        }, check.name());
        worker.setDaemon(true);
        worker.start();
        try {
            done.get(CHECK_S, TimeUnit.SECONDS);
        } catch (TimeoutException error) {
            outcome = "failed";
            note = "not finished after " + CHECK_S + " s";
            for (StackTraceElement frame : worker.getStackTrace()) {
                System.err.println("    " + frame);
            }
            worker.interrupt();
        } catch (ExecutionException error) {
            outcome = "failed";
            note = String.valueOf(error.getCause());
            StringWriter text = new StringWriter();
            error.getCause().printStackTrace(new PrintWriter(text));
            System.err.println(check.name() + ": " + text);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
        return new Result(check, outcome, (System.nanoTime() - start) / 1e9, note);
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char one : text.substring(0, Math.min(text.length(), 500)).toCharArray()) {
            if (one == '"' || one == '\\') {
                quoted.append('\\').append(one);
            } else if (one < ' ' || one > '~') {
                quoted.append(String.format("\\u%04x", (int) one));
            } else {
                quoted.append(one);
            }
        }
        return quoted.append('"').toString();
    }
}
