import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import org.apache.activemq.artemis.api.core.QueueConfiguration;
import org.apache.activemq.artemis.api.core.RoutingType;
import org.apache.activemq.artemis.core.config.CoreAddressConfiguration;
import org.apache.activemq.artemis.core.config.impl.ConfigurationImpl;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;
import org.apache.activemq.artemis.core.settings.impl.AddressSettings;

/**
 * ActiveMQ Artemis on a local port, AMQP only. Its journal syncs durable messages before it answers; all other settings
 * are defaults. Ends when its standard input ends.
 */
public final class Main {
    public static void main(String[] args) throws Exception {
        Path data = Path.of("artemis-data").toAbsolutePath();
        if (Files.exists(data)) {
            // Left over from a run that was killed.
            try (var files = Files.walk(data)) {
                files.sorted(Comparator.reverseOrder()).forEach(file -> file.toFile().delete());
            }
        }
        String at = data.toString();
        var queue = QueueConfiguration.of("bench").setAddress("bench").setRoutingType(RoutingType.ANYCAST).setDurable(true);
        var address = new CoreAddressConfiguration().setName("bench").addRoutingType(RoutingType.ANYCAST).addQueueConfig(queue);
        var configuration = new ConfigurationImpl()
            .setPersistenceEnabled(true)
            .setJournalDatasync(true)
            .setJournalSyncNonTransactional(true)
            .setJournalSyncTransactional(true)
            .setJournalDirectory(at + "/journal")
            .setBindingsDirectory(at + "/bindings")
            .setPagingDirectory(at + "/paging")
            .setLargeMessagesDirectory(at + "/large")
            .setSecurityEnabled(false)
            .setJMXManagementEnabled(false)
            .addAddressConfiguration(address)
            .addAcceptorConfiguration("amqp", "tcp://127.0.0.1:" + args[0] + "?protocols=AMQP");
        configuration.addAddressSetting("#", new AddressSettings().setMaxSizeBytes(-1));
        var server = new EmbeddedActiveMQ().setConfiguration(configuration);
        server.start();
        System.out.println("ready");
        while (System.in.read() >= 0) {}
        server.stop();
        System.exit(0);
    }
}
