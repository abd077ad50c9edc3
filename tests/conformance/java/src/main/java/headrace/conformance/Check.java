package headrace.conformance;

/** One statement about the client and the server, and the code that finds out whether it holds. */
record Check(String area, String name, Body body) {

    /** Throws the error of the client; an AssertionError tells what was expected. */
    @FunctionalInterface
    interface Body {
        void run(Context context) throws Exception;
    }

    static void expect(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static void same(Object expected, Object found, String what) {
        if (!expected.equals(found)) {
            throw new AssertionError(what + ": expected " + shorten(expected) + ", found " + shorten(found));
        }
    }

    /** Runs `body`, which must fail with this class of exception, possibly as the cause of another one. */
    static void fails(Class<? extends Throwable> kind, ThrowingBody body, String what) throws Exception {
        try {
            body.run();
        } catch (Throwable error) {
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                if (kind.isInstance(cause)) {
                    return;
                }
            }
            throw new AssertionError(what + ": expected " + kind.getSimpleName() + ", found " + error, error);
        }
        throw new AssertionError(what + ": expected " + kind.getSimpleName() + ", nothing was thrown");
    }

    interface ThrowingBody {
        void run() throws Exception;
    }

    private static String shorten(Object value) {
        String text = String.valueOf(value);
        return text.length() <= 300 ? text : text.substring(0, 300) + "...";
    }
}
