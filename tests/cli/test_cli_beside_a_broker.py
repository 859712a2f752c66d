"""Commands that change files under a broker: its clients read on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from tests.cli.shell import Shell

WAIT_S = 60
SERVED = """
import sys, stratalog
*dirs, archive = sys.argv[1:]
with stratalog.open(dirs, {"log.archive.url": archive}) as store, stratalog.serve(store) as broker:
    kept = store.create_topic("kept", 1, {"cleanup.policy": "compact"})
    for value in (b"first", b"second", b"third"):
        kept.append(value, key=b"k")
    kept.append(b"gone", key=b"forget")
    kept.roll()
    old = store.create_topic("old", 1, {"remote.storage.enable": True, "local.retention.bytes": 0})
    old.append(b"old")
    old.roll()
    old.append(b"new")
    print(broker.bootstrap_servers, flush=True)
    sys.stdin.read()
"""


def read(consumer: Consumer, topic: str, end: int) -> list[bytes]:
    """Read a partition from its start up to the record at ``end``."""
    found: list[bytes] = []
    consumer.assign([TopicPartition(topic, 0, 0)])
    while True:
        message = consumer.poll(WAIT_S)
        assert message is not None, f"{topic}: {found}"
        assert message.error() is None, message.error()
        found.append(message.value() or b"")
        if (message.offset() or 0) >= end:
            return found


def committed(consumer: Consumer) -> int:
    [place] = consumer.committed([TopicPartition("kept", 0)], timeout=WAIT_S)
    return int(place.offset)


def test_a_topics_life_goes_on_beside_a_broker(tmp_path: Path) -> None:
    dirs = [str(tmp_path / name) for name in "ab"]
    shell = Shell(*dirs)
    with subprocess.Popen(
        [sys.executable, "-c", SERVED, *dirs, str(tmp_path / "archive")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        consumer = Consumer(
            {
                "bootstrap.servers": process.stdout.readline().strip(),
                "group.id": "billing",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.commit(offsets=[TopicPartition("kept", 0, 2)], asynchronous=False)
        assert read(consumer, "kept", 3) == [b"first", b"second", b"third", b"gone"]

        shell.ok("compact", "--topic", "kept", "--force")
        assert read(consumer, "kept", 3) == [b"third", b"gone"]
        shell.ok("erase", "kept", "--key", "forget", "--yes")
        shell.ok("append", "kept", "--key", "k", stdin="fourth\n")
        assert read(consumer, "kept", 4) == [b"third", b"fourth"]
        [other] = [each for each in dirs if not Path(each, "kept-0").exists()]
        shell.ok("topic", "move", "kept", "--partition", "0", "--to", other)
        assert read(consumer, "kept", 4) == [b"third", b"fourth"]

        shell.ok("archive")
        shell.ok("janitor")
        assert shell.json("segments", "old")[0]["state"] == "archived"
        assert read(consumer, "old", 1) == [b"old", b"new"]

        shell.ok("clone", str(tmp_path / "clone"))
        shell.ok("restore", str(tmp_path / "restored"), "--to-time", "2099-01-01T00:00:00Z")
        shell.ok("export", "kept", str(tmp_path / "kept.topic"))
        shell.ok("import", str(tmp_path / "kept.topic"), "--name", "again")
        assert read(consumer, "again", 4) == [b"third", b"fourth"]

        assert [each["group"] for each in shell.json("group", "list")] == ["billing"]
        shell.ok("group", "reset-offsets", "billing", "--topic", "kept", "--to", "4", "--yes")
        assert committed(consumer) == 4
        shell.ok("group", "delete", "billing", "--yes")
        assert committed(consumer) < 0
        consumer.close()
        shell.ok("verify")
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(WAIT_S) == 0
