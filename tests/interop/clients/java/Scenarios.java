// Kafka's own Java clients at a broker: one scenario of a run, any broken expectation is a stack trace and exit status 1.
//
//     java -cp 'kafka/libs/*' Scenarios.java 127.0.0.1:9092 transactions

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnreleasedInstanceIdException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class Scenarios {
    private static final Duration WAIT = Duration.ofSeconds(30);
    private static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");
    private static String bootstrap;
    private static Admin admin;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        try (Admin made = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin = made;
            switch (arguments[1]) {
                case "records" -> records();
                case "times" -> times();
                case "groups" -> groups();
                case "newer-groups" -> newerGroups();
                case "static" -> staticMembers();
                case "admin" -> adminCalls();
                case "transactions" -> transactions();
                default -> throw new IllegalArgumentException(arguments[1]);
            }
        }
    }

    // -- producing, consuming, seeking -----------------------------------------------------------------------------

    private static void records() throws Exception {
        for (String codec : CODECS) {
            String topic = topic("java-codec-" + codec, 1);
            List<ProducerRecord<String, String>> sent = new ArrayList<>();
            try (var producer = producer(Map.of("compression.type", codec, "linger.ms", 50))) {
                for (int n = 0; n < 300; n++) {
                    var each = new ProducerRecord<>(
                        topic, 0, 1_000_000L + n, n % 3 == 0 ? null : "k" + n, n % 7 == 0 ? null : ("v" + n).repeat(20));
                    each.headers().add("n", bytes("" + n)).add("nil", null).add("n", bytes("again"));
                    sent.add(each);
                    producer.send(each);
                }
                producer.flush();
            }
            var found = read(topic, 0, "read_uncommitted", 300);
            for (int n = 0; n < 300; n++) {
                ProducerRecord<String, String> one = sent.get(n);
                ConsumerRecord<String, String> other = found.get(n);
                same(n, (int) other.offset());
                same(one.key(), other.key());
                same(one.value(), other.value());
                same(one.timestamp(), other.timestamp());
                same(headers(one.headers()), headers(other.headers()));
            }
        }
    }

    private static void times() throws Exception {
        String topic = topic("java-times", 1);
        TopicPartition place = new TopicPartition(topic, 0);
        try (var producer = producer(Map.of("linger.ms", 20))) {
            for (int n = 0; n < 1000; n++) {
                producer.send(new ProducerRecord<>(topic, 0, 1_000_000L + 10 * n, null, "" + n));
            }
        }
        try (var consumer = consumer(Map.of())) {
            consumer.assign(List.of(place));
            for (int n : List.of(0, 1, 499, 999)) {
                var found = consumer.offsetsForTimes(Map.of(place, 1_000_000L + 10 * n - 5)).get(place);
                same((long) n, found.offset());
                same(1_000_000L + 10 * n, found.timestamp());
                consumer.seek(place, found.offset());
                same("" + n, next(consumer).value());
            }
            same(null, consumer.offsetsForTimes(Map.of(place, 2_000_000L)).get(place));
            consumer.seekToEnd(List.of(place));
            same(1000L, consumer.position(place));
            consumer.seekToBeginning(List.of(place));
            same("0", next(consumer).value());
            same(Map.of(place, 0L), consumer.beginningOffsets(List.of(place)));
            same(Map.of(place, 1000L), consumer.endOffsets(List.of(place)));
        }
        for (var asked : Map.of(
            OffsetSpec.earliest(), 0L, OffsetSpec.latest(), 1000L, OffsetSpec.maxTimestamp(), 999L,
            OffsetSpec.forTimestamp(1_000_015L), 2L, OffsetSpec.earliestLocal(), 0L).entrySet()) {
            same(asked.getValue(), admin.listOffsets(Map.of(place, asked.getKey())).partitionResult(place).get().offset());
        }
    }

    // -- groups ----------------------------------------------------------------------------------------------------

    private static void groups() throws Exception {
        for (Class<?> assignor : List.of(RangeAssignor.class, RoundRobinAssignor.class, CooperativeStickyAssignor.class)) {
            Map<String, Object> settings = Map.of("partition.assignment.strategy", assignor.getName(), "heartbeat.interval.ms", 200);
            rebalance("java-classic-" + assignor.getSimpleName(), settings, assignor == CooperativeStickyAssignor.class);
        }
    }

    private static void newerGroups() throws Exception {
        for (String assignor : List.of("uniform", "range")) {
            Map<String, Object> settings = Map.of("group.protocol", "consumer", "group.remote.assignor", assignor);
            rebalance("java-newer-" + assignor, settings, true);
        }
        String name = topic("java-regex-1", 1);
        try (Member member = new Member("java-regex", Map.of("group.protocol", "consumer"), "java-regex-[0-9]")) {
            until(() -> member.places().equals(Set.of(new TopicPartition(name, 0))), member);
            String later = topic("java-regex-2", 1);
            fill(later, 0, 1);
            until(() -> member.seen.size() == 1, member);
        }
    }

    /** A member comes, another joins and leaves; every record is read once, and the commits are there at the end. */
    private static void rebalance(String group, Map<String, Object> settings, boolean incremental) throws Exception {
        String topic = topic(group, 4);
        Member one = new Member(group, settings, topic);
        fill(topic, 0, 200);
        until(() -> one.places().size() == 4 && one.seen.size() == 200, one);
        Member two = new Member(group, settings, topic);
        until(() -> one.places().size() == 2 && two.places().size() == 2, one, two);
        same(4, union(one.places(), two.places()).size());
        same(incremental ? 2 : 4, one.revoked.size());
        var described = admin.describeConsumerGroups(List.of(group)).describedGroups().get(group).get();
        same(GroupState.STABLE, described.groupState());
        same(2, described.members().size());
        fill(topic, 200, 400);
        until(() -> one.seen.size() + two.seen.size() >= 400, one, two);
        two.close();
        until(() -> one.places().size() == 4, one);
        fill(topic, 400, 600);
        until(() -> one.seen.size() + two.seen.size() >= 600, one);
        one.close();
        List<String> every = new ArrayList<>(one.seen);
        every.addAll(two.seen);
        same(600, every.size());
        same(600, new HashSet<>(every).size());
        same(600L, committed(group));
    }

    private static void staticMembers() throws Exception {
        for (Map<String, Object> protocol : List.<Map<String, Object>>of(
            Map.of("heartbeat.interval.ms", 200), Map.of("group.protocol", "consumer"))) {
            boolean newer = protocol.containsKey("group.protocol");
            String group = "java-static-" + (newer ? "newer" : "classic");
            String topic = topic(group, 4);
            Map<String, Object> settings = with(protocol, "group.instance.id", "one");
            Member one = new Member(group, settings, topic);
            Member two = new Member(group, with(protocol, "group.instance.id", "two"), topic);
            until(() -> one.places().size() == 2 && two.places().size() == 2, one, two);
            Set<TopicPartition> before = one.places();
            two.assigned.clear();
            one.close();
            Member again = new Member(group, settings, topic);
            until(() -> again.places().equals(before), again, two);
            same(List.of(), List.copyOf(two.assigned));
            Member twin = new Member(group, settings, topic);
            Member loser = newer ? twin : again;
            until(() -> loser.failed.get() != null, twin);
            Class<?> wanted = newer ? UnreleasedInstanceIdException.class : FencedInstanceIdException.class;
            same(wanted, loser.failed.get().getClass());
            loser.failed.set(null);
            for (Member each : List.of(twin, again, two)) {
                each.close();
            }
        }
    }

    // -- transactions ----------------------------------------------------------------------------------------------

    private static void transactions() throws Exception {
        String source = topic("java-source", 2);
        String target = topic("java-target", 2);
        fill(source, 0, 60);
        for (String protocol : List.of("classic", "consumer")) {
            String group = "java-mover-" + protocol;
            int moved = 0;
            try (var producer = producer(Map.of("transactional.id", group))) {
                producer.initTransactions();
                for (int round = 0; moved < 60; round++) {
                    Map<String, Object> settings = Map.of(
                        "group.id", group, "group.protocol", protocol, "isolation.level", "read_committed", "max.poll.records", 10);
                    try (var consumer = consumer(settings)) {
                        consumer.subscribe(List.of(source));
                        moved += move(consumer, producer, target, round % 2 == 0);
                    }
                }
                same(60L, committed(group));
            }
        }
        same(120, total(target, "read_committed"));
        check(total(target, "read_uncommitted") > 120, "aborted records are in the log");
        fenced(topic("java-fenced", 1));
        open(topic("java-open", 1));
    }

    private static int move(
        KafkaConsumer<String, String> consumer, KafkaProducer<String, String> producer, String target, boolean abort) {
        List<ConsumerRecord<String, String>> batch = new ArrayList<>();
        for (long end = System.nanoTime() + WAIT.toNanos(); batch.isEmpty(); ) {
            check(System.nanoTime() < end, "no records to move");
            consumer.poll(Duration.ofMillis(100)).forEach(batch::add);
        }
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (var each : batch) {
            producer.send(new ProducerRecord<>(target, each.value()));
            offsets.put(new TopicPartition(each.topic(), each.partition()), new OffsetAndMetadata(each.offset() + 1));
        }
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        if (abort) {
            producer.flush();
            producer.abortTransaction();
            return 0;
        }
        producer.commitTransaction();
        return batch.size();
    }

    private static void fenced(String topic) throws Exception {
        try (var zombie = producer(Map.of("transactional.id", "java-fenced"));
            var other = producer(Map.of("transactional.id", "java-fenced"))) {
            zombie.initTransactions();
            zombie.beginTransaction();
            zombie.send(new ProducerRecord<>(topic, "zombie")).get();
            other.initTransactions();
            other.beginTransaction();
            other.send(new ProducerRecord<>(topic, "new")).get();
            other.commitTransaction();
            try {
                zombie.send(new ProducerRecord<>(topic, "late")).get();
                zombie.commitTransaction();
                throw new AssertionError("the zombie was not fenced");
            } catch (ExecutionException error) {
                check(fences(error.getCause()), error.toString());
            } catch (ProducerFencedException | InvalidProducerEpochException expected) {
                check(fences(expected), expected.toString());
            }
        }
        same(List.of("new"), read(topic, 0, "read_committed", 1).stream().map(ConsumerRecord::value).toList());
    }

    private static boolean fences(Throwable error) {
        return error instanceof ProducerFencedException || error instanceof InvalidProducerEpochException;
    }

    /** An open transaction holds committed readers up, and the tools see it. */
    private static void open(String topic) throws Exception {
        TopicPartition place = new TopicPartition(topic, 0);
        try (var producer = producer(Map.of("transactional.id", "java-open"));
            var consumer = consumer(Map.of("isolation.level", "read_committed"))) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "open")).get();
            consumer.assign(List.of(place));
            same(0, consumer.poll(Duration.ofMillis(300)).count());
            same(0L, consumer.endOffsets(List.of(place)).get(place));
            var told = admin.describeTransactions(List.of("java-open")).description("java-open").get();
            same(TransactionState.ONGOING, told.state());
            same(Set.of(place), told.topicPartitions());
            check(admin.listTransactions().all().get().stream().anyMatch(each -> each.transactionalId().equals("java-open")),
                "the transaction is listed");
            var producers = admin.describeProducers(List.of(place)).partitionResult(place).get().activeProducers();
            same(told.producerId(), producers.get(0).producerId());
            same(0L, producers.get(0).currentTransactionStartOffset().getAsLong());
            admin.fenceProducers(List.of("java-open")).all().get();
            same(0, consumer.poll(Duration.ofMillis(300)).count());
            try {
                producer.commitTransaction();
                throw new AssertionError("fenced by the admin, and yet committed");
            } catch (ProducerFencedException | InvalidProducerEpochException expected) {
                check(fences(expected), expected.toString());
            }
        }
    }

    // -- admin calls -----------------------------------------------------------------------------------------------

    private static void adminCalls() throws Exception {
        String name = "java-admin";
        var created = admin.createTopics(List.of(
            new NewTopic(name, Optional.of(2), Optional.empty()).configs(Map.of("retention.ms", "1000000"))));
        same(2, created.numPartitions(name).get());
        same("1000000", created.config(name).get().get("retention.ms").value());
        failsWith(TopicExistsException.class, () -> admin.createTopics(List.of(new NewTopic(name, 1, (short) 1))).all().get());
        check(admin.listTopics().names().get().contains(name), "the topic is listed");
        same(2, admin.describeTopics(List.of(name)).allTopicNames().get().get(name).partitions().size());
        admin.createPartitions(Map.of(name, NewPartitions.increaseTo(3))).all().get();
        var described = admin.describeTopics(List.of(name)).allTopicNames().get().get(name);
        same(3, described.partitions().size());
        same(described.topicId(), created.topicId(name).get());

        var resource = new ConfigResource(ConfigResource.Type.TOPIC, name);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND),
            new AlterConfigOp(new ConfigEntry("retention.ms", ""), AlterConfigOp.OpType.DELETE)))).all().get();
        var config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        same(Set.of("compact", "delete"), Set.of(config.get("cleanup.policy").value().split(",")));
        same(ConfigEntry.ConfigSource.DEFAULT_CONFIG, config.get("retention.ms").source());
        failsWith(InvalidConfigurationException.class, () -> admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("retention.ms", "soon"), AlterConfigOp.OpType.SET)))).all().get());
        check(admin.listConfigResources().all().get().contains(resource), "the resource is listed");

        fill(name, 0, 90);
        var places = List.of(new TopicPartition(name, 0), new TopicPartition(name, 1), new TopicPartition(name, 2));
        var deleted = admin.deleteRecords(Map.of(places.get(0), RecordsToDelete.beforeOffset(10))).lowWatermarks();
        same(10L, deleted.get(places.get(0)).get().lowWatermark());
        same(10L, admin.listOffsets(Map.of(places.get(0), OffsetSpec.earliest())).partitionResult(places.get(0)).get().offset());

        var cluster = admin.describeCluster();
        same(1, cluster.nodes().get().size());
        int node = cluster.controller().get().id();
        var directories = admin.describeLogDirs(List.of(node)).allDescriptions().get().get(node);
        check(directories.values().stream().anyMatch(each -> each.replicaInfos().containsKey(places.get(1))), "the log is somewhere");
        same(Map.of(), admin.listPartitionReassignments().reassignments().get());
        check(admin.describeFeatures().featureMetadata().get().finalizedFeatures().containsKey("group.version"), "features");

        String group = "java-admin-group";
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        places.forEach(each -> offsets.put(each, new OffsetAndMetadata(20, Optional.of(0), "by hand")));
        admin.alterConsumerGroupOffsets(group, offsets).all().get();
        var told = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        same(offsets.keySet(), told.keySet());
        same("by hand", told.get(places.get(0)).metadata());
        check(admin.listGroups().all().get().stream().anyMatch(each -> each.groupId().equals(group)), "the group is listed");
        same(GroupState.EMPTY, admin.describeConsumerGroups(List.of(group)).all().get().get(group).groupState());
        admin.deleteConsumerGroupOffsets(group, Set.of(places.get(0))).all().get();
        same(2, admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().size());
        try (Member member = new Member(group, Map.of("group.instance.id", "left-behind"), name)) {
            until(() -> member.places().size() == 3, member);
            failsWith(GroupNotEmptyException.class, () -> admin.deleteConsumerGroups(List.of(group)).all().get());
            admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions(
                List.of(new MemberToRemove("left-behind")))).all().get();
            until(() -> member.failed.get() != null, new Member[0]);
            member.failed.set(null);
        }
        admin.deleteConsumerGroups(List.of(group)).all().get();
        check(admin.listGroups().all().get().stream().noneMatch(each -> each.groupId().equals(group)), "the group is gone");
        admin.deleteTopics(List.of(name)).all().get();
        check(!admin.listTopics().names().get().contains(name), "the topic is gone");
    }

    // -- parts -----------------------------------------------------------------------------------------------------

    /** A consumer of a group that polls and commits in a thread of its own. */
    private static final class Member implements AutoCloseable, ConsumerRebalanceListener {
        final ConcurrentLinkedQueue<String> seen = new ConcurrentLinkedQueue<>();
        final ConcurrentLinkedQueue<TopicPartition> assigned = new ConcurrentLinkedQueue<>();
        final ConcurrentLinkedQueue<TopicPartition> revoked = new ConcurrentLinkedQueue<>();
        final AtomicReference<Exception> failed = new AtomicReference<>();
        private volatile Set<TopicPartition> places = Set.of();
        private KafkaConsumer<String, String> used;
        private volatile boolean stopped;
        private final Thread thread;

        Member(String group, Map<String, Object> settings, String topics) {
            Map<String, Object> all = new HashMap<>(settings);
            all.put("group.id", group);
            all.put("metadata.max.age.ms", 500);
            thread = new Thread(() -> run(all, topics));
            thread.setDaemon(true);
            thread.start();
        }

        private void run(Map<String, Object> settings, String topics) {
            try (var consumer = consumer(settings)) {
                if (topics.contains("[")) {
                    consumer.subscribe(new SubscriptionPattern(topics), this);
                } else {
                    consumer.subscribe(List.of(topics), this);
                }
                used = consumer;
                while (!stopped) {
                    consumer.poll(Duration.ofMillis(50)).forEach(each -> seen.add(each.value()));
                    try {
                        consumer.commitSync();
                    } catch (RebalanceInProgressException error) {
                        continue; // what is given up is committed then
                    }
                    places = Set.copyOf(consumer.assignment());
                }
            } catch (RuntimeException error) {
                failed.set(error);
            }
        }

        Set<TopicPartition> places() {
            return places;
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            assigned.addAll(partitions);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            used.commitSync();
            revoked.addAll(partitions);
        }

        @Override
        public void close() throws Exception {
            stopped = true;
            thread.join();
            if (failed.get() != null) {
                throw failed.get();
            }
        }
    }

    private static Map<String, Object> with(Map<String, Object> settings, String name, Object value) {
        Map<String, Object> all = new HashMap<>(settings);
        all.put(name, value);
        return all;
    }

    private static KafkaProducer<String, String> producer(Map<String, Object> settings) {
        return new KafkaProducer<>(with(settings, "bootstrap.servers", bootstrap), new StringSerializer(), new StringSerializer());
    }

    private static KafkaConsumer<String, String> consumer(Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(
            Map.of("bootstrap.servers", bootstrap, "auto.offset.reset", "earliest", "enable.auto.commit", false));
        all.putAll(settings);
        return new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
    }

    private static String topic(String name, int partitions) throws Exception {
        // the records are from 1970
        var wanted = new NewTopic(name, partitions, (short) 1).configs(Map.of("retention.ms", "-1"));
        admin.createTopics(List.of(wanted)).all().get();
        return name;
    }

    private static void fill(String topic, int from, int until) throws Exception {
        int partitions = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (var producer = producer(Map.of())) {
            for (int n = from; n < until; n++) {
                sent.add(producer.send(new ProducerRecord<>(topic, n % partitions, "k" + n, "" + n)));
            }
        }
        for (Future<RecordMetadata> each : sent) {
            each.get();
        }
    }

    private static ConsumerRecord<String, String> next(KafkaConsumer<String, String> consumer) {
        for (long end = System.nanoTime() + WAIT.toNanos(); System.nanoTime() < end; ) {
            for (var each : consumer.poll(Duration.ofMillis(100))) {
                return each;
            }
        }
        throw new AssertionError("no record came");
    }

    private static List<ConsumerRecord<String, String>> read(String topic, int partition, String isolation, int count) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        TopicPartition place = new TopicPartition(topic, partition);
        try (var consumer = consumer(Map.of("isolation.level", isolation))) {
            consumer.assign(List.of(place));
            long end = consumer.endOffsets(List.of(place)).get(place);
            for (long late = System.nanoTime() + WAIT.toNanos(); consumer.position(place) < end; ) {
                check(System.nanoTime() < late, "read only " + found.size());
                consumer.poll(Duration.ofMillis(100)).forEach(found::add);
            }
        }
        check(count < 0 || found.size() == count, found.size() + " records, not " + count);
        return found;
    }

    private static int total(String topic, String isolation) {
        return read(topic, 0, isolation, -1).size() + read(topic, 1, isolation, -1).size();
    }

    private static long committed(String group) throws Exception {
        return admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().values().stream()
            .mapToLong(OffsetAndMetadata::offset).sum();
    }

    private static List<String> headers(Iterable<Header> headers) {
        List<String> found = new ArrayList<>();
        headers.forEach(each -> found.add(each.key() + "=" + (each.value() == null ? null : new String(each.value(), StandardCharsets.UTF_8))));
        return found;
    }

    private static Set<TopicPartition> union(Set<TopicPartition> one, Set<TopicPartition> other) {
        Set<TopicPartition> all = new HashSet<>(one);
        all.addAll(other);
        return all;
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static void until(Callable<Boolean> condition, Member... members) throws Exception {
        for (long end = System.nanoTime() + WAIT.toNanos(); !condition.call(); Thread.sleep(20)) {
            for (Member each : members) {
                if (each.failed.get() != null) {
                    throw new AssertionError("a member failed", each.failed.get());
                }
            }
            if (System.nanoTime() > end) {
                StringBuilder told = new StringBuilder("waited in vain");
                for (Member each : members) {
                    told.append("; ").append(each.places()).append(" and ").append(each.seen.size()).append(" records");
                }
                throw new AssertionError(told.toString());
            }
        }
    }

    private static void failsWith(Class<?> wanted, Callable<?> action) throws Exception {
        try {
            action.call();
        } catch (ExecutionException error) {
            same(wanted, error.getCause().getClass());
            return;
        }
        throw new AssertionError("no " + wanted.getSimpleName());
    }

    private static void same(Object wanted, Object found) {
        if (!Objects.equals(wanted, found)) {
            throw new AssertionError("wanted " + wanted + ", found " + found);
        }
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }
}
