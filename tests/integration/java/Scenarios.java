import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.serialization.*;

/** What Kafka's own Java clients are promised. Each scenario throws where a promise is broken. */
public final class Scenarios {
    static String bootstrap;
    static final HexFormat HEX = HexFormat.of();
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        String[] rest = Arrays.copyOfRange(args, 2, args.length);
        Scenarios.class.getDeclaredMethod(args[1], String[].class).invoke(null, (Object) rest);
    }

    // --- what the scenarios share --------------------------------------------------------------

    static void check(boolean isTrue, String what) {
        if (!isTrue) {
            throw new AssertionError(what);
        }
    }

    static void same(Object expected, Object found, String what) {
        check(expected.equals(found), what + ": " + expected + " was promised, " + found + " came");
    }

    static <T> T get(Future<T> future) throws Exception {
        return future.get(30, TimeUnit.SECONDS);
    }

    static void refused(Class<?> kind, Callable<?> call) throws Exception {
        Object came;
        try {
            came = call.call();
        } catch (Throwable error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            if (kind.isInstance(cause)) {
                return;
            }
            throw new AssertionError(kind.getSimpleName() + " was promised", cause);
        }
        throw new AssertionError(kind.getSimpleName() + " was promised, but it worked: " + came);
    }

    static Admin admin() {
        return Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    static void createTopic(Admin admin, String topic, int partitions) throws Exception {
        get(admin.createTopics(List.of(new NewTopic(topic, partitions, (short) -1))).all());
    }

    static KafkaProducer<byte[], byte[]> producer(String... settings) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        for (int i = 0; i < settings.length; i += 2) {
            properties.put(settings[i], settings[i + 1]);
        }
        return new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(String group, String... settings) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        if (group != null) {
            properties.put("group.id", group);
        }
        for (int i = 0; i < settings.length; i += 2) {
            properties.put(settings[i], settings[i + 1]);
        }
        return new KafkaConsumer<>(
            properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static void write(String topic, int partitions, int count) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer("linger.ms", "5")) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                sent.add(producer.send(new ProducerRecord<>(
                    topic, i % partitions, 1_000_000L + i, null, ("v" + i).getBytes())));
            }
            for (Future<RecordMetadata> future : sent) {
                get(future);
            }
        }
    }

    static List<ConsumerRecord<byte[], byte[]>> read(KafkaConsumer<byte[], byte[]> consumer, int n) {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        long deadline = System.nanoTime() + 90_000_000_000L;
        while (found.size() < n) {
            check(System.nanoTime() < deadline, found.size() + " of " + n + " records came");
            consumer.poll(Duration.ofMillis(200)).forEach(found::add);
        }
        return found;
    }

    static void waitUntil(Supplier<Boolean> isTrue, String what) {
        long deadline = System.nanoTime() + 90_000_000_000L;
        while (!isTrue.get()) {
            check(System.nanoTime() < deadline, "waited in vain for " + what);
        }
    }

    // --- one side of a round trip --------------------------------------------------------------

    static byte[] bytes(JsonNode node) {
        return node.isNull() ? null : HEX.parseHex(node.asText());
    }

    static String hex(byte[] data) {
        return data == null ? null : HEX.formatHex(data);
    }

    static void produce(String[] args) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer("compression.type", args[1])) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 2; i < args.length; i++) {
                JsonNode line = JSON.readTree(args[i]);
                ProducerRecord<byte[], byte[]> record =
                    new ProducerRecord<>(args[0], 0, bytes(line.get(0)), bytes(line.get(1)));
                line.get(2).forEach(
                    pair -> record.headers().add(pair.get(0).asText(), bytes(pair.get(1))));
                sent.add(producer.send(record));
            }
            for (Future<RecordMetadata> future : sent) {
                get(future);
            }
        }
    }

    static void consume(String[] args) throws Exception {
        String isolation = args.length > 2 ? args[2] : "read_uncommitted";
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(null, "isolation.level", isolation)) {
            TopicPartition at = new TopicPartition(args[0], 0);
            consumer.assign(List.of(at));
            consumer.seekToBeginning(List.of(at));
            for (ConsumerRecord<byte[], byte[]> r : read(consumer, Integer.parseInt(args[1]))) {
                List<List<String>> headers = new ArrayList<>();
                for (Header header : r.headers()) {
                    headers.add(Arrays.asList(header.key(), hex(header.value())));
                }
                System.out.println(JSON.writeValueAsString(
                    Arrays.asList(hex(r.key()), hex(r.value()), headers)));
            }
        }
    }

    // --- administration ------------------------------------------------------------------------

    static void topics(String[] args) throws Exception {
        String topic = args[0];
        try (Admin admin = admin()) {
            NewTopic wanted = new NewTopic(topic, 3, (short) 1)
                .configs(Map.of("retention.ms", "1234567", "max.message.bytes", "5000"));
            CreateTopicsResult validated = admin.createTopics(
                List.of(wanted), new CreateTopicsOptions().validateOnly(true));
            same(3, get(validated.numPartitions(topic)), "partitions, validated only");
            check(!get(admin.listTopics().names()).contains(topic), "validated, yet created");
            CreateTopicsResult created = admin.createTopics(List.of(wanted));
            get(created.all());
            same(3, get(created.numPartitions(topic)), "partitions");
            same(1, get(created.replicationFactor(topic)), "replication factor");
            same("1234567", get(created.config(topic)).get("retention.ms").value(), "config");
            Uuid id = get(created.topicId(topic));

            TopicDescription told =
                get(admin.describeTopics(List.of(topic)).topicNameValues().get(topic));
            same(id, told.topicId(), "topic id");
            same(3, told.partitions().size(), "partitions described");
            check(told.partitions().get(2).leader() != null, "a leader");
            same(topic, get(admin.describeTopics(TopicCollection.ofTopicIds(List.of(id)))
                .topicIdValues().get(id)).name(), "described by id");

            refused(TopicExistsException.class, () -> get(admin.createTopics(
                List.of(wanted)).all()));
            refused(InvalidTopicException.class, () -> get(admin.createTopics(
                List.of(new NewTopic("../escape", 1, (short) 1))).all()));
            refused(InvalidReplicationFactorException.class, () -> get(admin.createTopics(
                List.of(new NewTopic(topic + "-rf", 1, (short) 3))).all()));
            refused(InvalidPartitionsException.class, () -> get(admin.createTopics(
                List.of(new NewTopic(topic + "-p", 0, (short) 1))).all()));
            refused(InvalidConfigurationException.class, () -> get(admin.createTopics(
                List.of(new NewTopic(topic + "-c", 1, (short) 1)
                    .configs(Map.of("retention.ms", "soon")))).all()));

            get(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all());
            same(5, get(admin.describeTopics(List.of(topic)).topicNameValues().get(topic))
                .partitions().size(), "partitions after raising them");
            refused(InvalidPartitionsException.class, () -> get(admin.createPartitions(
                Map.of(topic, NewPartitions.increaseTo(2))).all()));
            refused(UnknownTopicOrPartitionException.class, () -> get(admin.createPartitions(
                Map.of(topic + "-absent", NewPartitions.increaseTo(2))).all()));

            createTopic(admin, topic + "-second", 1);
            Uuid second = get(admin.describeTopics(List.of(topic + "-second")).topicNameValues()
                .get(topic + "-second")).topicId();
            get(admin.deleteTopics(TopicCollection.ofTopicIds(List.of(second))).all());
            get(admin.deleteTopics(List.of(topic)).all());
            Set<String> names = get(admin.listTopics().names());
            check(!names.contains(topic) && !names.contains(topic + "-second"), "deleted");
            refused(UnknownTopicOrPartitionException.class, () -> get(
                admin.deleteTopics(List.of(topic)).all()));
            refused(UnknownTopicIdException.class, () -> get(admin.deleteTopics(
                TopicCollection.ofTopicIds(List.of(Uuid.randomUuid()))).all()));
            refused(UnknownTopicOrPartitionException.class, () -> get(admin.describeTopics(
                List.of(topic)).allTopicNames()));
        }
    }

    static ConfigEntry entry(Admin admin, ConfigResource resource, String name) throws Exception {
        return get(admin.describeConfigs(List.of(resource)).all()).get(resource).get(name);
    }

    static void alter(Admin admin, ConfigResource resource, AlterConfigOp.OpType type,
            String name, String value) throws Exception {
        get(admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry(name, value), type)))).all());
    }

    static void quotas(String[] args) throws Exception {
        ClientQuotaEntity entity = new ClientQuotaEntity(
            Map.of(ClientQuotaEntity.USER, "ANONYMOUS", ClientQuotaEntity.CLIENT_ID, args[0]));
        HashMap<String, String> everyone = new HashMap<>();
        everyone.put(ClientQuotaEntity.CLIENT_ID, null);
        ClientQuotaEntity rest = new ClientQuotaEntity(everyone);
        ClientQuotaFilter filter = ClientQuotaFilter.contains(
            List.of(ClientQuotaFilterComponent.ofEntity(ClientQuotaEntity.CLIENT_ID, args[0])));
        try (Admin admin = admin()) {
            get(admin.alterClientQuotas(List.of(
                new ClientQuotaAlteration(entity, List.of(
                    new ClientQuotaAlteration.Op("producer_byte_rate", 1e9),
                    new ClientQuotaAlteration.Op("request_percentage", 90.5))),
                new ClientQuotaAlteration(rest, List.of(
                    new ClientQuotaAlteration.Op("consumer_byte_rate", 1e9))))).all());
            same(Map.of(entity, Map.of("producer_byte_rate", 1e9, "request_percentage", 90.5)),
                get(admin.describeClientQuotas(filter).entities()), "the quotas of a client");
            check(get(admin.describeClientQuotas(ClientQuotaFilter.all()).entities())
                .containsKey(rest), "the default is listed");
            refused(InvalidRequestException.class, () -> get(admin.alterClientQuotas(List.of(
                new ClientQuotaAlteration(entity, List.of(
                    new ClientQuotaAlteration.Op("planet_rate", 1.0))))).all()));
            get(admin.alterClientQuotas(List.of(
                new ClientQuotaAlteration(entity, List.of(
                    new ClientQuotaAlteration.Op("producer_byte_rate", null),
                    new ClientQuotaAlteration.Op("request_percentage", null))),
                new ClientQuotaAlteration(rest, List.of(
                    new ClientQuotaAlteration.Op("consumer_byte_rate", null))))).all());
            check(get(admin.describeClientQuotas(filter).entities()).isEmpty(), "removed");
        }
    }

    static void configs(String[] args) throws Exception {
        String topic = args[0];
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        try (Admin admin = admin()) {
            createTopic(admin, topic, 1);
            ConfigEntry entry = entry(admin, resource, "retention.ms");
            check(entry.isDefault(), "a default");
            same("604800000", entry.value(), "default of retention.ms");
            same(ConfigEntry.ConfigType.LONG, entry.type(), "type of retention.ms");
            alter(admin, resource, AlterConfigOp.OpType.SET, "retention.ms", "1000000");
            entry = entry(admin, resource, "retention.ms");
            same("1000000", entry.value(), "retention.ms after it was set");
            same(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, entry.source(), "source");
            alter(admin, resource, AlterConfigOp.OpType.APPEND, "cleanup.policy", "compact");
            same(Set.of("delete", "compact"), Set.of(entry(admin, resource, "cleanup.policy")
                .value().split(",")), "cleanup.policy after an append");
            alter(admin, resource, AlterConfigOp.OpType.SUBTRACT, "cleanup.policy", "delete");
            same("compact", entry(admin, resource, "cleanup.policy").value(), "after a subtract");
            alter(admin, resource, AlterConfigOp.OpType.DELETE, "retention.ms", null);
            check(entry(admin, resource, "retention.ms").isDefault(), "a default again");
            same("compact", entry(admin, resource, "cleanup.policy").value(), "the other stays");
            refused(InvalidConfigurationException.class, () -> {
                alter(admin, resource, AlterConfigOp.OpType.SET, "retention.ms", "-7");
                return null;
            });
            refused(InvalidConfigurationException.class, () -> {
                alter(admin, resource, AlterConfigOp.OpType.SET, "no.such.config", "1");
                return null;
            });
            refused(InvalidConfigurationException.class, () -> {
                alter(admin, resource, AlterConfigOp.OpType.APPEND, "retention.ms", "1");
                return null;
            });
            get(admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(
                new ConfigEntry("retention.ms", "5"), AlterConfigOp.OpType.SET))),
                new AlterConfigsOptions().validateOnly(true)).all());
            check(entry(admin, resource, "retention.ms").isDefault(), "validated only");
            Config told = get(admin.describeConfigs(List.of(resource),
                new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true))
                .all()).get(resource);
            check(!told.get("cleanup.policy").synonyms().isEmpty(), "synonyms");
            check(told.get("cleanup.policy").documentation() != null, "documentation");
            refused(UnknownTopicOrPartitionException.class, () -> get(admin.describeConfigs(List.of(
                new ConfigResource(ConfigResource.Type.TOPIC, topic + "-absent"))).all()));

            String node = get(admin.describeCluster().controller()).idString();
            ConfigResource self = new ConfigResource(ConfigResource.Type.BROKER, node);
            same(node, entry(admin, self, "node.id").value(), "the broker's node.id");
        }
    }

    static void cluster(String[] args) throws Exception {
        try (Admin admin = admin()) {
            DescribeClusterResult told = admin.describeCluster(
                new DescribeClusterOptions().includeAuthorizedOperations(true));
            check(get(told.clusterId()).length() > 10, "a cluster id");
            same(1, get(told.nodes()).size(), "brokers");
            Node node = get(told.nodes()).iterator().next();
            same(bootstrap, node.host() + ":" + node.port(), "the broker's address");
            check(get(told.authorizedOperations()).contains(AclOperation.CREATE), "operations");
            same(node.id(), get(told.controller()).id(), "the controller");
            System.out.println(get(told.clusterId()));
        }
    }

    static long offset(Admin admin, TopicPartition at, OffsetSpec spec) throws Exception {
        return get(admin.listOffsets(Map.of(at, spec)).partitionResult(at)).offset();
    }

    static void offsets(String[] args) throws Exception {
        String topic = args[0];
        TopicPartition at = new TopicPartition(topic, 0);
        try (Admin admin = admin()) {
            createTopic(admin, topic, 1);
            same(-1L, offset(admin, at, OffsetSpec.maxTimestamp()), "max timestamp of nothing");
            same(-1L, offset(admin, at, OffsetSpec.forTimestamp(0)), "by timestamp of nothing");
            write(topic, 1, 100);
            write(topic, 1, 50); // Timestamps begin anew: the largest is at 99.
            same(0L, offset(admin, at, OffsetSpec.earliest()), "earliest");
            same(150L, offset(admin, at, OffsetSpec.latest()), "latest");
            same(99L, offset(admin, at, OffsetSpec.maxTimestamp()), "max timestamp");
            same(37L, offset(admin, at, OffsetSpec.forTimestamp(1_000_037)), "by timestamp");
            same(0L, offset(admin, at, OffsetSpec.forTimestamp(7)), "before all timestamps");
            same(-1L, offset(admin, at, OffsetSpec.forTimestamp(1_000_100)), "after them");
            same(1_000_037L, get(admin.listOffsets(Map.of(at, OffsetSpec.forTimestamp(1_000_037)))
                .partitionResult(at)).timestamp(), "the timestamp found");

            same(20L, get(admin.deleteRecords(Map.of(at, RecordsToDelete.beforeOffset(20)))
                .lowWatermarks().get(at)).lowWatermark(), "low watermark");
            same(20L, offset(admin, at, OffsetSpec.earliest()), "earliest after deleting records");
            same(20L, offset(admin, at, OffsetSpec.forTimestamp(7)), "by timestamp after that");
            refused(org.apache.kafka.common.errors.OffsetOutOfRangeException.class, () -> get(admin.deleteRecords(
                Map.of(at, RecordsToDelete.beforeOffset(1000))).all()));
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(null)) {
                consumer.assign(List.of(at));
                same(20L, consumer.beginningOffsets(List.of(at)).get(at), "beginning");
                same(150L, consumer.endOffsets(List.of(at)).get(at), "end");
                same(37L, consumer.offsetsForTimes(Map.of(at, 1_000_037L)).get(at).offset(),
                    "offset for time");
                check(consumer.offsetsForTimes(Map.of(at, 9_000_000L)).get(at) == null, "null");
                consumer.seek(at, 63); // In the middle of a batch.
                ConsumerRecord<byte[], byte[]> first = read(consumer, 1).get(0);
                same(63L, first.offset(), "a seek into a batch");
                same("v63", new String(first.value()), "its value");
                same(1_000_063L, first.timestamp(), "its timestamp");
                consumer.seek(at, 3); // Deleted: earliest is where to go on.
                same(20L, read(consumer, 1).get(0).offset(), "after an offset out of range");
            }
        }
    }

    // --- groups --------------------------------------------------------------------------------

    static void groups(String[] args) throws Exception {
        String topic = args[0];
        String group = "g-" + topic;
        TopicPartition first = new TopicPartition(topic, 0);
        TopicPartition second = new TopicPartition(topic, 1);
        try (Admin admin = admin()) {
            createTopic(admin, topic, 2);
            write(topic, 2, 20);
            try (KafkaConsumer<byte[], byte[]> consumer =
                     consumer(group, "group.instance.id", "static-1", "client.id", "me")) {
                consumer.subscribe(List.of(topic));
                read(consumer, 20);
                Map<TopicPartition, OffsetAndMetadata> commits = Map.of(
                    first, new OffsetAndMetadata(7, Optional.of(0), "metadata ✓ \" \n"),
                    second, new OffsetAndMetadata(10));
                consumer.commitSync(commits);
                same(commits, consumer.committed(Set.of(first, second)), "as committed");
                consumer.commitSync(Map.of(first, new OffsetAndMetadata(8, "")));
                same("", consumer.committed(Set.of(first)).get(first).metadata(), "no metadata");
                refused(KafkaException.class, () -> {
                    consumer.commitSync(Map.of(first, new OffsetAndMetadata(8, "x".repeat(5000))));
                    return null;
                });

                ConsumerGroupDescription told =
                    get(admin.describeConsumerGroups(List.of(group)).describedGroups().get(group));
                same(GroupState.STABLE, told.groupState(), "state");
                same("range", told.partitionAssignor(), "assignor");
                MemberDescription member = told.members().iterator().next();
                same("me", member.clientId(), "client id");
                same(Optional.of("static-1"), member.groupInstanceId(), "instance id");
                same(Set.of(first, second), member.assignment().topicPartitions(), "assignment");
                check(get(admin.listGroups().all()).stream().anyMatch(
                    listing -> listing.groupId().equals(group)), "listed");
                check(get(admin.listConsumerGroups(new ListConsumerGroupsOptions()
                    .inGroupStates(Set.of(GroupState.EMPTY))).all()).stream().noneMatch(
                    listing -> listing.groupId().equals(group)), "not listed as empty");

                refused(GroupNotEmptyException.class, () -> get(
                    admin.deleteConsumerGroups(List.of(group)).all()));
                refused(GroupSubscribedToTopicException.class, () -> get(
                    admin.deleteConsumerGroupOffsets(group, Set.of(first)).partitionResult(first)));
                refused(UnknownMemberIdException.class, () -> get(
                    admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(1)))
                        .partitionResult(first)));
            }
            // A static member that closes stays until somebody removes it.
            same(1, get(admin.describeConsumerGroups(List.of(group)).describedGroups().get(group))
                .members().size(), "members after a static one closed");
            get(admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions(
                Set.of(new MemberToRemove("static-1")))).all());
            same(GroupState.EMPTY, get(admin.describeConsumerGroups(List.of(group))
                .describedGroups().get(group)).groupState(), "state without members");

            get(admin.alterConsumerGroupOffsets(group, Map.of(
                first, new OffsetAndMetadata(3, "altered"))).all());
            Map<TopicPartition, OffsetAndMetadata> offsets = get(
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
            same(3L, offsets.get(first).offset(), "offset as altered");
            same("altered", offsets.get(first).metadata(), "metadata as altered");
            same(10L, offsets.get(second).offset(), "the other partition's offset");
            get(admin.deleteConsumerGroupOffsets(group, Set.of(second)).all());
            same(Set.of(first), get(admin.listConsumerGroupOffsets(group)
                .partitionsToOffsetAndMetadata()).keySet(), "offsets after deleting one");
            Map<String, Map<TopicPartition, OffsetAndMetadata>> several =
                get(admin.listConsumerGroupOffsets(Map.of(
                    group, new ListConsumerGroupOffsetsSpec(),
                    group + "-absent", new ListConsumerGroupOffsetsSpec())).all());
            same(Set.of(first), several.get(group).keySet(), "several groups at once");
            check(several.get(group + "-absent").isEmpty(), "a group that is not there");

            get(admin.deleteConsumerGroups(List.of(group)).all());
            refused(GroupIdNotFoundException.class, () -> get(
                admin.deleteConsumerGroups(List.of(group)).all()));
            refused(GroupIdNotFoundException.class, () -> get(
                admin.describeConsumerGroups(List.of(group)).describedGroups().get(group)));
            check(get(admin.listGroups().all()).stream().noneMatch(
                listing -> listing.groupId().equals(group)), "listed after it was deleted");
        }
    }

    /** A consumer of a group that is polled by hand, and what it was told. */
    static final class Member implements ConsumerRebalanceListener, AutoCloseable {
        final KafkaConsumer<byte[], byte[]> consumer;
        final List<String> values = new ArrayList<>();
        int revocations;

        Member(String topic, String group, String... settings) {
            consumer = consumer(group, settings);
            consumer.subscribe(List.of(topic), this);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            revocations += partitions.isEmpty() ? 0 : 1;
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {}

        void poll() {
            consumer.poll(Duration.ofMillis(20)).forEach(
                record -> values.add(new String(record.value())));
            if (!consumer.assignment().isEmpty()) {
                try {
                    consumer.commitSync();
                } catch (RebalanceInProgressException | CommitFailedException again) {
                    // The next poll joins again.
                }
            }
        }

        @Override
        public void close() {
            consumer.close(CloseOptions.timeout(Duration.ofSeconds(10)));
        }
    }

    static void settle(List<Member> members, int partitions) {
        long deadline = System.nanoTime() + 120_000_000_000L;
        for (int quiet = 0; quiet < 5; ) {
            members.forEach(Member::poll);
            int assigned = 0;
            Set<TopicPartition> all = new HashSet<>();
            int smallest = Integer.MAX_VALUE;
            for (Member member : members) {
                Set<TopicPartition> own = member.consumer.assignment();
                assigned += own.size();
                smallest = Math.min(smallest, own.size());
                all.addAll(own);
            }
            boolean isSettled = assigned == partitions && all.size() == partitions
                && smallest >= partitions / members.size();
            quiet = isSettled ? quiet + 1 : 0;
            check(System.nanoTime() < deadline, "the group does not settle: " + assigned
                + " of " + partitions + " partitions assigned to " + members.size());
        }
    }

    static void assignor(String[] args) throws Exception {
        String topic = args[0];
        String group = "g-" + topic;
        String[] settings = {"partition.assignment.strategy",
            "org.apache.kafka.clients.consumer." + args[1], "heartbeat.interval.ms", "100"};
        boolean isCooperative = args[1].startsWith("Cooperative");
        List<Member> members = new ArrayList<>();
        Set<String> values = new TreeSet<>();
        int count = 0;
        try (Admin admin = admin()) {
            createTopic(admin, topic, 6);
            write(topic, 6, 600);
            for (int i = 1; i <= 3; i++) {
                members.add(new Member(topic, group, settings));
                settle(members, 6);
            }
            if (isCooperative) {
                // The first gave up what the others got, never all that it had.
                Member leader = members.get(0);
                int before = leader.revocations;
                Member gone = members.remove(2);
                gone.close();
                values.addAll(gone.values);
                count += gone.values.size();
                settle(members, 6);
                same(before, leader.revocations, "revocations when another leaves");
            } else {
                Member gone = members.remove(0);
                gone.close();
                values.addAll(gone.values);
                count += gone.values.size();
                settle(members, 6);
            }
            write(topic, 6, 60);
            List<Member> last = members;
            int before = count;
            waitUntil(() -> {
                last.forEach(Member::poll);
                return before + last.stream().mapToInt(member -> member.values.size()).sum() >= 660;
            }, "660 records");
            for (Member member : members) {
                values.addAll(member.values);
                member.poll();
            }
            same(600, values.size(), "different values read");
            Map<TopicPartition, OffsetAndMetadata> offsets = get(
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
            same(660L, offsets.values().stream().mapToLong(OffsetAndMetadata::offset).sum(),
                "offsets committed");
        } finally {
            members.forEach(Member::close);
        }
    }

    static void staticMembers(String[] args) throws Exception {
        String topic = args[0];
        String group = "g-" + topic;
        try (Admin admin = admin()) {
            createTopic(admin, topic, 4);
            write(topic, 4, 40);
            Member one = new Member(topic, group, "group.instance.id", "one");
            Member two = new Member(topic, group, "group.instance.id", "two");
            settle(List.of(one, two), 4);
            Set<TopicPartition> ofTwo = Set.copyOf(two.consumer.assignment());
            int generation = one.consumer.groupMetadata().generationId();
            int revocations = one.revocations;
            two.close();
            two = new Member(topic, group, "group.instance.id", "two");
            settle(List.of(one, two), 4);
            same(ofTwo, two.consumer.assignment(), "what a static member gets back");
            same(generation, one.consumer.groupMetadata().generationId(), "generation");
            same(revocations, one.revocations, "revocations of the other");

            Member rival = new Member(topic, group, "group.instance.id", "two");
            settle(List.of(one, rival), 4);
            Member fenced = two;
            refused(FencedInstanceIdException.class, () -> {
                for (int i = 0; i < 400; i++) {
                    fenced.poll();
                }
                return null;
            });
            two.close();
            rival.close();
            one.close();
        }
    }

    static void administration(String[] args) throws Exception {
        String topic = args[0];
        TopicPartition at = new TopicPartition(topic, 0);
        TopicPartition missing = new TopicPartition(topic, 9);
        try (Admin admin = admin()) {
            createTopic(admin, topic, 2);
            Node self = get(admin.describeCluster().controller());
            refused(ElectionNotNeededException.class, () -> get(admin.electLeaders(
                ElectionType.PREFERRED, Set.of(at)).partitions()).get(at).map(error -> {
                    throw (ApiException) error;
                }));
            Map<TopicPartition, Optional<Throwable>> elected = get(admin.electLeaders(
                ElectionType.UNCLEAN, Set.of(at, missing)).partitions());
            check(elected.get(at).get() instanceof ElectionNotNeededException, "" + elected);
            check(elected.get(missing).get() instanceof UnknownTopicOrPartitionException,
                "" + elected);
            same(Map.of(), get(admin.electLeaders(ElectionType.PREFERRED, null).partitions()),
                "partitions without a leader");
            NewPartitionReassignment here = new NewPartitionReassignment(List.of(self.id()));
            get(admin.alterPartitionReassignments(Map.of(at, Optional.of(here))).all());
            same(Map.of(), get(admin.listPartitionReassignments().reassignments()), "moves");
            refused(InvalidReplicaAssignmentException.class, () -> get(
                admin.alterPartitionReassignments(Map.of(at, Optional.of(
                    new NewPartitionReassignment(List.of(77))))).all()));
            refused(NoReassignmentInProgressException.class, () -> get(
                admin.alterPartitionReassignments(Map.of(at, Optional.empty())).all()));
            refused(UnknownTopicOrPartitionException.class, () -> get(
                admin.alterPartitionReassignments(Map.of(missing, Optional.of(here))).all()));
            String folder = get(admin.describeLogDirs(List.of(self.id())).allDescriptions())
                .get(self.id()).keySet().iterator().next();
            TopicPartitionReplica replica = new TopicPartitionReplica(topic, 0, self.id());
            get(admin.alterReplicaLogDirs(Map.of(replica, folder)).all());
            refused(LogDirNotFoundException.class, () -> get(
                admin.alterReplicaLogDirs(Map.of(replica, "/other")).all()));
            refused(UnsupportedVersionException.class, () -> get(
                admin.describeMetadataQuorum().quorumInfo()));
            short level = get(admin.describeFeatures().featureMetadata()).finalizedFeatures()
                .get("share.version").maxVersionLevel();
            feature(admin, "share.version", level);
            refused(InvalidUpdateVersionException.class, () -> {
                feature(admin, "share.version", (short) (level + 1));
                return null;
            });
            refused(InvalidUpdateVersionException.class, () -> {
                feature(admin, "metadata.version", (short) 20);
                return null;
            });
            refused(InvalidRequestException.class,
                () -> get(admin.unregisterBroker(self.id()).all()));
            refused(BrokerIdNotRegisteredException.class,
                () -> get(admin.unregisterBroker(77).all()));
            check(get(admin.listConfigResources().all()).contains(
                new ConfigResource(ConfigResource.Type.TOPIC, topic)), "the topic is listed");
        }
    }

    static void feature(Admin admin, String name, short level) throws Exception {
        get(admin.updateFeatures(Map.of(name, new FeatureUpdate(
            level, FeatureUpdate.UpgradeType.UPGRADE)), new UpdateFeaturesOptions()).all());
    }

    /** Prints the id under which the producer's metrics are shown. */
    static void telemetry(String[] args) throws Exception {
        String topic = args[0];
        ConfigResource subscription =
            new ConfigResource(ConfigResource.Type.CLIENT_METRICS, topic);
        try (Admin admin = admin()) {
            createTopic(admin, topic, 1);
            alter(admin, subscription, AlterConfigOp.OpType.SET, "metrics",
                "org.apache.kafka.producer.");
            alter(admin, subscription, AlterConfigOp.OpType.SET, "interval.ms", "100");
            alter(admin, subscription, AlterConfigOp.OpType.SET, "match", "client_id=" + topic);
            check(get(admin.listConfigResources(
                Set.of(ConfigResource.Type.CLIENT_METRICS), new ListConfigResourcesOptions())
                .all()).contains(subscription), "the subscription is listed");
            Properties settings = new Properties();
            settings.put("bootstrap.servers", bootstrap);
            settings.put("client.id", topic);
            try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                    settings, new ByteArraySerializer(), new ByteArraySerializer())) {
                for (int i = 0; i < 10; i++) {
                    producer.send(new ProducerRecord<>(topic, new byte[100])).get();
                    Thread.sleep(50);
                }
                System.out.println(producer.clientInstanceId(Duration.ofSeconds(20)));
            }
            alter(admin, subscription, AlterConfigOp.OpType.DELETE, "metrics", null);
            alter(admin, subscription, AlterConfigOp.OpType.DELETE, "interval.ms", null);
            alter(admin, subscription, AlterConfigOp.OpType.DELETE, "match", null);
        }
    }

    // --- producers -----------------------------------------------------------------------------

    static void disk(String[] args) throws Exception {
        String topic = args[0];
        try (Admin admin = admin()) {
            get(admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1))).all());
            LogDirDescription found = get(admin.describeLogDirs(List.of(0)).allDescriptions())
                .get(0).values().iterator().next();
            check(found.error() == null, "no error");
            check(found.totalBytes().getAsLong() > found.usableBytes().getAsLong(), "sizes");
            check(found.replicaInfos().containsKey(new TopicPartition(topic, 1)), "partitions");
        }
    }

    static void producing(String[] args) throws Exception {
        String topic = args[0];
        try (Admin admin = admin()) {
            get(admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1)
                .configs(Map.of("max.message.bytes", "100000")))).all());
        }
        for (String acks : List.of("all", "1", "0")) {
            try (KafkaProducer<byte[], byte[]> producer =
                     producer("acks", acks, "enable.idempotence", "" + acks.equals("all"))) {
                RecordMetadata sent = get(producer.send(new ProducerRecord<>(
                    topic, 0, 123_456L, "k".getBytes(), acks.getBytes())));
                check(acks.equals("0") == (sent.offset() < 0), "an offset with acks " + acks);
                same(123_456L, sent.timestamp(), "timestamp");
            }
        }
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            // 61 of batch header, less than 20 of record header: fits exactly below the limit.
            get(producer.send(new ProducerRecord<>(topic, new byte[99_900])));
            refused(RecordTooLargeException.class, () -> get(
                producer.send(new ProducerRecord<>(topic, new byte[100_001]))));
            get(producer.send(new ProducerRecord<>(topic, "and on".getBytes())));
            refused(TimeoutException.class, () -> get(producer("max.block.ms", "500").send(
                new ProducerRecord<>(topic, 7, null, "no such partition".getBytes()))));
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(null, "max.partition.fetch.bytes", "10")) {
            TopicPartition at = new TopicPartition(topic, 0);
            consumer.assign(List.of(at));
            consumer.seekToBeginning(List.of(at));
            List<ConsumerRecord<byte[], byte[]>> records = read(consumer, 5);
            same(99_900, records.get(3).value().length, "a batch larger than the fetch asks for");
            same("and on", new String(records.get(4).value()), "the last");
        }
        String compacted = topic + "-compacted";
        try (Admin admin = admin()) {
            get(admin.createTopics(List.of(new NewTopic(compacted, 1, (short) 1)
                .configs(Map.of("cleanup.policy", "compact")))).all());
        }
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            refused(InvalidRecordException.class, () -> get(
                producer.send(new ProducerRecord<>(compacted, "no key".getBytes()))));
            get(producer.send(new ProducerRecord<>(compacted, "k".getBytes(), "v".getBytes())));
        }
    }

    static List<String> committed(String topic, int count) {
        try (KafkaConsumer<byte[], byte[]> consumer =
                 consumer(null, "isolation.level", "read_committed")) {
            TopicPartition at = new TopicPartition(topic, 0);
            consumer.assign(List.of(at));
            consumer.seekToBeginning(List.of(at));
            List<String> values = new ArrayList<>();
            read(consumer, count).forEach(r -> values.add(new String(r.value())));
            consumer.poll(Duration.ofMillis(500)).forEach(r -> values.add(new String(r.value())));
            return values;
        }
    }

    static KafkaProducer<byte[], byte[]> transactional(String id, String... settings) {
        List<String> all = new ArrayList<>(List.of("transactional.id", id));
        all.addAll(Arrays.asList(settings));
        KafkaProducer<byte[], byte[]> producer = producer(all.toArray(new String[0]));
        producer.initTransactions();
        return producer;
    }

    /** Version 2 of transactions: partitions are added by the write, each end bumps the epoch. */
    static void transactions(String[] args) throws Exception {
        String topic = args[0];
        String source = topic + "-source";
        String id = "t-" + topic;
        try (Admin admin = admin()) {
            createTopic(admin, topic, 1);
            createTopic(admin, source, 1);
            same((short) 2, get(admin.describeFeatures().featureMetadata())
                .finalizedFeatures().get("transaction.version").maxVersionLevel(), "version");
        }
        List<String> expected = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = transactional(id)) {
            for (int i = 0; i < 6; i++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, ("v" + i).getBytes()));
                if (i % 3 == 1) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                    expected.add("v" + i);
                }
            }
            producer.beginTransaction();
            producer.abortTransaction();
            producer.beginTransaction();
            producer.commitTransaction();
        }
        same(expected, committed(topic, expected.size()), "what was committed");
        copyInTransactions(source, topic, expected);
        fencing(topic, id, expected);
        hanging(topic, id);
    }

    static void copyInTransactions(String source, String topic, List<String> expected)
            throws Exception {
        String group = "g-" + topic;
        write(source, 1, 20);
        try (KafkaProducer<byte[], byte[]> producer = transactional("copy-" + topic);
             KafkaConsumer<byte[], byte[]> consumer =
                 consumer(group, "isolation.level", "read_committed", "max.poll.records", "7")) {
            consumer.subscribe(List.of(source));
            int copied = 0;
            boolean isAborted = false;
            while (copied < 20) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (ConsumerRecord<byte[], byte[]> r : records) {
                    producer.send(new ProducerRecord<>(topic, r.value()));
                    offsets.put(new TopicPartition(source, 0),
                        new OffsetAndMetadata(r.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (!isAborted) {
                    isAborted = true;
                    producer.abortTransaction();
                    consumer.seekToBeginning(consumer.assignment());
                    continue;
                }
                producer.commitTransaction();
                copied += records.count();
                records.forEach(r -> expected.add(new String(r.value())));
            }
        }
        same(expected, committed(topic, expected.size()), "the copy");
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(group)) {
            TopicPartition at = new TopicPartition(source, 0);
            same(20L, consumer.committed(Set.of(at)).get(at).offset(), "the group's offset");
        }
    }

    static void fencing(String topic, String id, List<String> expected) throws Exception {
        try (KafkaProducer<byte[], byte[]> first = transactional(id)) {
            first.beginTransaction();
            get(first.send(new ProducerRecord<>(topic, "of a zombie".getBytes())));
            try (KafkaProducer<byte[], byte[]> second = transactional(id)) {
                refused(KafkaException.class, () -> {
                    first.commitTransaction();
                    return null;
                });
                second.beginTransaction();
                second.send(new ProducerRecord<>(topic, "of its successor".getBytes()));
                second.commitTransaction();
                expected.add("of its successor");
            }
        }
        same(expected, committed(topic, expected.size()), "what the zombie could not spoil");
    }

    static void hanging(String topic, String id) throws Exception {
        try (Admin admin = admin(); KafkaProducer<byte[], byte[]> producer = transactional(id)) {
            producer.beginTransaction();
            RecordMetadata sent = get(producer.send(new ProducerRecord<>(topic, "x".getBytes())));
            TransactionDescription described =
                get(admin.describeTransactions(List.of(id)).description(id));
            same(TransactionState.ONGOING, described.state(), "the state");
            same(Set.of(new TopicPartition(topic, 0)), described.topicPartitions(), "partitions");
            check(get(admin.listTransactions(new ListTransactionsOptions()
                    .filterStates(List.of(TransactionState.ONGOING))).all()).stream()
                .anyMatch(found -> found.transactionalId().equals(id)), "it is listed");
            ProducerState state = get(admin.describeProducers(List.of(new TopicPartition(topic, 0)))
                .partitionResult(new TopicPartition(topic, 0))).activeProducers().stream()
                .filter(found -> found.currentTransactionStartOffset().isPresent())
                .findFirst().orElseThrow();
            same(sent.offset(), state.currentTransactionStartOffset().getAsLong(), "its start");
            same(described.producerId(), state.producerId(), "its producer");
            producer.abortTransaction();
        }
    }

    static void autoCreation(String[] args) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            same(0L, get(producer.send(new ProducerRecord<>(args[0], "v".getBytes()))).offset(),
                "the first offset of a topic that was not there");
        }
        try (KafkaConsumer<byte[], byte[]> consumer =
                 consumer("g-" + args[0], "allow.auto.create.topics", "false")) {
            check(!consumer.listTopics().containsKey(args[0] + "-absent"), "not there");
            consumer.subscribe(List.of(args[0] + "-absent"));
            for (int i = 0; i < 5; i++) {
                consumer.poll(Duration.ofMillis(100));
            }
            check(!consumer.listTopics().containsKey(args[0] + "-absent"), "not made");
        }
    }

    static void refusedCreation(String[] args) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer("max.block.ms", "1500")) {
            refused(TimeoutException.class,
                () -> get(producer.send(new ProducerRecord<>(args[0], "v".getBytes()))));
        }
    }
}
