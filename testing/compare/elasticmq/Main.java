import org.elasticmq.rest.sqs.SQSRestServerBuilder;

/** ElasticMQ's REST server on a local port, with messages in memory. Ends when its standard input ends. */
public final class Main {
    public static void main(String[] args) throws Exception {
        var server = SQSRestServerBuilder.withInterface("127.0.0.1").withPort(Integer.parseInt(args[0])).start();
        server.waitUntilStarted();
        System.out.println("ready");
        while (System.in.read() >= 0) {}
        server.stopAndWait();
        System.exit(0);
    }
}
