/* RocketMQ's official client for Java as the child of a black-box worker: see languages/rocketmq.py.
 *
 * Invariants: knows its parent's protocol, which client.py describes, and the client's public
 * classes (and two inner ones: for an offset and a receipt). A call of the library is made once,
 * whatever becomes of it. Exits when its standard input is closed. Janino compiles it, so there are
 * no lambdas, and results of generic methods are cast explicitly.
 */

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.ServiceLoader;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionChecker;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.client.java.impl.producer.SendReceiptImpl;
import org.apache.rocketmq.client.java.message.MessageViewImpl;

public final class RocketClient {
    private static final PrintStream OUT = System.out;
    private static final ClientServiceProvider PROVIDER =
        (ClientServiceProvider) ServiceLoader.load(ClientServiceProvider.class).iterator().next();
    private static final Pattern CODE = Pattern.compile("response-code=([0-9]+)");
    private static final Duration AWAIT = Duration.ofSeconds(1);
    private static final int HELD_MAX = 5000;

    private static ClientConfiguration config;
    private static String group;
    /** Of half messages, by their bodies; the checker reads it from a thread of the library. */
    private static final Map DECISIONS = new ConcurrentHashMap();
    private static final Map PRODUCERS = new HashMap();
    private static final Map CONSUMERS = new HashMap();
    /** Receipt -> {consumer, message}. */
    private static final Map HELD = new LinkedHashMap();

    private RocketClient() {}

    /** ENDPOINT;ENDPOINT... GROUP */
    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err); // what the library prints is no answer
        config = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).build();
        group = arguments[1];
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        String line;
        while ((line = in.readLine()) != null) {
            OUT.println(answer(line.split(" ")));
            OUT.flush();
        }
        Runtime.getRuntime().halt(0); // what the client still does would take a while
    }

    private static String answer(String[] words) {
        try {
            switch (words[0]) {
                case "send":
                    return send(words[1], words[2], words[3], words.length > 4 ? words[4] : "");
                case "receive":
                    return receive(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]));
                case "ack":
                    return acknowledge(words[1]);
                case "renew":
                    return renew(words[1], Integer.parseInt(words[2]));
                default:
                    throw new IllegalArgumentException(words[0]);
            }
        } catch (Throwable error) {
            Matcher code = CODE.matcher(String.valueOf(error.getMessage()));
            return "{\"what\": \"failed\", \"code\": " + (code.find() ? code.group(1) : "0")
                + ", \"error\": " + quoted(error.toString()) + "}";
        }
    }

    // --- sending ---------------------------------------------------------------------------------

    private static Producer producer(String topic) throws Exception {
        Producer found = (Producer) PRODUCERS.get(topic);
        if (found == null) {
            TransactionChecker checker = new TransactionChecker() {
                public TransactionResolution check(MessageView message) {
                    Object known = DECISIONS.get(body(message));
                    return known == null ? TransactionResolution.UNKNOWN : (TransactionResolution) known;
                }
            };
            found = PROVIDER.newProducerBuilder().setClientConfiguration(config)
                .setTopics(new String[] {topic}).setTransactionChecker(checker).build();
            PRODUCERS.put(topic, found);
        }
        return found;
    }

    private static String send(String kind, String topic, String text, String detail) throws Exception {
        Producer producer = producer(topic);
        MessageBuilder made =
            PROVIDER.newMessageBuilder().setTopic(topic).setBody(Base64.getDecoder().decode(text));
        if (kind.equals("half")) {
            return sendHalf(producer, made.build(), text, detail);
        }
        if (kind.equals("ordered")) {
            made.setMessageGroup(detail);
        } else if (kind.equals("delayed")) {
            made.setDeliveryTimestamp(Long.parseLong(detail) * 1000);
        }
        SendReceipt receipt = producer.send(made.build());
        return "{\"what\": \"sent\", \"offset\": " + ((SendReceiptImpl) receipt).getOffset() + "}";
    }

    private static String sendHalf(Producer producer, Message message, String text, String detail)
            throws Exception {
        boolean isCommit = detail.endsWith("commit");
        DECISIONS.put(text, isCommit ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK);
        Transaction begun = producer.beginTransaction();
        producer.send(message, begun);
        String end = "";
        if (!detail.startsWith("check-")) {
            try {
                if (isCommit) {
                    begun.commit();
                } else {
                    begun.rollback();
                }
            } catch (Throwable error) {
                end = ", \"end\": \"failed\", \"error\": " + quoted(error.toString());
            }
        }
        return "{\"what\": \"sent\", \"offset\": -1" + end + "}";
    }

    // --- receiving -------------------------------------------------------------------------------

    private static SimpleConsumer consumer(String topic) throws Exception {
        SimpleConsumer found = (SimpleConsumer) CONSUMERS.get(topic);
        if (found == null) {
            found = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(config)
                .setConsumerGroup(group).setAwaitDuration(AWAIT)
                .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
                .build();
            CONSUMERS.put(topic, found);
        }
        return found;
    }

    private static String receive(String topic, int count, int seconds) throws Exception {
        SimpleConsumer consumer = consumer(topic);
        List found = consumer.receive(count, Duration.ofSeconds(seconds));
        StringBuilder shown = new StringBuilder("{\"what\": \"received\", \"messages\": [");
        for (int at = 0; at < found.size(); at++) {
            MessageViewImpl message = (MessageViewImpl) found.get(at);
            String receipt = message.getReceiptHandle();
            HELD.put(receipt, new Object[] {consumer, message});
            Iterator keys = message.getKeys().iterator();
            shown.append(at == 0 ? "[" : ", [").append(quoted(receipt))
                .append(", ").append(quoted((String) message.getMessageGroup().orElse(null)))
                .append(", ").append(quoted(keys.hasNext() ? (String) keys.next() : null))
                .append(", ").append(message.getDeliveryAttempt())
                .append(", ").append(quoted(body(message))).append("]");
        }
        while (HELD.size() > HELD_MAX) {
            Iterator oldest = HELD.keySet().iterator();
            oldest.next();
            oldest.remove();
        }
        return shown.append("]}").toString();
    }

    private static String acknowledge(String receipt) throws Exception {
        Object[] held = (Object[]) HELD.get(receipt);
        ((SimpleConsumer) held[0]).ack((MessageView) held[1]);
        HELD.remove(receipt);
        return "{\"what\": \"settled\"}";
    }

    private static String renew(String receipt, int seconds) throws Exception {
        Object[] held = (Object[]) HELD.get(receipt);
        ((SimpleConsumer) held[0])
            .changeInvisibleDuration((MessageView) held[1], Duration.ofSeconds(seconds));
        return "{\"what\": \"settled\"}";
    }

    private static String body(MessageView message) {
        ByteBuffer body = message.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return Base64.getEncoder().encodeToString(bytes);
    }

    private static String quoted(String text) {
        if (text == null) {
            return "null";
        }
        StringBuilder shown = new StringBuilder("\"");
        for (int at = 0; at < text.length(); at++) {
            char one = text.charAt(at);
            if (one == '"' || one == '\\') {
                shown.append('\\').append(one);
            } else {
                shown.append(one < ' ' || one > '~' ? ' ' : one);
            }
        }
        return shown.append('"').toString();
    }
}
