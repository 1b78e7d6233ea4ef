import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.BiPredicate;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionChecker;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** RocketMQ's official client for Java: ENDPOINT LANE TOPIC GROUP; see ../client.py. */
public final class RocketClient {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final long WAIT_MS = 40_000;
    private static final Duration INVISIBLE = Duration.ofSeconds(15);
    static ClientConfiguration config;
    static String topic;
    static String group;

    record Seen(String body, int attempt) {}

    public static void main(String[] arguments) throws Exception {
        ClientConfigurationBuilder made = ClientConfiguration.newBuilder().setEndpoints(arguments[0]);
        String key = System.getenv("HEADRACE_ACCESS_KEY");
        if (key != null) {
            String secret = System.getenv("HEADRACE_ACCESS_SECRET");
            made.setCredentialProvider(new StaticSessionCredentialsProvider(key, secret));
        }
        String namespace = System.getenv("HEADRACE_NAMESPACE");
        if (namespace != null) { // by its name: older clients have none
            ClientConfigurationBuilder.class.getMethod("setNamespace", String.class).invoke(made, namespace);
        }
        // On a slow machine, a partition may take longer to move than 3 s, the default.
        if (arguments[1].equals("steady")) made.setRequestTimeout(Duration.ofSeconds(30));
        config = made.build();
        topic = arguments[2];
        group = arguments[3];
        String shown = switch (arguments[1]) {
            case "normal" -> normal();
            case "fifo" -> fifo();
            case "delay" -> delay();
            case "transaction" -> transaction();
            case "filters" -> filters();
            case "sql" -> sql();
            case "priority", "recall", "lite" -> // of its own: older clients have neither
                (String) Class.forName("RecentLanes").getDeclaredMethod(arguments[1]).invoke(null);
            case "steady" -> (String) Class.forName("Steady").getDeclaredMethod("steady").invoke(null);
            case "push" -> push();
            case "push_fifo" -> pushFifo();
            case "dead" -> dead();
            default -> throw new IllegalArgumentException(arguments[1]);
        };
        System.out.println(shown);
        System.out.flush();
        Runtime.getRuntime().halt(0); // what the client still does would take a while
    }

    static Producer producer(TransactionChecker checker) throws Exception {
        return producer(checker, topic);
    }

    static Producer producer(TransactionChecker checker, String... topics) throws Exception {
        ProducerBuilder made = PROVIDER.newProducerBuilder().setClientConfiguration(config).setTopics(topics);
        return (checker == null ? made : made.setTransactionChecker(checker)).build();
    }

    static MessageBuilder message(String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    static SimpleConsumer consumer(String of, String name, String tags) throws Exception {
        return consumer(of, name, new FilterExpression(tags));
    }

    private static SimpleConsumer consumer(String of, String name, FilterExpression filter) throws Exception {
        return PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(config)
            .setConsumerGroup(name)
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(of, filter))
            .build();
    }

    static String plain(Exception error) {
        return String.valueOf(error).replaceAll("[^A-Za-z0-9 .:,=]", " ");
    }

    static List<MessageView> received(SimpleConsumer from, int count) throws Exception {
        return received(from, count, 16);
    }

    static List<MessageView> received(SimpleConsumer from, int count, int atOnce) throws Exception {
        List<MessageView> found = new ArrayList<>();
        long end = System.currentTimeMillis() + WAIT_MS;
        while (found.size() < count && System.currentTimeMillis() < end) {
            for (MessageView one : from.receive(atOnce, INVISIBLE)) {
                found.add(one);
                from.ack(one);
            }
        }
        return found;
    }

    static String body(MessageView one) {
        return StandardCharsets.UTF_8.decode(one.getBody()).toString();
    }

    static List<String> bodies(List<MessageView> messages) {
        return messages.stream().map(RocketClient::body).toList();
    }

    static String list(List<String> texts) {
        return "[" + String.join(", ", texts) + "]";
    }

    static String quoted(List<String> texts) {
        return list(texts.stream().map(one -> '"' + one + '"').toList());
    }

    private static String byGroup(List<String> found) {
        return String.format("{\"a\": %s, \"b\": %s}",
            quoted(found.stream().filter(one -> one.startsWith("a")).toList()),
            quoted(found.stream().filter(one -> one.startsWith("b")).toList()));
    }

    private static String normal() throws Exception {
        Producer sending = producer(null);
        for (int number = 0; number < 10; number++) {
            sending.send(message("" + number).setTag("t").setKeys("k" + number).addProperty("n", "" + number).build());
        }
        List<String> shown = new ArrayList<>();
        for (MessageView one : received(consumer(topic, group, "*"), 10)) {
            shown.add(String.format("[\"%s\", \"%s\", \"%s\", \"%s\", %d]", body(one), one.getTag().get(),
                one.getKeys().iterator().next(), one.getProperties().get("n"), one.getDeliveryAttempt()));
        }
        Collections.sort(shown);
        return "{\"messages\": " + list(shown) + "}";
    }

