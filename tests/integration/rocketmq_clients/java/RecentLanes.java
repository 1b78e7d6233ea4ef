import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;

/** The lanes that older clients for Java lack. */
final class RecentLanes {
    private RecentLanes() {}

    static String recall() throws Exception {
        Producer sending = RocketClient.producer(null);
        long due = System.currentTimeMillis() + 2_000;
        SendReceipt recalled = sending.send(RocketClient.message("recalled").setDeliveryTimestamp(due).build());
        sending.recallMessage(RocketClient.topic, recalled.getRecallHandle());
        sending.send(RocketClient.message("kept").setDeliveryTimestamp(due + 1_000).build());
        List<MessageView> found = RocketClient.received(RocketClient.consumer(RocketClient.topic, RocketClient.group, "*"), 1);
        return "{\"messages\": " + RocketClient.quoted(RocketClient.bodies(found)) + "}";
    }

    /** Many small queues in one topic: those that the consumer names, as long as it does. */
    static String lite() throws Exception {
        Producer sending = RocketClient.producer(null);
        for (int number = 0; number < 4; number++)
            for (String name : List.of("a", "b", "c")) sendLite(sending, name, number);
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        LitePushConsumer consuming = RocketClient.PROVIDER.newLitePushConsumerBuilder()
            .setClientConfiguration(RocketClient.config)
            .setConsumerGroup(RocketClient.group)
            .bindTopic(RocketClient.topic)
            .setMessageListener(one -> {
                seen.add(RocketClient.body(one));
                return ConsumeResult.SUCCESS;
            })
            .build();
        for (String name : List.of("a", "b")) consuming.subscribeLite(name);
        List<String> found = new ArrayList<>();
        for (int number = 0; number < 8; number++) found.add(seen.poll(40, TimeUnit.SECONDS));
        consuming.unsubscribeLite("b");
        for (String name : List.of("b", "a")) sendLite(sending, name, 4);
        found.add(seen.poll(40, TimeUnit.SECONDS));
        List<String> shown = new ArrayList<>();
        for (String name : List.of("a", "b", "c"))
            shown.add("\"" + name + "\": " + RocketClient.quoted(found.stream().filter(one -> one.startsWith(name)).toList()));
        return "{" + String.join(", ", shown) + "}";
    }

    private static void sendLite(Producer sending, String name, int number) throws Exception {
        sending.send(RocketClient.message(name + number).setLiteTopic(name).build());
    }

    static String priority() throws Exception {
        Producer sending = RocketClient.producer(null);
        for (int number : new int[] {1, 5, 9, 3}) sending.send(RocketClient.message("" + number).setPriority(number).build());
        List<MessageView> found = RocketClient.received(RocketClient.consumer(RocketClient.topic, RocketClient.group, "*"), 4, 1);
        return "{\"messages\": " + RocketClient.list(found.stream()
            .map(one -> "[\"" + RocketClient.body(one) + "\", " + one.getPriority().get() + "]").toList()) + "}";
    }
}
