import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.*;

/**
 * kafka-clients 2.8: a transactional copy, and administration.
 *
 * <pre>Clients java-2.8|administration --bootstrap HOST:PORT --in TOPIC ...</pre>
 *
 * The copy ends once it has committed --ends records whose value is "end". Each transaction takes
 * what one poll returned; each --abort-every-th is aborted and its input read again. The last line
 * of its output is {"commits": N, "aborts": N}.
 */
public final class Clients {
    /** A member that is killed holds its partitions for this long. */
    static final int SESSION_TIMEOUT_MS = 6_000;

    static final Map<String, String> OPTIONS = new HashMap<>();

    public static void main(String[] args) throws Exception {
        for (int i = 1; i < args.length; i += 2) {
            OPTIONS.put(args[i].substring(2), args[i + 1]);
        }
        if (args[0].equals("administration")) {
            administration();
        } else {
            copy();
        }
    }

    static int number(String option, int fallback) {
        return Integer.parseInt(OPTIONS.getOrDefault(option, String.valueOf(fallback)));
    }

    static Properties properties(Object... settings) {
        Properties all = new Properties();
        all.put("bootstrap.servers", OPTIONS.get("bootstrap"));
        for (int i = 0; i < settings.length; i += 2) {
            all.put(settings[i], String.valueOf(settings[i + 1]));
        }
        return all;
    }

    static KafkaConsumer<byte[], byte[]> consumer() {
        Properties settings = properties(
            "group.id", OPTIONS.get("group"),
            "isolation.level", "read_committed",
            "auto.offset.reset", "earliest",
            "enable.auto.commit", "false",
            "session.timeout.ms", SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms", SESSION_TIMEOUT_MS / 4,
            "max.poll.records", number("batch", 10));
        return new KafkaConsumer<>(
            settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    // --- consume, transform, produce ------------------------------------------------------------

    static void copy() throws Exception {
        int abortEvery = number("abort-every", 0);
        int endsLeft = number("ends", 2);
        int commits = 0;
        int aborts = 0;
        try (KafkaConsumer<byte[], byte[]> consumer = consumer();
             KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                 properties("transactional.id", OPTIONS.get("id")),
                 new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            consumer.subscribe(List.of(OPTIONS.get("in")));
            while (endsLeft > 0) {
                ConsumerRecords<byte[], byte[]> batch = consumer.poll(Duration.ofMillis(100));
                if (batch.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                for (ConsumerRecord<byte[], byte[]> record : batch) {
                    producer.send(
                        new ProducerRecord<>(OPTIONS.get("out"), record.key(), record.value()));
                }
                if (abortEvery != 0 && (commits + aborts + 1) % abortEvery == 0) {
                    producer.flush(); // so that aborted records are in the log
                    producer.abortTransaction();
                    batch.partitions().forEach(
                        at -> consumer.seek(at, batch.records(at).get(0).offset()));
                    aborts++;
                } else {
                    producer.sendOffsetsToTransaction(ends(batch), consumer.groupMetadata());
                    producer.commitTransaction();
                    commits++;
                    for (ConsumerRecord<byte[], byte[]> record : batch) {
                        endsLeft -= "end".equals(new String(record.value())) ? 1 : 0;
                    }
                }
            }
        }
        System.out.printf("{\"commits\": %d, \"aborts\": %d}%n", commits, aborts);
    }

    static Map<TopicPartition, OffsetAndMetadata> ends(ConsumerRecords<byte[], byte[]> batch) {
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        for (TopicPartition at : batch.partitions()) {
            List<ConsumerRecord<byte[], byte[]>> records = batch.records(at);
            ends.put(at, new OffsetAndMetadata(records.get(records.size() - 1).offset() + 1));
        }
        return ends;
    }

    // --- administration -------------------------------------------------------------------------

    static void same(Object expected, Object found, String what) {
        if (!expected.equals(found)) {
            throw new AssertionError(what + ": expected " + expected + ", found " + found);
        }
    }

    static <T> T get(Future<T> future) throws Exception {
        return future.get(30, TimeUnit.SECONDS);
    }

    static void administration() throws Exception {
        String topic = OPTIONS.get("in");
        TopicPartition first = new TopicPartition(topic, 0);
        try (Admin admin = Admin.create(properties())) {
            get(admin.createTopics(
                List.of(new NewTopic(topic, Optional.of(1), Optional.empty()))).all());
            for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
                write(topic, codec, 4);
            }
            same(20L, offset(admin, first, OffsetSpec.latest()), "log end offset");
            consume(topic, 20);
            String group = OPTIONS.get("group");
            same(20L, get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata())
                .get(first).offset(), "committed offset");
            same("Empty", get(admin.describeConsumerGroups(List.of(group)).all())
                .get(group).state().toString(), "group state");
            get(admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(7))).all());
            same(7L, offset(admin, first, OffsetSpec.earliest()), "log start offset");
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            Collection<AlterConfigOp> change = List.of(new AlterConfigOp(
                new ConfigEntry("retention.ms", "86400000"), AlterConfigOp.OpType.SET));
            get(admin.incrementalAlterConfigs(Map.of(resource, change)).all());
            same("86400000", get(admin.describeConfigs(Set.of(resource)).all())
                .get(resource).get("retention.ms").value(), "retention.ms");
            get(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all());
            same(3, get(admin.describeTopics(List.of(topic)).all())
                .get(topic).partitions().size(), "partitions");
            get(admin.deleteConsumerGroups(List.of(group)).all());
            get(admin.deleteTopics(List.of(topic)).all());
            same(false, get(admin.listTopics().names()).contains(topic), "topic is listed");
        }
    }

    static long offset(Admin admin, TopicPartition at, OffsetSpec spec) throws Exception {
        return get(admin.listOffsets(Map.of(at, spec)).all()).get(at).offset();
    }

    static void write(String topic, String codec, int count) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                 properties("compression.type", codec, "enable.idempotence", "true"),
                 new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                sent.add(producer.send(
                    new ProducerRecord<>(topic, 0, null, (codec + i).getBytes())));
            }
            for (Future<RecordMetadata> future : sent) {
                get(future);
            }
        }
    }

    static void consume(String topic, int count) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.subscribe(List.of(topic));
            List<String> values = new ArrayList<>();
            long deadline = System.nanoTime() + 60_000_000_000L;
            while (values.size() < count && System.nanoTime() < deadline) {
                consumer.poll(Duration.ofMillis(100))
                    .forEach(record -> values.add(new String(record.value())));
            }
            same(count, values.size(), "records read");
            same("none0", values.get(0), "the first record");
            same("zstd3", values.get(count - 1), "the last record");
            consumer.commitSync();
        }
    }
}
