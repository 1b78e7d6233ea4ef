/* Apache Kafka's own Java client as the child of a black-box worker: see languages/child.py.
 *
 * Invariants: knows its parent's protocol and Kafka's public classes (and one private field: a
 * member's generation), no broker and no history. Exits when its standard input is closed.
 * Janino compiles it, so there are no lambdas, and results of generic methods are cast explicitly.
 */

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class KafkaClient {
    private static final PrintStream OUT = System.out;
    private static final BufferedReader IN =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
    private static final int COMMIT_TIMEOUT_S = 10;
    private static final int CLOSE_TIMEOUT_S = 5;

    private KafkaClient() {}

    /** `producer` or `transactional SETTING=VALUE ...`, or `member TOPIC,TOPIC SETTING=VALUE ...`. */
    public static void main(String[] arguments) throws Exception {
        boolean isMember = arguments[0].equals("member");
        Properties settings = new Properties();
        for (int at = isMember ? 2 : 1; at < arguments.length; at++) {
            int equals = arguments[at].indexOf('=');
            settings.put(arguments[at].substring(0, equals), arguments[at].substring(equals + 1));
        }
        if (isMember) {
            consume(arguments[1].split(","), settings);
        } else if (arguments[0].equals("transactional")) {
            transact(settings);
        } else {
            produce(settings);
        }
        System.exit(0);
    }

    // --- a producer ---------------------------------------------------------------------------

    private static void produce(Properties settings) throws Exception {
        KafkaProducer producer =
            new KafkaProducer(settings, new ByteArraySerializer(), new ByteArraySerializer());
        String line = IN.readLine();
        while (line != null) {
            String[] words = line.split(" ");
            if (words[0].equals("send")) {
                send(producer, words);
            } else {
                producer.flush();
                say("{\"what\":\"flushed\"}");
            }
            line = IN.readLine();
        }
        producer.close(Duration.ofSeconds(0));
    }

    private static void send(KafkaProducer producer, String[] words) {
        final String value = words[3];
        byte[] data = Base64.getDecoder().decode(words[4]);
        ProducerRecord record =
            new ProducerRecord(words[1], Integer.valueOf(words[2]), null, data);
        try {
            producer.send(record, new Callback() {
                public void onCompletion(RecordMetadata metadata, Exception error) {
                    ended(value, metadata, error);
                }
            });
        } catch (KafkaException error) {
            ended(value, null, error);
        }
    }

    private static void ended(String value, RecordMetadata metadata, Exception error) {
        if (error == null) {
            say("{\"what\":\"stored\",\"value\":" + value + ",\"offset\":" + metadata.offset() + "}");
        } else {
            say("{\"what\":\"failed\",\"value\":" + value + ",\"code\":"
                + Errors.forException(error).code() + ",\"error\":" + quoted(error) + "}");
        }
    }

    // --- transactional producers ----------------------------------------------------------------

    /** Commands name one of several producers, which are created on first use. */
    private static void transact(Properties settings) throws Exception {
        Map producers = new HashMap();
        String line = IN.readLine();
        while (line != null) {
            String[] words = line.split(" ");
            KafkaProducer producer = (KafkaProducer) producers.get(words[1]);
            if (producer == null) {
                producer = new KafkaProducer(
                    settings, new ByteArraySerializer(), new ByteArraySerializer());
                producers.put(words[1], producer);
            }
            if (words[0].equals("send")) {
                send(producer, new String[] {"send", words[2], words[3], words[4], words[5]});
            } else {
                if (words[0].equals("close")) {
                    producers.remove(words[1]);
                }
                step(producer, words);
            }
            line = IN.readLine();
        }
    }

    private static void step(KafkaProducer producer, String[] words) {
        String answer = "{\"what\":\"done\"}";
        try {
            if (words[0].equals("init")) {
                producer.initTransactions();
            } else if (words[0].equals("begin")) {
                producer.beginTransaction();
            } else if (words[0].equals("flush")) {
                producer.flush();
            } else if (words[0].equals("offsets")) {
                producer.sendOffsetsToTransaction(
                    offsetsIn(words, 3), new ConsumerGroupMetadata(words[2]));
            } else if (words[0].equals("commit")) {
                producer.commitTransaction();
            } else if (words[0].equals("abort")) {
                producer.abortTransaction();
            } else {
                producer.close(Duration.ofSeconds(0));
            }
        } catch (RuntimeException error) {
            boolean isAgain = error instanceof TimeoutException;
            boolean isDead = error instanceof ProducerFencedException
                || error instanceof IllegalStateException;
            answer = "{\"what\":\"refused\",\"again\":" + isAgain + ",\"dead\":" + isDead
                + ",\"error\":" + quoted(error) + "}";
        }
        say(answer);
    }

    // --- a group's member ---------------------------------------------------------------------

    private static void consume(String[] topics, Properties settings) throws Exception {
        final KafkaConsumer consumer =
            new KafkaConsumer(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        List names = new ArrayList();
        for (int at = 0; at < topics.length; at++) {
            names.add(topics[at]);
        }
        consumer.subscribe(names, new ConsumerRebalanceListener() {
            public void onPartitionsAssigned(Collection parts) {
                tell("assigned", parts, consumer);
            }

            public void onPartitionsRevoked(Collection parts) {
                tell("revoked", parts, consumer);
            }

            public void onPartitionsLost(Collection parts) {
                tell("lost", parts, consumer);
            }
        });
        String line = IN.readLine();
        while (line != null && !line.equals("close")) {
            String[] words = line.split(" ");
            if (words[0].equals("poll")) {
                poll(consumer, Long.parseLong(words[1]));
            } else {
                commit(consumer, words);
            }
            line = IN.readLine();
        }
        if (line != null) {
            consumer.close(Duration.ofSeconds(CLOSE_TIMEOUT_S));
            say("{\"what\":\"closed\"}");
        }
    }

    private static void poll(KafkaConsumer consumer, long timeoutMs) {
        StringBuilder found = new StringBuilder();
        String failure = "";
        try {
            ConsumerRecords records = consumer.poll(Duration.ofMillis(timeoutMs));
            Base64.Encoder encoder = Base64.getEncoder();
            for (Iterator every = records.iterator(); every.hasNext();) {
                ConsumerRecord record = (ConsumerRecord) every.next();
                byte[] data = (byte[]) record.value();
                found.append(found.length() == 0 ? "[\"" : ",[\"").append(record.topic());
                found.append("\",").append(record.partition()).append(',').append(record.offset());
                found.append(',');
                if (data == null) {
                    found.append("null]");
                } else {
                    found.append('"').append(encoder.encodeToString(data)).append("\"]");
                }
            }
        } catch (KafkaException error) {
            failure = ",\"error\":" + quoted(error);
        }
        say("{\"what\":\"polled\"" + identity(consumer) + failure + ",\"records\":[" + found + "]}");
    }

    /** `commit TOPIC:PARTITION:OFFSET ...`. */
    private static void commit(KafkaConsumer consumer, String[] words) {
        Map offsets = offsetsIn(words, 1);
        String failure = "";
        try {
            consumer.commitSync(offsets, Duration.ofSeconds(COMMIT_TIMEOUT_S));
        } catch (KafkaException error) {
            failure = ",\"error\":" + quoted(error);
        }
        say("{\"what\":\"committed\"" + identity(consumer) + failure + "}");
    }

    private static Map offsetsIn(String[] words, int first) {
        Map offsets = new HashMap();
        for (int at = first; at < words.length; at++) {
            String[] one = words[at].split(":");
            offsets.put(
                new TopicPartition(one[0], Integer.parseInt(one[1])),
                new OffsetAndMetadata(Long.parseLong(one[2])));
        }
        return offsets;
    }

    /** Report assigned or revoked partitions, and wait until the parent has recorded it. */
    private static void tell(String what, Collection parts, KafkaConsumer consumer) {
        StringBuilder listed = new StringBuilder();
        for (Iterator every = parts.iterator(); every.hasNext();) {
            TopicPartition part = (TopicPartition) every.next();
            listed.append(listed.length() == 0 ? "[\"" : ",[\"").append(part.topic());
            listed.append("\",").append(part.partition()).append(']');
        }
        say("{\"what\":\"" + what + "\"" + identity(consumer) + ",\"parts\":[" + listed + "]}");
        try {
            IN.readLine();
        } catch (java.io.IOException error) {
            throw new KafkaException(error);
        }
    }

    /** As a commit would send it: `groupMetadata` returns the previous one until the next poll. */
    private static String identity(KafkaConsumer consumer) {
        try {
            Object generation = call(field(field(consumer, "delegate"), "coordinator"), "generation");
            return ",\"member\":\"" + field(generation, "memberId")
                + "\",\"generation\":" + field(generation, "generationId");
        } catch (ReflectiveOperationException error) {
            throw new KafkaException("another kafka-clients than the pinned one?", error);
        }
    }

    private static Object field(Object of, String name) throws ReflectiveOperationException {
        Class at = of.getClass();
        while (true) {
            try {
                Field found = at.getDeclaredField(name);
                found.setAccessible(true);
                return found.get(of);
            } catch (NoSuchFieldException error) {
                at = at.getSuperclass();
                if (at == null) {
                    throw error;
                }
            }
        }
    }

    private static Object call(Object of, String name) throws ReflectiveOperationException {
        Class at = of.getClass();
        while (true) {
            try {
                Method found = at.getDeclaredMethod(name, new Class[0]);
                found.setAccessible(true);
                return found.invoke(of, new Object[0]);
            } catch (NoSuchMethodException error) {
                at = at.getSuperclass();
                if (at == null) {
                    throw error;
                }
            }
        }
    }

    // --- lines --------------------------------------------------------------------------------

    private static void say(String line) {
        synchronized (OUT) {
            OUT.println(line);
            OUT.flush();
        }
    }

    private static String quoted(Exception error) {
        StringBuilder text = new StringBuilder("\"");
        String plain = error.toString();
        for (int at = 0; at < plain.length() && at < 200; at++) {
            char letter = plain.charAt(at);
            if (letter == '"' || letter == '\\') {
                text.append('\\');
            }
            text.append(letter < ' ' || letter > '~' ? ' ' : letter);
        }
        return text.append('"').toString();
    }
}
