import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.errors.*;

/** What Kafka's consumers of the new group protocol are promised (KIP-848). */
public final class ConsumerGroupScenarios {
    public static void main(String[] args) throws Exception {
        Scenarios.bootstrap = args[0];
        String[] rest = Arrays.copyOfRange(args, 2, args.length);
        ConsumerGroupScenarios.class.getDeclaredMethod(args[1], String[].class)
            .invoke(null, (Object) rest);
    }

    /** A consumer that polls in a thread of its own. */
    static final class Member implements AutoCloseable {
        final KafkaConsumer<byte[], byte[]> consumer;
        final AtomicBoolean isStopped = new AtomicBoolean();
        final Thread thread;
        volatile Set<TopicPartition> owned = Set.of();
        volatile int received;
        volatile int revocations;
        volatile Throwable failure;

        Member(String group, Object topics, String... settings) {
            String[] all = Arrays.copyOf(settings, settings.length + 2);
            all[settings.length] = "group.protocol";
            all[settings.length + 1] = "consumer";
            consumer = Scenarios.consumer(group, all);
            ConsumerRebalanceListener listener = new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsAssigned(java.util.Collection<TopicPartition> added) {
                    Set<TopicPartition> now = new HashSet<>(owned);
                    now.addAll(added);
                    owned = now;
                }

                @Override
                public void onPartitionsRevoked(java.util.Collection<TopicPartition> removed) {
                    Set<TopicPartition> now = new HashSet<>(owned);
                    now.removeAll(removed);
                    owned = now;
                    revocations += removed.size();
                }
            };
            if (topics instanceof SubscriptionPattern pattern) {
                consumer.subscribe(pattern, listener);
            } else {
                consumer.subscribe(List.of((String) topics), listener);
            }
            thread = new Thread(this::run);
            thread.start();
        }

        void run() {
            try {
                while (!isStopped.get()) {
                    ConsumerRecords<byte[], byte[]> found = consumer.poll(Duration.ofMillis(50));
                    received += found.count();
                    if (found.count() > 0) {
                        consumer.commitSync();
                    }
                }
            } catch (Throwable error) {
                failure = error;
            } finally {
                consumer.close();
            }
        }

