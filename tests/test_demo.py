"""The demonstration, end to end with few events: it checks itself, and here its words and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stratalog
from demo.events import Events, number_of
from demo.screen import Screen

SOURCE = Path(stratalog.__file__).resolve().parents[1]
PATHS = f"{SOURCE}{os.pathsep}{SOURCE.parent}"
CHECKS = [
    "appended",
    "segments",
    "scanned",
    "by offset",
    "by time",
    "by key",
    "killed",
    "recovered",
    "torn tail",
    "compacted",
    "archived",
    "every state",
    "served",
]


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "demo", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "PYTHONPATH": PATHS, "PYTHONIOENCODING": "utf-8", **environment},
    )


def test_it_shows_every_step_and_checks_itself(tmp_path: Path) -> None:
    done = demo("--events", "5000", "--no-spark", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stderr == ""
    assert "13 of 13 checks passed" in done.stdout
    assert "✗" not in done.stdout
    assert "sealed" in done.stdout
    assert "active" in done.stdout
    assert "\x1b[" not in done.stdout, "plain when nobody looks"
    assert all(line == line.rstrip() for line in done.stdout.splitlines())
    assert list(tmp_path.glob("stratalog-demo-*")) == [], "it removes its data"


def test_json_has_the_facts_and_the_directory_stays(tmp_path: Path) -> None:
    where = tmp_path / "store"
    done = demo("--events", "3000", "--dir", str(where), "--json", "--no-spark")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert [check["name"] for check in facts["checks"]] == CHECKS
    assert all(check["passed"] for check in facts["checks"])
    assert facts["lost"] == 0
    assert facts["acknowledged"] >= 2000
    assert facts["recover_scanned_bytes"] > 0
    with stratalog.open(where, read_only=True) as store:
        topic = store.topic("orders")
        assert topic.scan().read_all().num_rows >= 3000 + facts["acknowledged"]
        assert any(where.glob("orders-0/*.torn-*"))
    again = demo("--events", "10", "--dir", str(where))
    assert again.returncode == 2
    assert "already holds a store" in again.stderr


@pytest.mark.parametrize("count", ["0", "-1"])
def test_impossible_counts_are_refused(count: str) -> None:
    done = demo("--events", count)
    assert done.returncode == 2
    assert "--events" in done.stderr


def test_a_failed_check_is_seen() -> None:
    screen = Screen(silent=True)
    screen.check("good", True, "fine")
    assert not screen.failed
    screen.check("bad", False, "1 of 2")
    assert [check.name for check in screen.failed] == ["bad"]


def test_events_follow_from_their_numbers() -> None:
    events = Events(2_000, 1_800_000_000_000)
    made = [events.record(number) for number in range(2_000)]
    assert [number_of(record.value or b"") for record in made] == list(range(2_000))
    assert max(events.timestamp(number) for number in range(5_000)) <= events.end_ms
    many = Events(1_000_000, events.end_ms)
    times = [many.timestamp(number) for number in range(2_000)]
    assert times != sorted(times), "times are out of order"
    for customer in (0, 7, events.customers - 1):
        expected = [n for n, record in enumerate(made) if record.key == b"customer-%06d" % customer]
        assert events.of_customer(customer) == expected
    since = events.timestamp(500)
    until = since + 600_000
    expected = [n for n, record in enumerate(made) if since <= (record.timestamp or 0) < until]
    assert events.between(since, until) == expected
