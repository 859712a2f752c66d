"""Kafka's own Java tools and clients 4.3.1 at our broker: what a user of Kafka tries first."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

import stratalog
from stratalog import Broker, Store
from tests.interop.kafka import java

pytestmark = pytest.mark.interop
TOOLS = "org.apache.kafka.tools."


class Tools:
    """Runs tools, in JVMs of their own, against one broker."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.broker = broker
        self.directory = directory
        self.bootstrap = broker.bootstrap_servers

    def run(self, name: str, *arguments: str, given: str = "", fails: bool = False) -> str:
        """Return what a tool prints; ``{}`` in an argument is the broker's address."""
        name = name if name.startswith("kafka.") else TOOLS + name
        done = subprocess.run(
            java(name, *(each.replace("{}", self.bootstrap) for each in arguments), log_level="ERROR"),
            input=given, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=120, check=False,
        )  # fmt: skip
        assert (done.returncode != 0) == fails, f"{name} {arguments}: {done.stdout}"
        assert "UnsupportedVersionException" not in done.stdout, done.stdout
        return done.stdout

    def file(self, name: str, text: str) -> str:
        path = self.directory / name
        path.write_text(text)
        return str(path)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    base = tmp_path_factory.mktemp("tools")
    with stratalog.open([base / "a", base / "b"]) as store:
        yield store


