import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Receives messages in RocketMQ's pop mode and acknowledges each; prints one JSON object per line.
 *
 * <pre>EmptyQueue NAMESERVER TOPIC GROUP</pre>
 *
 * Runs until it is killed, and prints every half second how many messages it has consumed.
 */
public final class EmptyQueue {
    private static final int POP_QUEUES = 8;
    private static final int UNFINISHED_MAX = 5_000;
    private static final long TIMEOUT_MS = 5_000;

    public static void main(String[] words) throws Exception {
        String names = words[0];
        String topic = words[1];
        String group = words[2];
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(names);
        admin.start();
        for (BrokerData broker : admin.examineTopicRouteInfo(topic).getBrokerDatas()) {
            for (String address : broker.getBrokerAddrs().values()) {
                admin.setMessageRequestMode(
                    address, topic, group, MessageRequestMode.POP, POP_QUEUES, TIMEOUT_MS);
            }
        }
        LongAdder done = new LongAdder();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(names);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setClientRebalance(false);
        consumer.setPopThresholdForQueue(UNFINISHED_MAX); // by default 96, then it waits 50 ms
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            done.add(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long last = 0;
        long at = System.nanoTime();
        while (true) {
            Thread.sleep(500);
            long seen = done.sum();
            long now = System.nanoTime();
            System.out.printf(
                "{\"messages\":%d,\"seconds\":%.6f}%n", seen - last, (now - at) / 1e9);
            last = seen;
            at = now;
        }
    }
}
