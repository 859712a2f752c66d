"""The command line on a real Kafka: the answers are those of a store, and a password is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stratalog.cli.guard import ExitCode
from tests.cli.cluster_shell import ClusterShell
from tests.cli.shell import Shell
from tests.interop.kafka import KafkaBroker, free_ports, wait_until

pytestmark = pytest.mark.interop

SASL = "SASL_PLAINTEXT"
BASE = 1_790_000_000_000
ROWS = "".join(
    json.dumps({"key": f"k{n % 9}", "value": f"v{n}", "timestamp": BASE + n * 1000, "headers": {"h": str(n)}})
    + "\n"
    for n in range(90)
)


def test_topics_records_and_groups(broker: KafkaBroker, tmp_path: Path) -> None:
    from confluent_kafka import Consumer

    topic = "cli-orders"
    local, cluster = Shell(tmp_path / "local"), ClusterShell(broker.bootstrap)
    for shell in (local, cluster):
        assert shell.json(
            "topic", "create", topic, "-p", "3", "-c", "retention.ms=-1", "-c", "segment.ms=1d"
        ) == {
            "topic": topic,
            "created": True,
        }
        assert shell("topic", "create", topic).exit_code == ExitCode.TOPIC_EXISTS
        assert shell("topic", "create", "x", "-c", "no.such.setting=1").exit_code == ExitCode.USAGE
        appended = shell.json("append", topic, "--jsonl", stdin=ROWS)
        assert appended["records"] == 90
    for arguments in ([], ["--from", "-2"], ["--from", f"@{BASE + 30_000}", "--to", f"@{BASE + 60_000}"],
                      ["-p", "1", "--from", "3", "--to", "9"], ["--key", "k4", "--last"]):  # fmt: skip
        told = [shell.ok("read", topic, "--json", *arguments) for shell in (local, cluster)]
        assert told[0] == told[1], arguments
        assert told[0]

    described: dict[str, Any] = cluster.json("topic", "describe", topic)
    assert described["config"]["retention.ms"] == {"value": "-1", "source": "topic"}
    assert sum(row["log_end_offset"] for row in described["details"]) == 90
    metadata = (broker.partition_dir(topic) / "partition.metadata").read_text()
    assert f"topic_id: {described['id']}" in metadata
    cluster.ok("topic", "alter", topic, "-c", "segment.bytes=2MiB", "--unset", "segment.ms", "-p", "4")
    changed = {
        row["name"]: (row["value"], row["source"]) for row in cluster.json("config", topic, "--changed")
    }
    assert changed["segment.bytes"] == (str(2 << 20), "topic")
    assert "segment.ms" not in changed
    assert "segment.bytes" in cluster.ok("config", topic)

    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "cli-g", "auto.offset.reset": "earliest"}
    member = Consumer(settings)
    member.subscribe([topic])
    wait_until(lambda: member.poll(1) is not None, "a record")
    refused = cluster("group", "reset-offsets", "cli-g", "-t", topic, "--to", "earliest", "--yes")
    assert (refused.exit_code, "has members" in refused.stderr) == (ExitCode.CLUSTER, True)
    member.close()
    cluster.ok("group", "reset-offsets", "cli-g", "-t", topic, "--to", "-2", "--yes")
    rows = cluster.json("group", "describe", "cli-g")["partitions"]
    assert [row["lag"] for row in rows] == [2, 2, 2, 0]
    assert "cli-g" in [row["group"] for row in cluster.json("group", "list")]
    cluster.ok("group", "delete", "cli-g", "--yes")
    assert cluster("group", "describe", "cli-g").exit_code == ExitCode.NOT_FOUND
    cluster.ok("topic", "delete", topic, "--yes")
    wait_until(lambda: topic not in cluster.ok("topic", "list"), "the deletion")
    for arguments in (["topic", "describe", topic], ["read", topic], ["append", topic]):
        assert cluster(*arguments, stdin="x\n").exit_code == ExitCode.NOT_FOUND
    assert topic not in cluster.ok("topic", "list"), "nothing created it again"


def test_a_record_that_kafka_refuses_is_named(broker: KafkaBroker) -> None:
    cluster = ClusterShell(broker.bootstrap)
    cluster.ok("topic", "create", "cli-small", "-c", "max.message.bytes=2000")
    lines = "".join(f"{number}\n" for number in range(500))
    assert cluster.json("append", "cli-small", stdin=lines)["records"] == 500
    result = cluster("append", "cli-small", stdin="x" * 3000 + "\n")
    assert result.exit_code == ExitCode.RECORD_REFUSED
    assert "stdin line 1: " in result.stderr
    assert len(cluster.lines("read", "cli-small")) == 500


def test_a_password_comes_from_the_file_that_kafkas_tools_take(tmp_path: Path) -> None:
    plain, controller, secured = free_ports(3)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    listeners = f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{secured}"
    broker = KafkaBroker(
        tmp_path / "kafka",
        {
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": listeners,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{SASL}:{SASL},CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{module} user_alice="s=ecret";',
        },
    )
    broker.bootstrap = f"127.0.0.1:{plain}"
    file = tmp_path / "client.properties"
    cluster = ClusterShell(f"127.0.0.1:{secured}")
    with broker:
        for password, code in [("s=ecret", ExitCode.OK), ("wrong", ExitCode.CLUSTER)]:
            file.write_text(
                "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
                f'sasl.jaas.config={module} username="alice" password="{password}";\n'
            )
            result = cluster("topic", "list", "--command-config", str(file))
            assert result.exit_code == code, result.output
        assert "uthentication failed" in result.stderr
        assert result.stderr.count("\n") == 1