@pytest.fixture(scope="module")
def tools(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    with stratalog.serve(store) as broker:
        yield Tools(broker, tmp_path_factory.mktemp("files"))


def test_topics_and_their_settings(tools: Tools, store: Store) -> None:
    topics = "TopicCommand", "--bootstrap-server", "{}"
    made = "--create", "--topic", "made", "--partitions", "3", "--config", "retention.ms=1000000"
    assert "Created topic made" in tools.run(*topics, *made)
    assert "already exists" in tools.run(*topics, *made, fails=True)
    three = "--create", "--topic", "three", "--replication-factor", "3"
    assert "replication.factor is 1" in tools.run(*topics, *three, fails=True)
    told = tools.run(*topics, "--describe", "--topic", "made")
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: .*retention.ms=1000000", told)
    assert len(re.findall(r"Leader: 1\s+Replicas: 1\s+Isr: 1", told)) == 3
    tools.run(*topics, "--alter", "--topic", "made", "--partitions", "5")
    assert store["made"].partitions == 5
    assert "made" in tools.run(*topics, "--list").split()
    configs = "kafka.admin.ConfigCommand", "--bootstrap-server", "{}", "--entity-type", "topics"
    tools.run(*configs, "--entity-name", "made", "--alter", "--add-config", "cleanup.policy=[compact,delete]")
    assert store["made"].config.cleanup_policy == {"compact", "delete"}
    told = tools.run(*configs, "--entity-name", "made", "--describe", "--all")
    assert "cleanup.policy=compact,delete" in told
    assert "segment.bytes=1073741824" in told
    tools.run(*configs, "--entity-name", "made", "--alter", "--delete-config", "cleanup.policy")
    assert store["made"].config.cleanup_policy == {"delete"}
    brokers = "kafka.admin.ConfigCommand", "--bootstrap-server", "{}", "--entity-type", "brokers"
    assert "num.partitions=1" in tools.run(*brokers, "--entity-name", "1", "--describe", "--all")
    tools.run(*topics, "--delete", "--topic", "made")
    assert "made" not in store.topics()


def test_console_and_verifiable_clients(tools: Tools, store: Store) -> None:
    store.create_topic("lines", 2)
    lines = [f"k{number}:v{number}" for number in range(20)]
    tools.run(
        "ConsoleProducer", "--bootstrap-server", "{}", "--topic", "lines",
        "--property", "parse.key=true", "--property", "key.separator=:", given="\n".join(lines) + "\n",
    )  # fmt: skip
    told = tools.run(
        "consumer.ConsoleConsumer", "--bootstrap-server", "{}", "--topic", "lines", "--from-beginning",
        "--max-messages", "20", "--property", "print.key=true", "--property", "key.separator=:",
        "--isolation-level", "read_committed", "--timeout-ms", "60000", "--group", "console",
    )  # fmt: skip
    assert sorted(line for line in told.splitlines() if re.match(r"k\d+:", line)) == sorted(lines)
    assert sorted(record.key for record in store["lines"].read()) == sorted(
        line.split(":")[0].encode() for line in lines
    )
    store.create_topic("verified", 3)
    told = tools.run(
        "VerifiableProducer", "--bootstrap-server", "{}", "--topic", "verified", "--max-messages", "500",
        "--acks", "-1",
    )  # fmt: skip
    sums = [json.loads(line) for line in told.splitlines() if '"tool_data"' in line]
    assert [(each["sent"], each["acked"]) for each in sums] == [(500, 500)]
    told = tools.run(
        "VerifiableConsumer", "--bootstrap-server", "{}", "--topic", "verified", "--group-id", "verifier",
        "--max-messages", "500", "--reset-policy", "earliest", "--verbose",
    )  # fmt: skip
    seen = [json.loads(line) for line in told.splitlines() if '"record_data"' in line]
    assert sorted(int(each["value"]) for each in seen) == list(range(500))


def test_groups_are_shown_reset_and_deleted(tools: Tools, store: Store) -> None:
    topic = store.create_topic("grouped", 2)
    for number in range(10):
        topic.append(b"%d" % number, partition=number % 2, timestamp=1000 + number)
    tools.run(
        "consumer.ConsoleConsumer", "--bootstrap-server", "{}", "--topic", "grouped", "--from-beginning",
        "--max-messages", "10", "--timeout-ms", "60000", "--group", "readers",
    )  # fmt: skip
    groups = "consumer.group.ConsumerGroupCommand", "--bootstrap-server", "{}"
    told = tools.run(*groups, "--describe", "--group", "readers")
    assert len(re.findall(r"readers\s+grouped\s+[01]\s+5\s+5\s+0\s", told)) == 2
    assert "readers" in tools.run(*groups, "--list")
    reset = "--reset-offsets", "--group", "readers", "--topic", "grouped"
    told = tools.run(*groups, *reset, "--to-datetime", "1970-01-01T00:00:01.004Z", "--execute")
    assert len(re.findall(r"readers\s+grouped\s+[01]\s+2", told)) == 2
    assert "Empty" in tools.run(*groups, "--describe", "--group", "readers", "--state")
    tools.run(*groups, "--delete", "--group", "readers")
    assert "readers" not in tools.run(*groups, "--list")


def test_where_logs_begin_and_end(tools: Tools, store: Store) -> None:
    topic = store.create_topic("ends", 2)
    for number in range(10):
        topic.append(b"x" * 100, partition=0, timestamp=1000 + number)
    offsets = "GetOffsetShell", "--bootstrap-server", "{}", "--topic-partitions", "ends:0", "--time"
    for time, offset in (("earliest", 0), ("latest", 10), ("max-timestamp", 9), ("1004", 4)):
        assert tools.run(*offsets, time).strip() == f"ends:0:{offset}"
    wanted = {"partitions": [{"topic": "ends", "partition": 0, "offset": 3}], "version": 1}
    told = tools.run(
        "DeleteRecordsCommand", "--bootstrap-server", "{}",
        "--offset-json-file", tools.file("delete.json", json.dumps(wanted)),
    )  # fmt: skip
    assert re.search(r"ends-0\s+low_watermark: 3", told)
    assert topic.log_start_offset(0) == 3


def test_log_directories(tools: Tools, store: Store) -> None:
    store.create_topic("placed").append(b"x" * 1000)
    told = tools.run("LogDirsCommand", "--bootstrap-server", "{}", "--describe", "--topic-list", "placed")
    [broker] = json.loads(next(line for line in told.splitlines() if line.startswith("{")))["brokers"]
    assert {each["logDir"] for each in broker["logDirs"]} == {each.path for each in store.log_dirs()}
    [part] = [part for each in broker["logDirs"] for part in each["partitions"]]
    assert part["size"] > 1000


def test_the_cluster(tools: Tools, store: Store) -> None:
    assert tools.broker.cluster_id in tools.run("ClusterTool", "cluster-id", "--bootstrap-server", "{}")
    assert "127.0.0.1" in tools.run("ClusterTool", "list-endpoints", "--bootstrap-server", "{}")
    told = tools.run("BrokerApiVersionsCommand", "--bootstrap-server", "{}")
    assert re.search(r"Fetch\(1\): 4 to 18 \[usable: 18\]", told)
    told = tools.run("MetadataQuorumCommand", "--bootstrap-server", "{}", "describe", "--status")
    assert re.search(r"LeaderId:\s+1", told)
    store.create_topic("elected")
    told = tools.run(
        "LeaderElectionCommand", "--bootstrap-server", "{}", "--election-type", "preferred",
        "--topic", "elected", "--partition", "0",
    )  # fmt: skip
    assert "Valid replica already elected for partitions elected-0" in told


def test_transactions_are_shown_and_ended(tools: Tools, store: Store) -> None:
    store.create_topic("moved", 2)
    made = Producer({"bootstrap.servers": tools.bootstrap, "transactional.id": "mover", "log_level": 0})
    made.init_transactions(60)
    made.begin_transaction()
    made.produce("moved", b"open", partition=1)
    assert made.flush(60) == 0
    transactions = "TransactionsCommand", "--bootstrap-server", "{}"
    told = tools.run(*transactions, "list", "--transactional-id-pattern", "mov.*")
    [row] = re.findall(r"^mover\s+1\s+(\d+)\s+Ongoing", told, re.MULTILINE)
    told = tools.run(*transactions, "describe", "--transactional-id", "mover")
    assert re.search(rf"^1\s+mover\s+{row}\s+0\s+Ongoing\s+60000\s.*\smoved-1\s*$", told, re.MULTILINE)
    told = tools.run(*transactions, "describe-producers", "--topic", "moved", "--partition", "1")
    assert re.search(rf"^{row}\s+0\s+-1\s+0\s+\d+\s+0\s*$", told, re.MULTILINE)
    told = tools.run(*transactions, "find-hanging", "--topic", "moved")
    assert "moved" not in told, "a transaction with a coordinator does not hang"
    tools.run(*transactions, "forceTerminateTransaction", "--transactionalId", "mover")
    with pytest.raises(KafkaException, match="fenced"):
        made.commit_transaction(60)
    assert "Ongoing" not in tools.run(*transactions, "describe", "--transactional-id", "mover")
    assert store["moved"].high_watermark(1, "read_committed") == store["moved"].log_end_offset(1) == 2
    assert list(store["moved"].read(isolation="read_committed")) == []


def test_perf_clients_at_the_same_time(tools: Tools, store: Store) -> None:
    store.create_topic("perf", 4)
    count = 20_000
    produce = (
        "ProducerPerformance", "--bootstrap-server", "{}", "--topic", "perf", "--num-records", str(count),
        "--record-size", "200", "--throughput", "-1", "--command-property", "compression.type=lz4",
    )  # fmt: skip
    consume = (
        "ConsumerPerformance", "--bootstrap-server", "{}", "--topic", "perf",
        "--num-records", str(2 * count), "--timeout", "60000",
    )  # fmt: skip
    with ThreadPoolExecutor(2) as pool:
        for each in pool.map(lambda _: tools.run(*produce), range(2)):
            assert f"{count} records sent" in each
    assert sum(store["perf"].log_end_offset(partition) for partition in range(4)) == 2 * count
    told = tools.run(*consume)
    assert f", {2 * count}, " in told
    assert stratalog.verify(store).ok
