import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;

/** Makes the tables in which Hive's metastore keeps its locks; the server makes all others by itself. */
public class HiveLocks {
  public static void main(String[] arguments) throws Exception {
    TxnDbUtil.prepDb(new HiveConf());
  }
}
