package malote;

import java.util.Arrays;
import java.util.List;
import java.util.stream.Stream;

/** Tests the front end with the official Java client. Arguments select cases by name. */
public final class Main {
    private Main() {
    }

    public static void main(String[] names) {
        List<String> wanted = Arrays.asList(names);
        int passed = 0;
        int failed = 0;
        List<Harness.Case> cases = Stream
            .of(Queues.CASES, Sessions.CASES, Topics.CASES, Processors.CASES, Transactions.CASES, Administration.CASES)
            .flatMap(List::stream).toList();
        for (Harness.Case it : cases) {
            if (!wanted.isEmpty() && !wanted.contains(it.name())) {
                continue;
            }
            long begun = System.nanoTime();
            String outcome = "ok";
            try {
                it.run().run();
                passed++;
            } catch (RuntimeException | AssertionError error) {
                error.printStackTrace();
                outcome = "FAILED";
                failed++;
            }
            System.err.printf("%-7s %s (%.1f s)%n", outcome, it.name(), (System.nanoTime() - begun) / 1e9);
        }
        System.out.println(passed + " passed, " + failed + " failed");
        // Threads of the client may still run.
        System.exit(failed > 0 || passed == 0 ? 1 : 0);
    }
}
