import java.io.File;
import java.net.URL;
import java.net.URLClassLoader;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.*;

/**
 * One program, compiled against the oldest kafka-clients, run with the classes of each given one.
 *
 * <pre>Family HOST:PORT VERSION=JAR ...</pre>
 *
 * Each version administers, produces (idempotently and in transactions), consumes in a group, and
 * finds its committed offsets again. It prints "VERSION ok" or "VERSION" and what has failed.
 */
public final class Family {
    static final int COUNT = 300;

    public static void main(String[] args) throws Exception {
        URL own = Family.class.getProtectionDomain().getCodeSource().getLocation();
        int failed = 0;
        for (int i = 1; i < args.length; i++) {
            String version = args[i].substring(0, args[i].indexOf('='));
            URL jar = new File(args[i].substring(version.length() + 1)).toURI().toURL();
            // The compression libraries are on the class path of the JVM, Kafka's classes are not.
            try (URLClassLoader loader = new OwnFirst(new URL[] {own, jar})) {
                Thread.currentThread().setContextClassLoader(loader);
                loader.loadClass("Family$Run").getMethod("all", String.class, String.class)
                    .invoke(null, args[0], version);
                System.out.println(version + " ok");
            } catch (Throwable error) {
                failed++;
                Throwable cause = error;
                while (cause.getCause() != null) {
                    cause = cause.getCause();
                }
                System.out.println(version + " " + cause);
                cause.printStackTrace();
            }
            System.out.flush();
        }
        System.exit(failed == 0 ? 0 : 1);
    }

    /** Its own classes before those of the JVM's class path. */
    static final class OwnFirst extends URLClassLoader {
        OwnFirst(URL[] places) {
            super(places, Family.class.getClassLoader());
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            if (!name.startsWith("org.apache.kafka.") && !name.startsWith("Family")) {
                return super.loadClass(name, resolve);
            }
            Class<?> found = findLoadedClass(name);
            return found != null ? found : findClass(name);
        }
    }

    /** What every version does. */
    public static final class Run {
        static String bootstrap;

        public static void all(String address, String version) throws Exception {
            bootstrap = address;
            String topic = "family-" + version;
            administer(topic, version);
            for (String codec : new String[] {"none", "gzip", "lz4", "snappy"}) {
                produce(topic, codec, null);
            }
            produce(topic, "lz4", "family-" + version);
            int expected = 5 * COUNT;
            consume(topic, version, "classic", expected);
            if (version.compareTo("3.9") > 0) {
                consume(topic, version, "consumer", expected);
            }
        }

        static Properties settings(Object... pairs) {
            Properties all = new Properties();
            all.put("bootstrap.servers", bootstrap);
            for (int i = 0; i < pairs.length; i += 2) {
                all.put(pairs[i], String.valueOf(pairs[i + 1]));
            }
            return all;
        }

        static void administer(String topic, String version) throws Exception {
            try (AdminClient admin = AdminClient.create(settings())) {
                NewTopic wanted = new NewTopic(topic, 3, (short) 1);
                wanted.configs(Collections.singletonMap("retention.ms", "86400000"));
                get(admin.createTopics(Collections.singleton(wanted)).all());
                try {
                    get(admin.createTopics(Collections.singleton(wanted)).all());
                    throw new AssertionError("a topic is created twice");
                } catch (ExecutionException expected) {
                    check(expected.getCause().getClass().getSimpleName(), "TopicExistsException");
                }
                get(admin.createPartitions(
                    Collections.singletonMap(topic, NewPartitions.increaseTo(4))).all());
                check(get(admin.listTopics().names()).contains(topic), true);
                check(get(admin.describeCluster().nodes()).size(), 1);
                ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
                Config config = get(
                    admin.describeConfigs(Collections.singleton(resource)).all()).get(resource);
                check(config.get("retention.ms").value(), "86400000");
            }
        }

        static void produce(String topic, String codec, String transactionalId) throws Exception {
            Properties wanted = settings(
                "compression.type", codec, "acks", "all", "enable.idempotence", "true",
                "linger.ms", "5");
            if (transactionalId != null) {
                wanted.put("transactional.id", transactionalId);
            }
            try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                    wanted, new ByteArraySerializer(), new ByteArraySerializer())) {
                if (transactionalId != null) {
                    producer.initTransactions();
                    producer.beginTransaction();
                    send(producer, topic);
                    producer.abortTransaction();
                    producer.beginTransaction();
                }
                send(producer, topic);
                if (transactionalId != null) {
                    producer.commitTransaction();
                }
            }
        }

        static void send(KafkaProducer<byte[], byte[]> producer, String topic) throws Exception {
            List<java.util.concurrent.Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < COUNT; i++) {
                byte[] number = String.valueOf(i).getBytes();
                ProducerRecord<byte[], byte[]> record =
                    new ProducerRecord<>(topic, null, number, number);
                record.headers().add("number", number);
                sent.add(producer.send(record));
            }
            producer.flush();
            for (java.util.concurrent.Future<RecordMetadata> each : sent) {
                check(each.get(30, TimeUnit.SECONDS).offset() >= 0, true);
            }
        }

        static void consume(String topic, String version, String protocol, int expected)
                throws Exception {
            Properties wanted = settings(
                "group.id", "family-" + protocol + "-" + version, "auto.offset.reset", "earliest",
                "enable.auto.commit", "false", "isolation.level", "read_committed");
            if (protocol.equals("consumer")) {
                wanted.put("group.protocol", protocol);
            }
            int found = 0;
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(wanted)) {
                consumer.subscribe(Collections.singleton(topic));
                long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
                while (found < expected && System.nanoTime() < end) {
                    for (ConsumerRecord<byte[], byte[]> record :
                            consumer.poll(Duration.ofMillis(200))) {
                        check(Arrays.equals(record.key(), record.value()), true);
                        check(Arrays.equals(
                            record.headers().lastHeader("number").value(), record.key()), true);
                        found++;
                    }
                }
                consumer.commitSync();
            }
            check(found, expected);
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(wanted)) {
                List<TopicPartition> all = new ArrayList<>();
                for (int number = 0; number < 4; number++) {
                    all.add(new TopicPartition(topic, number));
                }
                consumer.assign(all);
                Map<TopicPartition, Long> ends = consumer.endOffsets(all);
                for (TopicPartition at : all) {
                    // A partition may end with a transaction's marker, which is no record.
                    check(ends.get(at) - consumer.position(at) <= 1, true);
                }
                Map<TopicPartition, Long> early = new HashMap<>();
                all.forEach(at -> early.put(at, 1L));
                check(consumer.offsetsForTimes(early).get(all.get(0)).offset(), 0L);
            }
        }

        static KafkaConsumer<byte[], byte[]> consumer(Properties wanted) {
            return new KafkaConsumer<>(
                wanted, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        }

        static <T> T get(org.apache.kafka.common.KafkaFuture<T> future) throws Exception {
            return future.get(30, TimeUnit.SECONDS);
        }

        static void check(Object found, Object expected) {
            if (!Objects.equals(found, expected)) {
                throw new AssertionError("found " + found + " instead of " + expected);
            }
        }
    }
}
