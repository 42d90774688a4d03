import java.util.Arrays;

/** RabbitMQ's behaviour as Spring AMQP sees it. Usage: Main URL [PART_OF_A_NAME ...] */
public final class Main {
    public static void main(String[] arguments) {
        Harness.url = arguments[0];
        Templates.register();
        Containers.register();
        Listeners.register();
        System.exit(Harness.run(Arrays.asList(arguments).subList(1, arguments.length)) ? 0 : 1);
    }
}
