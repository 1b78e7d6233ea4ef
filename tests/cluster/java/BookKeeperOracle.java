import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.Collections;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.LongConsumer;
import java.util.function.Supplier;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * The official client, driven line by line: what it makes of Headrace's ledgers, and ledgers for
 * Headrace to make something of. Entries carry Headrace's head: the byte at position p of a ledger
 * is byte p % 8 of the number p / 8.
 */
public final class BookKeeperOracle {
    private static final BookKeeper.DigestType DIGEST = BookKeeper.DigestType.CRC32C;
    private static final byte[] PASSWORD = new byte[0];
    private static final int HEAD = 20;
    private static final Map<Long, Long> positions = new HashMap<>();
    private static final Map<Long, LedgerHandle> writing = new HashMap<>();
    private static BookKeeper client;

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration settings = new ClientConfiguration();
        settings.setMetadataServiceUri("zk+hierarchical://" + arguments[0] + "/ledgers");
        settings.setUseV2WireProtocol(true);
        settings.setThrottleValue(0);
        settings.setDelayEnsembleChange(true);
        settings.setZkTimeout(10_000);
        client = new BookKeeper(settings);
        say("ready");
        BufferedReader asks = new BufferedReader(new InputStreamReader(System.in));
        for (String line = asks.readLine(); line != null; line = asks.readLine()) {
            String[] words = line.split(" ");
            try {
                say(answer(words));
            } catch (BKException e) {
                say("error " + e.getCode() + " " + e.getMessage());
            } catch (Exception e) {
                say("error 0 " + e);
            }
        }
        System.exit(0);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static int number(String[] words, int at) {
        return Integer.parseInt(words[at]);
    }

    private static String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "create": {
                LedgerHandle handle = client.createLedger(number(words, 1), number(words, 2),
                    number(words, 3), DIGEST, PASSWORD,
                    Collections.singletonMap("application", "headrace".getBytes()));
                writing.put(handle.getId(), handle);
                positions.put(handle.getId(), 0L);
                return "ledger " + handle.getId();
            }
            case "append": {
                LedgerHandle handle = writing.get(Long.parseLong(words[1]));
                for (int i = 0; i < number(words, 2); i++) {
                    handle.addEntry(nextEntry(handle, number(words, 3)));
                }
                return "appended " + handle.getLastAddConfirmed();
            }
            case "flood":
                return flood(writing.get(Long.parseLong(words[1])), number(words, 2),
                    number(words, 3), number(words, 4));
            case "measure":
                return measure(number(words, 1), number(words, 2), number(words, 3),
                    number(words, 4), number(words, 5), number(words, 6));
            case "close": {
                writing.remove(Long.parseLong(words[1])).close();
                return "closed";
            }
            case "recover":
                return read(client.openLedger(Long.parseLong(words[1]), DIGEST, PASSWORD));
            case "look":
                return read(
                    client.openLedgerNoRecovery(Long.parseLong(words[1]), DIGEST, PASSWORD));
            case "delete":
                client.deleteLedger(Long.parseLong(words[1]));
                return "deleted";
            default:
                return "error 0 no such command";
        }
    }

    private static byte[] nextEntry(LedgerHandle handle, int size) {
        long position = positions.get(handle.getId());
        positions.put(handle.getId(), position + size);
        byte[] entry = new byte[HEAD + size];
        ByteBuffer.wrap(entry).put((byte) 'H').put((byte) 'r').put((byte) 1).put((byte) 1)
            .putLong(position).putLong(position);
        for (int i = 0; i < size; i++) {
            long at = position + i;
            entry[HEAD + i] = (byte) ((at / 8) >>> (8 * (7 - at % 8)));
        }
        return entry;
    }

    /** Adds entries with some outstanding, and tells each acknowledgement. */
    private static String flood(LedgerHandle handle, int size, int outstanding, int count)
            throws Exception {
        return flood(handle, outstanding, count, () -> nextEntry(handle, size),
            entry -> say("acked " + (entry + 1) * (long) size));
    }

    private static String flood(LedgerHandle handle, int outstanding, int count,
            Supplier<byte[]> entries, LongConsumer stored) throws Exception {
        Semaphore room = new Semaphore(outstanding);
        AtomicReference<Integer> failed = new AtomicReference<>();
        for (int i = 0; i < count && failed.get() == null; i++) {
            room.acquire();
            handle.asyncAddEntry(entries.get(), (rc, ledger, entry, context) -> {
                if (rc != 0) {
                    failed.compareAndSet(null, rc);
                } else {
                    stored.accept(entry);
                }
                room.release();
            }, null);
        }
        room.acquire(outstanding);
        return failed.get() == null ? "flooded" : "error " + failed.get() + " flood";
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean)
            ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private static String measure(int ensemble, int write, int ack, int size, int outstanding,
            int count) throws Exception {
        LedgerHandle handle = client.createLedger(ensemble, write, ack, DIGEST, PASSWORD);
        positions.put(handle.getId(), 0L);
        byte[] same = nextEntry(handle, size);  // to make each anew would be the load's own work
        long cpu = cpuNanos();
        long begin = System.nanoTime();
        String said = flood(handle, outstanding, count, () -> same, entry -> { });
        long elapsed = System.nanoTime() - begin;
        cpu = cpuNanos() - cpu;
        handle.close();
        client.deleteLedger(handle.getId());
        return said + " " + elapsed + " " + cpu;
    }

    private static String read(LedgerHandle handle) throws Exception {
        long last = handle.isClosed() ? handle.getLastAddConfirmed()
            : handle.readLastConfirmed();
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        long length = 0;
        for (long first = 0; first <= last; first += 100) {
            Enumeration<LedgerEntry> entries =
                handle.readEntries(first, Math.min(last, first + 99));
            while (entries.hasMoreElements()) {
                byte[] entry = entries.nextElement().getEntry();
                digest.update(ByteBuffer.allocate(4).putInt(entry.length).array());
                digest.update(entry);
                length += entry.length;
            }
        }
        StringBuilder hex = new StringBuilder();
        for (byte one : digest.digest()) {
            hex.append(String.format("%02x", one));
        }
        String ensembles = handle.getLedgerMetadata().getAllEnsembles().toString()
            .replace(" ", "");
        String state = handle.getLedgerMetadata().getState().toString();
        long told = handle.getLength();
        handle.close();
        if (state.equals("CLOSED") && told != length) {
            return "error 0 length " + told + " of " + length + " bytes";
        }
        return "found " + last + " " + length + " " + hex + " " + state + " " + ensembles;
    }
}
