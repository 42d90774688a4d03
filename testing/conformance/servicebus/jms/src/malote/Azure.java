package malote;

import static malote.Harness.*;

import com.azure.servicebus.jms.ServiceBusJmsConnectionFactory;
import com.azure.servicebus.jms.ServiceBusJmsConnectionFactorySettings;
import jakarta.jms.Connection;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Session;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Azure's JMS library: Qpid JMS with other defaults, always with TLS. */
final class Azure {
    static final List<Case> CASES = List.of(new Case("azure-servicebus-jms sends, receives and rolls back", Azure::smoke));

    private Azure() {
    }

    private static void smoke() throws Exception {
        Server server = new Server("--tls-self-signed");
        server.start();
        try {
            api(server.http(), "PUT", "/queues/q", "{\"lock_ms\": " + LOCK_MS + "}");
            // The library changes the map.
            Map<String, String> options =
                new HashMap<>(Map.of("transport.trustAll", "true", "transport.verifyHost", "false"));
            var settings = new ServiceBusJmsConnectionFactorySettings(options);
            settings.setShouldReconnect(false);
            var factory = new ServiceBusJmsConnectionFactory("any", "any", server.amqp(), settings);
            try (Connection connection = factory.createConnection()) {
                connection.start();
                send(connection.createSession(), "q", "1", "2", "3");
                Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
                MessageConsumer consumer = session.createConsumer(session.createQueue("q"));
                same("first", receive(consumer, 2), List.of("1", "2"));
                session.rollback();
                same("again", receive(consumer, 3), List.of("1", "2", "3"));
                session.commit();
                that(session.createTemporaryQueue() != null, "cannot create a temporary queue");
            }
        } finally {
            server.remove();
        }
    }
}
