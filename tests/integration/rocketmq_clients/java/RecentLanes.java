import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
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

    /** What is refused of lite topics, and what came although it was: must be nothing. */
    static String lite() throws Exception {
        Producer sending = RocketClient.producer(null);
        sending.send(RocketClient.message("not for lite consumers").build());
        List<String> refused = new ArrayList<>();
        List<String> came = Collections.synchronizedList(new ArrayList<>());
        try {
            sending.send(RocketClient.message("lite").setLiteTopic("l").build());
        } catch (Exception error) {
            refused.add("send: " + RocketClient.plain(error));
        }
        try {
            RocketClient.PROVIDER.newLitePushConsumerBuilder()
                .setClientConfiguration(RocketClient.config)
                .setConsumerGroup(RocketClient.group)
                .bindTopic(RocketClient.topic)
                .setMessageListener(one -> {
                    came.add(RocketClient.body(one));
                    return ConsumeResult.SUCCESS;
                })
                .build()
                .subscribeLite("l");
        } catch (Exception error) {
            refused.add("subscribe: " + RocketClient.plain(error));
        }
        Thread.sleep(3_000); // else it would end before what must not come could
        return "{\"refused\": " + RocketClient.quoted(refused) + ", \"came\": " + RocketClient.quoted(came) + "}";
    }

    static String priority() throws Exception {
        Producer sending = RocketClient.producer(null);
        for (int number : new int[] {1, 5, 9, 3}) sending.send(RocketClient.message("" + number).setPriority(number).build());
        List<MessageView> found = RocketClient.received(RocketClient.consumer(RocketClient.topic, RocketClient.group, "*"), 4, 1);
        return "{\"messages\": " + RocketClient.list(found.stream()
            .map(one -> "[\"" + RocketClient.body(one) + "\", " + one.getPriority().get() + "]").toList()) + "}";
    }
}
