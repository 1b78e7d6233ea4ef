import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Sends and receives until the standard input ends: message groups in the topic, half and delayed
 * messages in the topic with "-mixed" added. Prints which errors the application saw, and what came
 * in another order, too early, or although it was rolled back.
 */
final class Steady {
    private static final long DELAY_MS = 2_000;
    private static final long JOIN_MS = 120_000;
    private static final Duration INVISIBLE = Duration.ofSeconds(15);
    private static final AtomicBoolean OVER = new AtomicBoolean();
    private static final AtomicBoolean ALL_SENT = new AtomicBoolean();
    private static final Map<String, List<String>> ERRORS = new ConcurrentHashMap<>();
    private static final Set<String> SENT = ConcurrentHashMap.newKeySet();
    private static final Set<String> DECIDED = ConcurrentHashMap.newKeySet();
    private static final Map<String, Integer> SEEN = new HashMap<>();
    private static final List<String> FIRST = new ArrayList<>();
    private static final List<String> WRONG = Collections.synchronizedList(new ArrayList<>());

    interface Step {
        void run(int number) throws Exception;
    }

    private Steady() {}

    private static void failed(String what, Exception error) {
        ERRORS.get(what).add(RocketClient.plain(error));
    }

    private static void send(Step step, long pauseMs) {
        for (int number = 0; !OVER.get(); number++) {
            try {
                step.run(number);
                Thread.sleep(pauseMs);
            } catch (Exception error) {
                failed("send", error);
            }
        }
    }

    private static void sendGroup(Producer sending, int number) throws Exception {
        sending.send(RocketClient.message("" + number).setMessageGroup("g" + number % 8).build());
        SENT.add("" + number);
    }

    /** Of four: one delayed, one committed, one rolled back, and one of which the check decides. */
    private static void sendMixed(Producer sending, int number) throws Exception {
        if (number % 4 == 3) {
            String body = "due " + number + " " + (System.currentTimeMillis() + DELAY_MS);
            sending.send(RocketClient.message(body).setTopic(mixed()).setDeliveryTimestamp(timeOf(body)).build());
            SENT.add(body);
            return;
        }
        String body = "half " + number;
        Transaction begun = sending.beginTransaction();
        sending.send(RocketClient.message(body).setTopic(mixed()).build(), begun);
        if (isCommitted(body)) SENT.add(body);
        if (number % 4 == 2) return;
        DECIDED.add(body);
        if (isCommitted(body)) begun.commit(); else begun.rollback();
    }

    private static TransactionResolution check(MessageView one) {
        DECIDED.add(RocketClient.body(one));
        return isCommitted(RocketClient.body(one)) ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
    }

    private static boolean isCommitted(String half) {
        int number = Integer.parseInt(half.split(" ")[1]);
        return number % 4 == 0 || number % 8 == 2;
    }

    private static long timeOf(String due) {
        return Long.parseLong(due.split(" ")[2]);
    }

    private static String mixed() {
        return RocketClient.topic + "-mixed";
    }

    private static synchronized void see(String body) {
        if (SEEN.merge(body, 1, Integer::sum) == 1) FIRST.add(body);
        if (body.startsWith("due") && System.currentTimeMillis() < timeOf(body)) WRONG.add("early: " + body);
        if (body.startsWith("half") && !(DECIDED.contains(body) && isCommitted(body))) WRONG.add("not committed: " + body);
    }

    private static synchronized boolean isReceived() {
        return SEEN.keySet().containsAll(SENT);
    }

    private static synchronized int seen() {
        return SEEN.size();
    }

    private static void receive(SimpleConsumer from) {
        while (!ALL_SENT.get() || !isReceived()) {
            try {
                for (MessageView one : from.receive(16, INVISIBLE)) {
                    see(RocketClient.body(one));
                    try {
                        from.ack(one);
                    } catch (Exception error) {
                        failed("ack", error);
                    }
                }
            } catch (Exception error) {
                failed("receive", error);
            }
        }
    }

    private static Thread daemon(Runnable work) {
        Thread made = new Thread(work);
        made.setDaemon(true);
        made.start();
        return made;
    }

    /** Only of messages whose send succeeded: another one may have been stored later. */
    private static synchronized void findDisorder() {
        Map<Integer, Integer> last = new HashMap<>();
        for (String body : FIRST) {
            if (body.contains(" ") || !SENT.contains(body)) continue;
            int number = Integer.parseInt(body);
            int before = last.getOrDefault(number % 8, -1);
            if (number < before) WRONG.add("after " + before + ": " + number);
            last.put(number % 8, number);
        }
    }

    static String steady() throws Exception {
        for (String what : List.of("send", "receive", "ack")) ERRORS.put(what, Collections.synchronizedList(new ArrayList<>()));
        Producer sending = RocketClient.producer(Steady::check, RocketClient.topic, mixed());
        List<Thread> senders = List.of(
            daemon(() -> send(number -> sendGroup(sending, number), 10)),
            daemon(() -> send(number -> sendMixed(sending, number), 50)));
        List<Thread> receivers = new ArrayList<>();
        for (String of : List.of(RocketClient.topic, RocketClient.topic, mixed())) {
            SimpleConsumer from = RocketClient.consumer(of, RocketClient.group, "*");
            receivers.add(daemon(() -> receive(from)));
        }
        while (seen() < 100) Thread.sleep(50);
        System.out.println("going");
        System.out.flush();
        while (System.in.read() >= 0) { }
        OVER.set(true);
        for (Thread one : senders) one.join(JOIN_MS);
        ALL_SENT.set(true);
        for (Thread one : receivers) one.join(JOIN_MS);
        findDisorder();
        int again = SEEN.values().stream().mapToInt(one -> one - 1).sum();
        List<String> missing = SENT.stream().filter(one -> !SEEN.containsKey(one)).toList();
        List<String> committed = SENT.stream().filter(one -> one.startsWith("half")).toList();
        return String.format("{\"sent\": %d, \"missing\": %s, \"again\": %d, \"committed\": %s, \"wrong\": %s,"
            + " \"send\": %s, \"receive\": %s, \"ack\": %s}", SENT.size(), RocketClient.quoted(missing), again,
            RocketClient.quoted(committed), RocketClient.quoted(WRONG), RocketClient.quoted(ERRORS.get("send")),
            RocketClient.quoted(ERRORS.get("receive")), RocketClient.quoted(ERRORS.get("ack")));
    }
}
