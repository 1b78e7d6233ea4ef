import java.io.File;
import java.io.FileReader;
import java.io.Reader;
import java.net.URL;
import java.net.URLClassLoader;
import java.security.Provider;
import java.security.Security;
import java.time.Duration;
import java.util.*;
import javax.security.auth.callback.Callback;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerTokenCallback;
import org.apache.kafka.common.serialization.*;

/**
 * Enters a secured broker with the classes of each given kafka-clients, by each given way.
 *
 * <pre>FamilyLogin VERSION=JAR ... -- TOPIC=SETTINGS ...</pre>
 *
 * SETTINGS is a file of a client's properties. Each version writes a record to each topic, and reads
 * its own. It prints "VERSION TOPIC ok" or what has failed. A token comes from TOKEN.
 */
public final class FamilyLogin {
    public static void main(String[] args) throws Exception {
        URL own = FamilyLogin.class.getProtectionDomain().getCodeSource().getLocation();
        List<String> all = Arrays.asList(args);
        int middle = all.indexOf("--");
        for (String pair : all.subList(0, middle)) {
            int at = pair.indexOf('=');
            URL jar = new File(pair.substring(at + 1)).toURI().toURL();
            try (URLClassLoader loader = new Family.OwnFirst(new URL[] {own, jar})) {
                // They are the JVM's, and would load their classes from the former version.
                for (Provider one : Security.getProviders()) {
                    if (one.getClass().getName().startsWith("org.apache.kafka.")) {
                        Security.removeProvider(one.getName());
                    }
                }
                Thread.currentThread().setContextClassLoader(loader);
                for (String way : all.subList(middle + 1, all.size())) {
                    String[] parts = way.split("=", 2);
                    String said = "ok";
                    try {
                        loader.loadClass("FamilyLogin$Run")
                            .getMethod("enter", String.class, String.class, String.class)
                            .invoke(null, parts[0], parts[1], pair.substring(0, at));
                    } catch (Throwable error) {
                        said = String.valueOf(error.getCause());
                        error.printStackTrace();
                    }
                    System.out.println(pair.substring(0, at) + " " + parts[0] + " " + said);
                    System.out.flush();
                }
            }
        }
    }

    /** What every version does. */
    public static final class Run {
        public static void enter(String topic, String file, String version) throws Exception {
            Properties settings = new Properties();
            try (Reader reader = new FileReader(file)) {
                settings.load(reader);
            }
            settings.put("group.id", topic + version);
            settings.put("auto.offset.reset", "earliest");
            Serializer<String> writes = new StringSerializer();
            try (Producer<String, String> to = new KafkaProducer<>(settings, writes, writes)) {
                to.send(new ProducerRecord<>(topic, version)).get();
            }
            Deserializer<String> reads = new StringDeserializer();
            try (Consumer<String, String> from = new KafkaConsumer<>(settings, reads, reads)) {
                from.subscribe(Collections.singleton(topic));
                long deadline = System.nanoTime() + 120_000_000_000L;
                while (System.nanoTime() < deadline) {
                    for (ConsumerRecord<String, String> one : from.poll(Duration.ofMillis(500))) {
                        if (one.value().equals(version)) {
                            return;
                        }
                    }
                }
                throw new AssertionError("the record was not read");
            }
        }
    }

    /** The token of the environment, for the login of OAUTHBEARER. */
    public static final class Tokens implements AuthenticateCallbackHandler {
        @Override
        public void configure(
            Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> entries) {}

        @Override
        public void close() {}

        @Override
        public void handle(Callback[] callbacks) {
            for (Callback one : callbacks) {
                if (one instanceof OAuthBearerTokenCallback) {
                    ((OAuthBearerTokenCallback) one).token(new Token());
                }
            }
        }
    }

    /** See Tokens. */
    static final class Token implements OAuthBearerToken {
        @Override
        public String value() {
            return System.getenv("TOKEN");
        }

        @Override
        public Set<String> scope() {
            return Collections.emptySet();
        }

        @Override
        public long lifetimeMs() {
            return System.currentTimeMillis() + 600_000;
        }

        @Override
        public String principalName() {
            return "admin";
        }

        @Override
        public Long startTimeMs() {
            return null;
        }
    }
}
