import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.serialization.*;

/** What Kafka's KafkaShareConsumer is promised. Each scenario throws where a promise is broken. */
public final class ShareScenarios {
    static String bootstrap;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        String[] rest = Arrays.copyOfRange(args, 2, args.length);
        ShareScenarios.class.getDeclaredMethod(args[1], String[].class).invoke(null, (Object) rest);
    }

    static void check(boolean isTrue, String what) {
        if (!isTrue) {
            throw new AssertionError(what);
        }
    }

    static KafkaShareConsumer<String, String> consumer(String group, String... settings) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("group.id", group);
        for (int i = 0; i < settings.length; i += 2) {
            properties.put(settings[i], settings[i + 1]);
        }
        return new KafkaShareConsumer<>(
            properties, new StringDeserializer(), new StringDeserializer());
    }

    static void configure(String group, String... settings) throws Exception {
        List<AlterConfigOp> ops = new ArrayList<>();
        for (int i = 0; i < settings.length; i += 2) {
            ops.add(new AlterConfigOp(
                new ConfigEntry(settings[i], settings[i + 1]), AlterConfigOp.OpType.SET));
        }
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.incrementalAlterConfigs(Map.of(resource, ops)).all().get(30, TimeUnit.SECONDS);
            Config config = admin.describeConfigs(List.of(resource)).all()
                .get(30, TimeUnit.SECONDS).get(resource);
            check(config.get(settings[0]).value().equals(settings[1]), "a setting was kept");
        }
    }

    static void write(String topic, int partitions, int count, int keys) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "linger.ms", "5");
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) -1))).all()
                .get(30, TimeUnit.SECONDS);
        }
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(
                settings, new StringSerializer(), new StringSerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                String key = keys > 0 ? "k" + i % keys : null;
                sent.add(producer.send(new ProducerRecord<>(
                    topic, keys > 0 ? null : Integer.valueOf(i % partitions), key, "v" + i)));
            }
            for (Future<RecordMetadata> future : sent) {
                future.get(30, TimeUnit.SECONDS);
            }
        }
    }

    /** Two consumers of one group get every record once between them. */
    static void sharing(String... args) throws Exception {
        String topic = args[0];
        int count = 2_000;
        write(topic, 3, count, 0);
        configure(topic + "-g", "share.auto.offset.reset", "earliest");
        Map<String, Integer> seen = new HashMap<>();
        try (KafkaShareConsumer<String, String> a = consumer(topic + "-g");
                KafkaShareConsumer<String, String> b = consumer(topic + "-g")) {
            a.subscribe(List.of(topic));
            b.subscribe(List.of(topic));
            long end = System.nanoTime() + 60_000_000_000L;
            while (seen.size() < count && System.nanoTime() < end) {
                for (KafkaShareConsumer<String, String> c : List.of(a, b)) {
                    for (ConsumerRecord<String, String> r : c.poll(Duration.ofMillis(200))) {
                        seen.merge(r.value(), 1, Integer::sum);
                        check(r.deliveryCount().orElse((short) 0) == 1, "a first delivery");
                    }
                }
            }
        }
        check(seen.size() == count, seen.size() + " of " + count + " records came");
        check(seen.values().stream().allMatch(n -> n == 1), "no record came twice");
    }

    /** Accept, release and reject, one record at a time. */
    static void settling(String... args) throws Exception {
        String topic = args[0];
        write(topic, 1, 9, 0);
        configure(topic + "-g", "share.auto.offset.reset", "earliest",
            "share.delivery.count.limit", "3");
        Map<String, Integer> deliveries = new TreeMap<>();
        try (KafkaShareConsumer<String, String> c = consumer(
                topic + "-g", "share.acknowledgement.mode", "explicit")) {
            c.subscribe(List.of(topic));
            long end = System.nanoTime() + 30_000_000_000L;
            int quiet = 0;
            while (System.nanoTime() < end && quiet < 5) {
                ConsumerRecords<String, String> records = c.poll(Duration.ofMillis(300));
                quiet = records.isEmpty() && !deliveries.isEmpty() ? quiet + 1 : 0;
                for (ConsumerRecord<String, String> r : records) {
                    deliveries.merge(r.value(), 1, Integer::sum);
                    int n = Integer.parseInt(r.value().substring(1));
                    c.acknowledge(r, n % 3 == 0 ? AcknowledgeType.ACCEPT
                        : n % 3 == 1 ? AcknowledgeType.RELEASE : AcknowledgeType.REJECT);
                }
                c.commitSync().values().forEach(e -> check(e.isEmpty(), "an acknowledgement: " + e));
            }
        }
        for (int n = 0; n < 9; n++) {
            int expected = n % 3 == 1 ? 3 : 1;
            check(deliveries.getOrDefault("v" + n, 0) == expected,
                "v" + n + " came " + deliveries.get("v" + n) + " times, not " + expected);
        }
    }

    /** In key order: no two records of a key in flight, each key's order kept over redelivery. */
    static void ordered(String... args) throws Exception {
        String topic = args[0];
        int count = 300, keys = 10;
        write(topic, 2, count, keys);
        configure(topic + "-g", "share.auto.offset.reset", "earliest",
            "headrace.share.key.order", "true");
        Map<String, List<Integer>> done = new HashMap<>();
        int total = 0;
        try (KafkaShareConsumer<String, String> a = consumer(
                    topic + "-g", "share.acknowledgement.mode", "explicit");
                KafkaShareConsumer<String, String> b = consumer(
                    topic + "-g", "share.acknowledgement.mode", "explicit")) {
            a.subscribe(List.of(topic));
            b.subscribe(List.of(topic));
            long end = System.nanoTime() + 60_000_000_000L;
            int turn = 0;
            while (total < count && System.nanoTime() < end) {
                for (KafkaShareConsumer<String, String> c : List.of(a, b)) {
                    Map<String, Integer> inPoll = new HashMap<>();
                    for (ConsumerRecord<String, String> r : c.poll(Duration.ofMillis(200))) {
                        check(inPoll.merge(r.key(), 1, Integer::sum) == 1,
                            "two records of key " + r.key() + " at once");
                        boolean isReleased = r.deliveryCount().orElse((short) 1) == 1
                            && turn++ % 5 == 0;
                        c.acknowledge(r, isReleased
                            ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
                        if (!isReleased) {
                            done.computeIfAbsent(r.key(), k -> new ArrayList<>())
                                .add(Integer.parseInt(r.value().substring(1)));
                            total++;
                        }
                    }
                    c.commitSync();
                }
            }
        }
        check(total == count, total + " of " + count + " records were accepted");
        for (List<Integer> order : done.values()) {
            List<Integer> sorted = new ArrayList<>(order);
            sorted.sort(null);
            check(order.equals(sorted), "a key's order: " + order);
        }
    }

    /** A consumer that leaves without acknowledging gives back what it had. */
    static void leaving(String... args) throws Exception {
        String topic = args[0];
        write(topic, 1, 20, 0);
        configure(topic + "-g", "share.auto.offset.reset", "earliest");
        int first = 0;
        try (KafkaShareConsumer<String, String> c = consumer(
                topic + "-g", "share.acknowledgement.mode", "explicit")) {
            c.subscribe(List.of(topic));
            long end = System.nanoTime() + 30_000_000_000L;
            while (first == 0 && System.nanoTime() < end) {
                first = c.poll(Duration.ofMillis(500)).count();
            }
        }
        check(first == 20, "all records were delivered: " + first);
        int again = 0;
        try (KafkaShareConsumer<String, String> c = consumer(topic + "-g")) {
            c.subscribe(List.of(topic));
            long end = System.nanoTime() + 20_000_000_000L;
            while (again < 20 && System.nanoTime() < end) {
                for (ConsumerRecord<String, String> r : c.poll(Duration.ofMillis(500))) {
                    check(r.deliveryCount().orElse((short) 0) == 2, "the deliveries are counted");
                    again++;
                }
            }
        }
        check(again == 20, again + " of 20 records came back before their locks ended");
    }

    /** In a failover group one consumer has a partition; a standby goes on where it stood. */
    static void failover(String... args) throws Exception {
        String topic = args[0];
        int count = 60;
        write(topic, 1, count, 0);
        configure(topic + "-g", "share.auto.offset.reset", "earliest",
            "headrace.share.subscription", "failover");
        String[] settings = {"share.acknowledgement.mode", "explicit", "max.poll.records", "10",
            "share.acquire.mode", "record_limit"};
        List<Integer> done = new ArrayList<>();
        KafkaShareConsumer<String, String> active = consumer(topic + "-g", settings);
        try (KafkaShareConsumer<String, String> standby = consumer(topic + "-g", settings)) {
            active.subscribe(List.of(topic));
            accept(active, 20, done);
            standby.subscribe(List.of(topic));
            for (int i = 0; i < 10; i++) {  // long enough to join, and to ask several times
                check(standby.poll(Duration.ofMillis(300)).isEmpty(), "the standby got records");
                if (i == 5) {
                    accept(active, 10, done);
                }
            }
            int held = 0;
            long end = System.nanoTime() + 30_000_000_000L;
            while (held == 0 && System.nanoTime() < end) {
                held = active.poll(Duration.ofMillis(300)).count();
            }
            check(held > 0, "the active consumer holds records when it goes");
            active.close();
            accept(standby, count - done.size(), done);
        } finally {
            active.close();
        }
        for (int i = 0; i < count; i++) {
            check(done.get(i) == i, "in order, each once: " + done);
        }
    }

    /** Accept at least so many records. */
    static void accept(KafkaShareConsumer<String, String> c, int count, List<Integer> done) {
        int wanted = done.size() + count;
        long end = System.nanoTime() + 60_000_000_000L;
        while (done.size() < wanted && System.nanoTime() < end) {
            for (ConsumerRecord<String, String> r : c.poll(Duration.ofMillis(300))) {
                done.add(Integer.parseInt(r.value().substring(1)));
                c.acknowledge(r, AcknowledgeType.ACCEPT);
            }
            c.commitSync().values().forEach(e -> check(e.isEmpty(), "an acknowledgement: " + e));
        }
        check(done.size() >= wanted, done.size() + " of " + wanted + " records came");
    }

    /** Prints when each record of a topic comes, until one has the given value. */
    static void until(String... args) throws Exception {
        boolean isOver = false;
        try (KafkaShareConsumer<String, String> c = consumer(args[1])) {
            c.subscribe(List.of(args[0]));
            long end = System.nanoTime() + 120_000_000_000L;
            while (!isOver && System.nanoTime() < end) {
                for (ConsumerRecord<String, String> r : c.poll(Duration.ofMillis(200))) {
                    System.out.println(System.currentTimeMillis() + " " + r.value());
                    isOver |= r.value().equals(args[2]);
                }
            }
        }
        check(isOver, "the last record came");
    }

    /** What Kafka's Admin client does with share groups. */
    static void administration(String... args) throws Exception {
        String topic = args[0];
        String group = topic + "-g";
        TopicPartition partition = new TopicPartition(topic, 0);
        write(topic, 1, 10, 0);
        configure(group, "share.auto.offset.reset", "earliest");
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            try (KafkaShareConsumer<String, String> c = consumer(group)) {
                c.subscribe(List.of(topic));
                int seen = 0;
                long end = System.nanoTime() + 30_000_000_000L;
                while (seen < 10 && System.nanoTime() < end) {
                    seen += c.poll(Duration.ofMillis(500)).count();
                }
                c.commitSync();
                GroupListing listing = listing(admin, group);
                check(listing.groupState().orElseThrow() == GroupState.STABLE, "it has members");
                check(listing.type().orElseThrow() == GroupType.SHARE, "it is a share group");
                ShareGroupDescription described = admin.describeShareGroups(List.of(group)).all()
                    .get(30, TimeUnit.SECONDS).get(group);
                check(described.members().size() == 1, "it has one member");
                check(fails(admin.alterShareGroupOffsets(group, Map.of(partition, 0L)).all(),
                    GroupNotEmptyException.class), "a group with members is not moved");
                check(fails(admin.deleteShareGroups(List.of(group)).all(),
                    GroupNotEmptyException.class), "a group with members is not deleted");
            }
            check(start(admin, group, partition) == 10, "it stands at the end");
            check(lag(admin, group, partition) == 0, "nothing is left");
            check(listing(admin, group).groupState().orElseThrow() == GroupState.EMPTY, "empty");
            admin.alterShareGroupOffsets(group, Map.of(partition, 4L)).all()
                .get(30, TimeUnit.SECONDS);
            check(start(admin, group, partition) == 4, "it was moved");
            check(lag(admin, group, partition) == 6, "six are left");
            admin.deleteShareGroupOffsets(group, java.util.Set.of(topic)).all()
                .get(30, TimeUnit.SECONDS);
            check(offsets(admin, group, partition) == null, "its offsets were deleted");
            admin.alterShareGroupOffsets(group, Map.of(partition, 2L)).all()
                .get(30, TimeUnit.SECONDS);
            admin.deleteShareGroups(List.of(group)).all().get(30, TimeUnit.SECONDS);
            check(listing(admin, group) == null, "it was deleted");
            check(fails(admin.deleteShareGroups(List.of(group)).all(),
                GroupIdNotFoundException.class), "a deleted group is unknown");
        }
    }

    static GroupListing listing(Admin admin, String group) throws Exception {
        for (GroupListing one : admin.listGroups().all().get(30, TimeUnit.SECONDS)) {
            if (one.groupId().equals(group)) {
                return one;
            }
        }
        return null;
    }

    static SharePartitionOffsetInfo offsets(Admin admin, String group, TopicPartition partition)
            throws Exception {
        try {
            return admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec()))
                .partitionsToOffsetInfo(group).get(30, TimeUnit.SECONDS).get(partition);
        } catch (java.util.concurrent.ExecutionException e) {
            if (e.getCause() instanceof GroupIdNotFoundException) {
                return null;
            }
            throw e;
        }
    }

    static long start(Admin admin, String group, TopicPartition partition) throws Exception {
        return offsets(admin, group, partition).startOffset();
    }

    static long lag(Admin admin, String group, TopicPartition partition) throws Exception {
        return offsets(admin, group, partition).lag().orElse(-1L);
    }

    static boolean fails(org.apache.kafka.common.KafkaFuture<?> future, Class<?> kind)
            throws Exception {
        try {
            future.get(30, TimeUnit.SECONDS);
            return false;
        } catch (java.util.concurrent.ExecutionException e) {
            return kind.isInstance(e.getCause());
        }
    }
}
