"""SIGKILL an export and a materialize anywhere, again and again: each record is in the output once.

The child runs both in one process, as executors would; the log grows between the kills.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

import stratalog
from stratalog import Record
from stratalog.spark.pipelines.export import TABLES, export
from stratalog.spark.pipelines.materialize import materialize
from tests.spark.exports import READERS, fill, log_rows
from tests.spark.in_process import in_process

CHILD = """
import sys
from stratalog.spark.pipelines.export import export
from stratalog.spark.pipelines.materialize import materialize
from tests.spark.in_process import in_process

log, output, table = sys.argv[1:]
import deltalake, pyiceberg.catalog.sql, pyiceberg.io.pyarrow  # what takes time and changes nothing
print("begin", flush=True)
export(in_process(), path=log, topics=["orders", "clicks.v1"], output=output + "/" + table, table=table)
print("exported", flush=True)
materialize(in_process(), path=log, topic="users", output=output + "/latest")
print("done", flush=True)
"""
ROUNDS = 5


@pytest.mark.parametrize("table", TABLES)
def test_killed_again_and_again(tmp_path: Path, table: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    log, output = tmp_path / "log", tmp_path / "out"
    grow(log, chance)
    longest_s = 1.0
    killed = 0
    for turn in range(1, ROUNDS + 1):
        grow(log, chance)
        child = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", CHILD, str(log), str(output), table],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "begin\n"
        began = time.monotonic()
        if turn == 1:  # how long it takes without a kill
            assert child.stdout.read() == "exported\ndone\n"
            longest_s = time.monotonic() - began
        else:
            time.sleep(chance.uniform(0, longest_s))
            child.send_signal(signal.SIGKILL)
        child.stdout.close()
        killed += child.wait() == -signal.SIGKILL
    assert killed
    topics = ["orders", "clicks.v1"]
    export(in_process(), path=str(log), topics=topics, output=str(output / table), table=table)
    materialize(in_process(), path=str(log), topic="users", output=str(output / "latest"))
    assert READERS[table](output / table) == log_rows(log)
    latest: dict[bytes, bytes | None] = {}
    with stratalog.open(log, read_only=True) as store:
        for partition in range(2):
            latest |= {each.key or b"": each.value for each in store.topic("users").read(partition)}
    rows = DeltaTable(str(output / "latest")).to_pyarrow_table().to_pylist()
    assert len({row["key"] for row in rows}) == len(rows)
    assert {row["key"]: row["value"] for row in rows} == {k: v for k, v in latest.items() if v is not None}


def grow(log: Path, chance: random.Random) -> None:
    """More to export, and users that come, change and go."""
    fill(log, chance.randrange(1 << 32), count=30)
    with stratalog.open(log) as store:
        if "users" not in store.topics():
            store.create_topic("users", 2)
        store.topic("users").append_many(
            [
                Record(None if chance.random() < 0.2 else b"%d" % chance.randrange(99), b"u%d" % user)
                for user in chance.choices(range(40), k=30)
            ]
        )
