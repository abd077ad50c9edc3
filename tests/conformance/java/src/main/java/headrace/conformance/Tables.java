package headrace.conformance;

import static headrace.conformance.Check.expect;
import static headrace.conformance.Check.fails;
import static headrace.conformance.Check.same;

import io.pravega.client.admin.KeyValueTableInfo;
import io.pravega.client.admin.KeyValueTableManager;
import io.pravega.client.tables.ConditionalTableUpdateException;
import io.pravega.client.tables.Insert;
import io.pravega.client.tables.IteratorItem;
import io.pravega.client.tables.KeyValueTable;
import io.pravega.client.tables.KeyValueTableClientConfiguration;
import io.pravega.client.tables.KeyValueTableConfiguration;
import io.pravega.client.tables.KeyValueTableIterator;
import io.pravega.client.tables.Put;
import io.pravega.client.tables.Remove;
import io.pravega.client.tables.TableEntry;
import io.pravega.client.tables.TableKey;
import io.pravega.client.tables.TableModification;
import io.pravega.client.tables.Version;
import io.pravega.common.util.AsyncIterator;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/** Key-value tables. */
final class Tables {
    private static final String AREA = "key-value tables";
    private static final int LENGTH = 4;

    private Tables() {
    }

    static void add(List<Check> checks) {
        checks.add(new Check(AREA, "create, list and delete a table", Tables::life));
        checks.add(new Check(AREA, "put, get, replace and remove", Tables::put));
        checks.add(new Check(AREA, "conditional updates and removals", Tables::conditional));
        checks.add(new Check(AREA, "several entries with one primary key at once", Tables::batch));
        checks.add(new Check(AREA, "get many keys", Tables::getAll));
        checks.add(new Check(AREA, "iterate over all, a range and a prefix", Tables::iterate));
        checks.add(new Check(AREA, "iterate over the secondary keys of a primary key", Tables::secondary));
        checks.add(new Check(AREA, "values up to the limit", Tables::large));
        checks.add(new Check(AREA, "a scope with a table is not empty", Tables::scope));
    }

    private static KeyValueTable table(Context context, int partitions, int secondary) {
        KeyValueTableConfiguration configuration = KeyValueTableConfiguration.builder().partitionCount(partitions)
                .primaryKeyLength(LENGTH).secondaryKeyLength(secondary).build();
        expect(context.tables().createKeyValueTable(context.scope, "t", configuration), "the table is new");
        return context.opens(context.tableClients()
                .forKeyValueTable("t", KeyValueTableClientConfiguration.builder().build()));
    }

    private static ByteBuffer bytes(String text) {
        return ByteBuffer.wrap(text.getBytes(StandardCharsets.UTF_8));
    }

    private static TableKey key(int number) {
        return new TableKey(bytes(String.format("%04d", number)));
    }

    private static String text(ByteBuffer buffer) {
        return StandardCharsets.UTF_8.decode(buffer.duplicate()).toString();
    }

    private static Version update(KeyValueTable table, TableModification modification) throws Exception {
        return table.update(modification).get(60, TimeUnit.SECONDS);
    }

    private static TableEntry get(KeyValueTable table, TableKey key) throws Exception {
        return table.get(key).get(60, TimeUnit.SECONDS);
    }

    private static void life(Context context) {
        KeyValueTableManager manager = context.tables();
        KeyValueTableConfiguration configuration =
                KeyValueTableConfiguration.builder().partitionCount(2).primaryKeyLength(LENGTH).secondaryKeyLength(0).build();
        expect(manager.createKeyValueTable(context.scope, "a", configuration), "the table is new");
        expect(!manager.createKeyValueTable(context.scope, "a", configuration), "the table exists");
        expect(manager.createKeyValueTable(context.scope, "b", configuration), "the other table is new");
        Set<String> found = new HashSet<>();
        for (var one = manager.listKeyValueTables(context.scope); one.hasNext();) {
            KeyValueTableInfo info = one.next();
            found.add(info.getKeyValueTableName());
        }
        same(Set.of("a", "b"), found, "tables");
        expect(manager.deleteKeyValueTable(context.scope, "a"), "the table is deleted");
        expect(!manager.deleteKeyValueTable(context.scope, "a"), "the table is gone");
    }

    private static void put(Context context) throws Exception {
        KeyValueTable table = table(context, 2, 0);
        expect(get(table, key(1)) == null, "there is no entry yet");
        Version first = update(table, new Put(key(1), bytes("one")));
        same("one", text(get(table, key(1)).getValue()), "value");
        Version second = update(table, new Put(key(1), bytes("uno")));
        same("uno", text(get(table, key(1)).getValue()), "replaced value");
        expect(!first.equals(second), "versions differ");
        same(second, get(table, key(1)).getVersion(), "version of the entry");
        expect(table.exists(key(1)).get(60, TimeUnit.SECONDS), "the key exists");
        update(table, new Remove(key(1)));
        expect(!table.exists(key(1)).get(60, TimeUnit.SECONDS), "the key is gone");
        update(table, new Remove(key(1)));
    }

    private static void conditional(Context context) throws Exception {
        KeyValueTable table = table(context, 1, 0);
        Version first = update(table, new Insert(key(1), bytes("one")));
        fails(ConditionalTableUpdateException.class, () -> update(table, new Insert(key(1), bytes("again"))), "a second insert");
        Version second = update(table, new Put(key(1), bytes("two"), first));
        fails(ConditionalTableUpdateException.class, () -> update(table, new Put(key(1), bytes("three"), first)), "an old version");
        fails(ConditionalTableUpdateException.class, () -> update(table, new Put(key(2), bytes("none"), first)), "a missing key");
        fails(ConditionalTableUpdateException.class, () -> update(table, new Remove(key(1), first)), "a removal at an old version");
        Version restored = Version.fromString(second.toString());
        update(table, new Remove(key(1), restored));
        expect(get(table, key(1)) == null, "the key is removed");
        update(table, new Insert(key(1), bytes("anew")));
    }

