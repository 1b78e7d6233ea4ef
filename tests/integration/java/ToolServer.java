import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/** Runs the main of any class, one a line of standard input, and tells its code and output. */
public final class ToolServer {
    static final class Ended extends Error {
        Ended(int code) {
            super("exit " + code, null, false, false);
        }
    }

    static volatile ByteArrayOutputStream sink = new ByteArrayOutputStream();
    static volatile Integer exitCode;

    private static void exit(int code) {
        if (exitCode == null) {
            exitCode = code;
        }
        throw new Ended(code);
    }

    /** Kafka's tools end through this class, which is in another package since Kafka 4.4. */
    private static void interceptExits() throws ReflectiveOperationException {
        Class<?> exits;
        try {
            exits = Class.forName("org.apache.kafka.common.utils.internals.Exit");
        } catch (ClassNotFoundException e) {
            exits = Class.forName("org.apache.kafka.common.utils.Exit");
        }
        Class<?> procedure = Class.forName(exits.getName() + "$Procedure");
        Object exiting = Proxy.newProxyInstance(
            procedure.getClassLoader(), new Class<?>[] {procedure}, (self, method, arguments) -> {
                exit((Integer) arguments[0]);
                return null;
            });
        exits.getMethod("setExitProcedure", procedure).invoke(null, exiting);
        exits.getMethod("setHaltProcedure", procedure).invoke(null, exiting);
    }

    /** Tools written in Scala became Java ones over the releases, the last of them in 4.4. */
    private static Class<?> named(String name) throws ClassNotFoundException {
        try {
            return Class.forName(name);
        } catch (ClassNotFoundException e) {
            return Class.forName(name.replace("kafka.admin.", "org.apache.kafka.tools."));
        }
    }

    public static void main(String[] ignored) throws Exception {
        PrintStream answers = System.out;
        BufferedReader asks =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(new OutputStream() {
            @Override
            public void write(int b) {
                sink.write(b);
            }

            @Override
            public void write(byte[] data, int from, int size) {
                sink.write(data, from, size);
            }
        }, true, StandardCharsets.UTF_8);
        System.setOut(out);
        System.setErr(out);
        interceptExits();
        ObjectMapper mapper = new ObjectMapper();
        for (String line = asks.readLine(); line != null; line = asks.readLine()) {
            JsonNode ask = mapper.readTree(line);
            String[] args = mapper.convertValue(ask.get("args"), String[].class);
            sink = new ByteArrayOutputStream();
            exitCode = null;
            System.setIn(new ByteArrayInputStream(
                ask.get("stdin").asText().getBytes(StandardCharsets.UTF_8)));
            int code = 0;
            try {
                named(ask.get("main").asText()).getMethod("main", String[].class)
                    .invoke(null, (Object) args);
            } catch (InvocationTargetException e) {
                if (!(e.getCause() instanceof Ended)) {
                    e.getCause().printStackTrace(out);
                    code = 1;
                }
            } catch (ReflectiveOperationException e) {
                e.printStackTrace(out);
                code = 1;
            }
            code = exitCode == null ? code : exitCode;
            out.flush();
            answers.println(mapper.writeValueAsString(
                Map.of("code", code, "out", sink.toString(StandardCharsets.UTF_8))));
            answers.flush();
        }
    }
}
