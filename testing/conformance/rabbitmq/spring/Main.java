/** RabbitMQ's behaviour as Spring AMQP sees it. Usage: Main URL */
public final class Main {
    public static void main(String[] arguments) {
        Harness.url = arguments[0];
        Templates.register();
        Containers.register();
        Listeners.register();
        System.exit(Harness.run() ? 0 : 1);
    }
}