    private static TableKey pair(String primary, int secondary) {
        return new TableKey(bytes(primary), bytes(String.format("%02d", secondary)));
    }

    private static void batch(Context context) throws Exception {
        KeyValueTable table = table(context, 2, 2);
        List<TableModification> inserts = new ArrayList<>();
        for (int number = 0; number < 20; number++) {
            inserts.add(new Insert(pair("same", number), bytes("v" + number)));
        }
        same(20, table.update(inserts).get(60, TimeUnit.SECONDS).size(), "versions");
        List<TableModification> conflict = List.of(new Insert(pair("same", 30), bytes("new")), new Insert(pair("same", 3), bytes("old")));
        fails(ConditionalTableUpdateException.class, () -> table.update(conflict).get(60, TimeUnit.SECONDS), "a batch with a conflict");
        expect(get(table, pair("same", 30)) == null, "nothing of the batch is stored");
        List<TableModification> removals = List.of(new Remove(pair("same", 1)), new Remove(pair("same", 2)));
        table.update(removals).get(60, TimeUnit.SECONDS);
        expect(get(table, pair("same", 1)) == null, "the key is removed");
    }

    private static void getAll(Context context) throws Exception {
        KeyValueTable table = table(context, 3, 0);
        for (int number = 0; number < 30; number++) {
            update(table, new Put(key(number), bytes("v" + number)));
        }
        List<TableEntry> found = table.getAll(List.of(key(29), key(99), key(0), key(7))).get(60, TimeUnit.SECONDS);
        same("v29", text(found.get(0).getValue()), "first value");
        expect(found.get(1) == null, "there is no entry of the second key");
        same("v0", text(found.get(2).getValue()), "third value");
        same("v7", text(found.get(3).getValue()), "fourth value");
    }

    private static <T> List<T> all(AsyncIterator<IteratorItem<T>> pages) throws Exception {
        List<T> found = new ArrayList<>();
        for (IteratorItem<T> page = pages.getNext().get(60, TimeUnit.SECONDS); page != null;
                page = pages.getNext().get(60, TimeUnit.SECONDS)) {
            found.addAll(page.getItems());
        }
        return found;
    }

    private static List<String> keys(KeyValueTableIterator iterator) throws Exception {
        return all(iterator.keys()).stream().map(one -> text(one.getPrimaryKey())).toList();
    }

    private static void iterate(Context context) throws Exception {
        KeyValueTable table = table(context, 3, 0);
        List<String> expected = new ArrayList<>();
        List<Integer> order = new ArrayList<>();
        for (int number = 0; number < 60; number++) {
            order.add(number);
            expected.add(String.format("%04d", number));
        }
        Collections.shuffle(order, new java.util.Random(1));
        for (int number : order) {
            update(table, new Put(key(number), bytes("v" + number)));
        }
        same(expected, keys(table.iterator().maxIterationSize(7).all()), "all keys in order");
        same(expected.subList(10, 21), keys(table.iterator().maxIterationSize(4).forRange(bytes("0010"), bytes("0020"))), "a range");
        same(expected.subList(30, 40), keys(table.iterator().maxIterationSize(100).forPrefix(bytes("003"))), "a prefix");
        List<TableEntry> entries = all(table.iterator().maxIterationSize(25).all().entries());
        same("v59", text(entries.get(59).getValue()), "last value");
    }

    private static void secondary(Context context) throws Exception {
        KeyValueTable table = table(context, 2, 2);
        for (String primary : List.of("aaaa", "bbbb")) {
            for (int number = 0; number < 10; number++) {
                update(table, new Put(pair(primary, number), bytes(primary + number)));
            }
        }
        List<TableKey> found = all(table.iterator().maxIterationSize(3).forPrimaryKey(bytes("bbbb")).keys());
        same(10, found.size(), "keys of one primary key");
        same("09", text(found.get(9).getSecondaryKey()), "last secondary key");
        same(4, all(table.iterator().maxIterationSize(3).forPrimaryKey(bytes("aaaa"), bytes("03"), bytes("06")).keys()).size(),
                "keys of a range");
    }

    private static void large(Context context) throws Exception {
        KeyValueTable table = table(context, 1, 0);
        byte[] value = new byte[KeyValueTable.MAXIMUM_VALUE_LENGTH];
        value[value.length - 1] = 7;
        update(table, new Put(key(1), ByteBuffer.wrap(value)));
        ByteBuffer found = get(table, key(1)).getValue();
        same(value.length, found.remaining(), "length");
        same((byte) 7, found.get(found.limit() - 1), "last byte");
        fails(IllegalArgumentException.class, () -> update(table, new Put(key(2), ByteBuffer.allocate(value.length + 1))),
                "a value above the limit");
        update(table, new Put(key(3), ByteBuffer.allocate(0)));
        same(0, get(table, key(3)).getValue().remaining(), "length of an empty value");
    }

    private static void scope(Context context) throws Exception {
        table(context, 1, 0);
        fails(RuntimeException.class, () -> context.streams.deleteScope(context.scope), "a scope that is not empty");
        expect(context.streams.deleteScopeRecursive(context.scope), "the scope is deleted");
    }
}
