"""The examples, run as they are: killed, started again, and right in the end."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

import stratalog

GOLDEN = Path(__file__).parent / "golden" / "kafka-4.3.1"
EXAMPLES = Path(__file__).parents[1] / "examples"
ORDERS = 300
KILLS = 8


def test_an_outbox_takes_effect_once_through_kills(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "outbox.py"), str(tmp_path), "--orders", str(ORDERS)]
    chance, kills = random.Random(7), 0
    while True:
        with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
            try:
                out, _ = running.communicate(timeout=chance.uniform(0.2, 1.0) if kills < KILLS else 120)
                break
            except subprocess.TimeoutExpired:
                running.kill()
                kills += 1
    assert running.returncode == 0
    expected = {
        name: sum(n for n in range(1, ORDERS + 1) if n % 3 == at)
        for at, name in enumerate(("ann", "bob", "eve"))
    }
    assert json.loads(out) == expected, f"after {kills} kills"


def test_event_sourced_accounts_are_never_overdrawn(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "event_sourcing.py"), str(tmp_path), "--transfers", "100"]
    events = 0
    for _ in range(2):  # the second time it begins with a snapshot
        done = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        assert done["events"] > events
        events = done["events"]
    with stratalog.open(tmp_path, read_only=True) as store:
        balances = Counter(dict.fromkeys(done["balances"], 100))
        for record in store["transfers"].read():
            event = json.loads(record.value or b"")
            assert balances[event["from"]] >= event["amount"], f"overdrawn by offset {record.offset}"
            balances[event["from"]] -= event["amount"]
            balances[event["to"]] += event["amount"]
        assert dict(balances) == done["balances"]
        assert store["snapshots"].log_end_offset() > 1


def test_a_dead_brokers_directory_becomes_parquet(tmp_path: Path) -> None:
    directory = shutil.copytree(GOLDEN / "log-dir", tmp_path / "kafka")
    before = sorted((path.name, path.stat().st_mtime_ns) for path in directory.rglob("*"))
    command = [sys.executable, str(EXAMPLES / "dead_broker.py"), str(directory), str(tmp_path / "out")]
    subprocess.run(command, check=True)
    assert sorted((path.name, path.stat().st_mtime_ns) for path in directory.rglob("*")) == before
    with stratalog.open(directory, read_only=True) as store:
        assert len(store) > 3
        for topic in store:
            table = pq.read_table(tmp_path / "out" / f"{topic.name}.parquet")
            read = list(topic.read(order="partition"))
            assert table["value"].to_pylist() == [record.value for record in read]
            assert table["offset"].to_pylist() == [record.offset for record in read]
    command.append("nope")
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "nope" in failed.stderr


def test_metrics_are_measured_and_asked_by_time(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "metrics.py"), str(tmp_path), "--seconds", "0.3"]
    for _ in range(2):
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["load", "memory.free"]
        assert float(lines[1].split()[1]) > 0
    with stratalog.open(tmp_path, read_only=True) as store:
        assert store["metrics"].config.retention_ms == 3_600_000
        assert store["metrics"].log_end_offset() >= 8