        @Override
        public void close() throws Exception {
            isStopped.set(true);
            thread.join();
        }
    }

    static boolean isShared(int partitions, Member... members) {
        Set<TopicPartition> all = new HashSet<>();
        int sum = 0;
        for (Member member : members) {
            Scenarios.check(member.failure == null, "a member failed: " + member.failure);
            all.addAll(member.owned);
            sum += member.owned.size();
        }
        return sum == partitions && all.size() == partitions;
    }

    static void members(String[] args) throws Exception {
        String topic = args[0];
        try (Admin admin = Scenarios.admin()) {
            Scenarios.createTopic(admin, topic, 6);
        }
        Scenarios.write(topic, 6, 60);
        try (Member one = new Member("g-" + topic, topic)) {
            Scenarios.waitUntil(() -> isShared(6, one) && one.received == 60, "one member reads all");
            try (Member two = new Member("g-" + topic, topic, "group.remote.assignor", "range")) {
                Scenarios.waitUntil(
                    () -> isShared(6, one, two) && two.owned.size() == 3, "two members share");
                Scenarios.write(topic, 6, 60);
                Scenarios.waitUntil(
                    () -> one.received + two.received == 120, "each record was read once");
            }
            Scenarios.waitUntil(() -> isShared(6, one), "the other has left");
            Scenarios.write(topic, 6, 60);
            Scenarios.waitUntil(() -> one.received >= 90, "all are read again by one");
        }
    }

    static void patterns(String[] args) throws Exception {
        String topic = args[0];
        try (Admin admin = Scenarios.admin()) {
            Scenarios.createTopic(admin, topic + "-a", 2);
            try (Member member = new Member(
                    "g-" + topic, new SubscriptionPattern(topic + "-[ab]"))) {
                Scenarios.waitUntil(() -> isShared(2, member), "the topic that is there");
                Scenarios.createTopic(admin, topic + "-b", 3);
                Scenarios.createTopic(admin, topic + "-bb", 3);
                Scenarios.waitUntil(() -> isShared(5, member), "the topic that came");
            }
        }
        try (KafkaConsumer<byte[], byte[]> consumer =
                 Scenarios.consumer("g2-" + topic, "group.protocol", "consumer")) {
            consumer.subscribe(new SubscriptionPattern("(a"));
            Scenarios.refused(InvalidRegularExpression.class, () -> {
                for (int i = 0; i < 300; i++) {
                    consumer.poll(Duration.ofMillis(100));
                }
                return null;
            });
        }
    }

    static void staticMembers(String[] args) throws Exception {
        String topic = args[0];
        String group = "g-" + topic;
        try (Admin admin = Scenarios.admin()) {
            Scenarios.createTopic(admin, topic, 4);
        }
        try (Member one = new Member(group, topic, "group.instance.id", "one")) {
            Set<TopicPartition> had;
            int revoked;
            try (Member two = new Member(group, topic, "group.instance.id", "two")) {
                Scenarios.waitUntil(
                    () -> isShared(4, one, two) && two.owned.size() == 2, "two share");
                had = two.owned;
                try (Member rival = new Member(group, topic, "group.instance.id", "two")) {
                    Scenarios.waitUntil(() -> rival.failure != null, "a rival is refused");
                    Scenarios.check(
                        rival.failure instanceof UnreleasedInstanceIdException,
                        "a rival is told why: " + rival.failure);
                }
                revoked = one.revocations;
            }
            try (Member two = new Member(group, topic, "group.instance.id", "two")) {
                Set<TopicPartition> expected = had;
                Scenarios.waitUntil(() -> two.owned.equals(expected), "it has what it had");
                Scenarios.same(revoked, one.revocations, "partitions that the other gave up");
            }
        }
    }

    static void administration(String[] args) throws Exception {
        String topic = args[0];
        String group = "g-" + topic;
        TopicPartition first = new TopicPartition(topic, 0);
        TopicPartition second = new TopicPartition(topic, 1);
        try (Admin admin = Scenarios.admin()) {
            Scenarios.createTopic(admin, topic, 2);
            Scenarios.write(topic, 2, 20);
            try (Member member = new Member(
                    group, topic, "group.instance.id", "static-1", "client.id", "me",
                    "client.rack", "r")) {
                Scenarios.waitUntil(() -> member.received == 20, "it reads");
                ConsumerGroupDescription told = Scenarios.get(
                    admin.describeConsumerGroups(List.of(group)).describedGroups().get(group));
                Scenarios.same(GroupType.CONSUMER, told.type(), "type");
                Scenarios.same(GroupState.STABLE, told.groupState(), "state");
                Scenarios.same("uniform", told.partitionAssignor(), "assignor");
                Scenarios.same(Optional.of(1), told.groupEpoch(), "group epoch");
                Scenarios.same(Optional.of(1), told.targetAssignmentEpoch(), "assignment epoch");
                MemberDescription seen = told.members().iterator().next();
                Scenarios.same("me", seen.clientId(), "client id");
                Scenarios.same(Optional.of("static-1"), seen.groupInstanceId(), "instance id");
                Scenarios.same(Optional.of(1), seen.memberEpoch(), "member epoch");
                Scenarios.same(Optional.of(true), seen.upgraded(), "speaks the new protocol");
                Scenarios.same(
                    Set.of(first, second), seen.assignment().topicPartitions(), "assignment");
                Scenarios.same(
                    Set.of(first, second),
                    seen.targetAssignment().get().topicPartitions(), "target assignment");
                List<String> listed = new ArrayList<>();
                ListGroupsOptions consumers =
                    new ListGroupsOptions().withTypes(Set.of(GroupType.CONSUMER));
                Scenarios.get(admin.listGroups(consumers).all())
                    .forEach(one -> listed.add(one.groupId()));
                Scenarios.check(listed.contains(group), "listed by its type");
                Scenarios.refused(GroupNotEmptyException.class, () -> Scenarios.get(
                    admin.deleteConsumerGroups(List.of(group)).all()));
                Scenarios.refused(GroupSubscribedToTopicException.class, () -> Scenarios.get(
                    admin.deleteConsumerGroupOffsets(group, Set.of(first)).partitionResult(first)));
                Scenarios.refused(UnknownMemberIdException.class, () -> Scenarios.get(
                    admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(1)))
                        .partitionResult(first)));
            }
            Scenarios.get(admin.removeMembersFromConsumerGroup(group,
                new RemoveMembersFromConsumerGroupOptions(
                    Set.of(new MemberToRemove("static-1")))).all());
            Scenarios.same(GroupState.EMPTY, Scenarios.get(
                admin.describeConsumerGroups(List.of(group)).describedGroups().get(group))
                .groupState(), "state without members");
            Scenarios.get(admin.alterConsumerGroupOffsets(group, Map.of(
                first, new OffsetAndMetadata(3, "altered"))).all());
            Map<TopicPartition, OffsetAndMetadata> offsets = Scenarios.get(
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
            Scenarios.same(3L, offsets.get(first).offset(), "offset as altered");
            Scenarios.same(10L, offsets.get(second).offset(), "the other partition's offset");
            Scenarios.get(admin.deleteConsumerGroups(List.of(group)).all());
            Scenarios.refused(GroupIdNotFoundException.class, () -> Scenarios.get(
                admin.describeConsumerGroups(List.of(group)).describedGroups().get(group)));
        }
    }
}
