package malote;

import static malote.Harness.*;

import java.io.File;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;

/** A server for one case, which may kill it. */
final class Server {
    private final Path data;
    private final int amqp;
    private final int http;
    private final List<String> more;
    private Process process;

    Server(String... more) throws IOException {
        this.data = Files.createTempDirectory("malote-jms");
        this.amqp = freePort();
        this.http = freePort();
        this.more = List.of(more);
    }

    private static int freePort() throws IOException {
        try (ServerSocket socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        }
    }

    String amqp() {
        return "localhost:" + amqp;
    }

    String http() {
        return "127.0.0.1:" + http;
    }

    void start() throws Exception {
        List<String> command = new ArrayList<>(List.of(variable("MALOTE_BINARY"), "serve", "--data", data.toString(),
            "--amqp", String.valueOf(amqp), "--http", String.valueOf(http), "--sqs", "off", "--servicebus-admin", "off",
            "--log", "error"));
        command.addAll(more);
        ProcessBuilder builder = new ProcessBuilder(command);
        // These variables are for the cases; the server would take them for settings.
        builder.environment().keySet().removeIf(name -> name.startsWith("MALOTE_"));
        process = builder.redirectOutput(ProcessBuilder.Redirect.DISCARD).redirectError(ProcessBuilder.Redirect.INHERIT)
            .start();
        until("the server listens", this::listens);
    }

    private boolean listens() {
        try (Socket socket = new Socket()) {
            socket.connect(new InetSocketAddress("127.0.0.1", amqp), 1_000);
            return true;
        } catch (IOException error) {
            return false;
        }
    }

    /** Kills the server with kill -9. */
    void kill() throws InterruptedException {
        process.destroyForcibly().waitFor();
    }

    void remove() throws Exception {
        kill();
        try (var files = Files.walk(data)) {
            files.sorted(Comparator.reverseOrder()).map(Path::toFile).forEach(File::delete);
        }
    }
}
