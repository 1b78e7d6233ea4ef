import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/** Runs statements, and prints the rows of the last: batch or streaming, then SQL. */
public class Lake {
    public static void main(String[] args) throws Exception {
        EnvironmentSettings.Builder mode = EnvironmentSettings.newInstance();
        TableEnvironment env = TableEnvironment.create(
            args[0].equals("batch") ? mode.inBatchMode().build() : mode.inStreamingMode().build());
        env.getConfig().set("parallelism.default", "1");
        for (int at = 1; at < args.length - 1; at++) {
            env.executeSql(args[at]);
        }
        try (CloseableIterator<Row> rows = env.executeSql(args[args.length - 1]).collect()) {
            while (rows.hasNext()) {
                System.out.println("ROW " + rows.next());
            }
        }
    }
}