    private static void sendGroups() throws Exception {
        Producer sending = producer(null);
        for (int number = 0; number < 4; number++) {
            for (String name : List.of("a", "b")) {
                sending.send(message(name + number).setMessageGroup(name).build());
            }
        }
    }

    private static String fifo() throws Exception {
        sendGroups();
        return byGroup(bodies(received(consumer(topic, group, "*"), 8)));
    }

    private static String delay() throws Exception {
        long due = System.currentTimeMillis() + 3_000;
        producer(null).send(message("kept").setDeliveryTimestamp(due).build());
        List<String> found = bodies(received(consumer(topic, group, "*"), 1));
        long late = System.currentTimeMillis() - due;
        return String.format("{\"messages\": %s, \"is_early\": %b, \"is_late\": %b}", quoted(found), late < 0, late > 2_000);
    }

    private static String transaction() throws Exception {
        Producer sending = producer(one -> TransactionResolution.COMMIT);
        for (String text : List.of("committed", "rolled back", "checked")) {
            Transaction begun = sending.beginTransaction();
            sending.send(message(text).build(), begun);
            if (text.equals("committed")) begun.commit();
            if (text.equals("rolled back")) begun.rollback();
        }
        List<String> found = new ArrayList<>(bodies(received(consumer(topic, group, "*"), 2)));
        Collections.sort(found);
        return "{\"messages\": " + quoted(found) + "}";
    }

    private static String filters() throws Exception {
        Producer sending = producer(null);
        String tags = "abca";
        for (int number = 0; number < tags.length(); number++) {
            sending.send(message("" + number).setTag(tags.substring(number, number + 1)).build());
        }
        List<String> found = new ArrayList<>(bodies(received(consumer(topic, group, "a || b"), 3)));
        Collections.sort(found);
        return "{\"messages\": " + quoted(found) + "}";
    }

    private static String sql() throws Exception {
        Producer sending = producer(null);
        for (int number = 0; number < 4; number++) {
            sending.send(message("" + number).setTag("t").addProperty("n", "" + number).build());
        }
        FilterExpression filter = new FilterExpression("n > 1 AND TAGS = 't'", FilterExpressionType.SQL92);
        List<String> found = new ArrayList<>(bodies(received(consumer(topic, group, filter), 2)));
        Collections.sort(found);
        return "{\"messages\": " + quoted(found) + "}";
    }

    private static List<Seen> pushed(int count, BiPredicate<String, Integer> fails) throws Exception {
        BlockingQueue<Seen> seen = new LinkedBlockingQueue<>();
        PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(config)
            .setConsumerGroup(group)
            .setSubscriptionExpressions(Collections.singletonMap(topic, new FilterExpression("*")))
            .setMessageListener(one -> {
                seen.add(new Seen(body(one), one.getDeliveryAttempt()));
                return fails.test(body(one), one.getDeliveryAttempt()) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            })
            .build();
        List<Seen> found = new ArrayList<>();
        while (found.size() < count) {
            Seen one = seen.poll(WAIT_MS, TimeUnit.MILLISECONDS);
            if (one == null) throw new IllegalStateException("no message came");
            found.add(one);
        }
        return found;
    }

    private static boolean failsFirst(String body, int attempt) {
        return body.equals("1") && attempt == 1;
    }

    private static String push() throws Exception {
        Producer sending = producer(null);
        for (int number = 0; number < 3; number++) sending.send(message("" + number).build());
        List<Seen> found = pushed(4, RocketClient::failsFirst);
        found.sort(Comparator.comparing(Seen::body).thenComparing(Seen::attempt));
        return "{\"seen\": " + list(found.stream().map(one -> "[\"" + one.body() + "\", " + one.attempt() + "]").toList()) + "}";
    }

    private static String pushFifo() throws Exception {
        sendGroups();
        return byGroup(pushed(8, RocketClient::failsFirst).stream().map(Seen::body).toList());
    }

    private static String dead() throws Exception {
        producer(null).send(message("poison").setTag("t").build());
        List<Seen> seen = pushed(2, (body, attempt) -> true);
        List<MessageView> letters = List.of();
        long end = System.currentTimeMillis() + WAIT_MS;
        while (letters.isEmpty() && System.currentTimeMillis() < end) {
            try {
                letters = received(consumer("%DLQ%" + group, group + "-undertaker", "*"), 1);
            } catch (Exception noTopicYet) {
                Thread.sleep(500);
            }
        }
        return String.format("{\"attempts\": %s, \"letters\": %s}",
            list(seen.stream().map(one -> "" + one.attempt()).toList()),
            list(letters.stream().map(one -> "[\"" + body(one) + "\", \"" + one.getTag().get() + "\"]").toList()));
    }
}
