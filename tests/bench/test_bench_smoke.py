"""The benchmarks in their smallest size: every section gives numbers and equal outputs. Not speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stratalog
from bench import report
from bench.harness import Bar, Case, MismatchError, Row, Section, ratio_bar, take_turns
from bench.records import Row as Record
from bench.records import expected_table, key_of, rows
from bench.sections import SECTIONS
from bench.sections.append import check
from bench.sizes import KEY_BYTES, VALUE_BYTES
from bench.systems import PEER_NAMES, Stratalog

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(stratalog.__file__).resolve().parents[1]
SYSTEMS = {"stratalog", *PEER_NAMES}
ROWS = {
    "append": {*SYSTEMS, "stratalog, from Arrow", "lmdb, writemap"},
    "append-sync": {*SYSTEMS, "stratalog, from Arrow"},
    "append-large": {"stratalog", "stratalog, from Arrow"},
    "single": SYSTEMS,
    "single-sync": SYSTEMS,
    "produce": {"1 × 100 B", "1000 × 1 KiB, idempotent", "1 × 100 B, 16 producers"},
    "scan": {*SYSTEMS, "stratalog, one-record batches"},
    "point-offset": {*SYSTEMS, "stratalog, one-record batches"},
    "point-key": {*SYSTEMS, "stratalog, one-record batches"},
    "recovery": {"batches of 1,000", "one-record batches"},
    "dump": {"stratalog dump"},
    "compaction": {"stratalog"},
    "archive-upload": {"stratalog", "plain copy", "plain copy, synced"},
    "archive-read": {"stratalog", "plain read"},
    "start": {"stratalog --help", "stratalog read", "stratalog topic list"},
}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONIOENCODING": "utf-8"},
    )


def test_every_section_gives_numbers_and_equal_outputs(tmp_path: Path) -> None:
    written = tmp_path / "RESULTS.md"
    where = ["--dir", str(tmp_path), "--report", str(written)]
    done = bench("--sizes", "smoke", "--no-kafka", "--repeat", "1", "--json", *where)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    sections = {section["name"]: section for section in found["sections"]}
    assert list(sections) == list(ROWS)
    for name, systems in ROWS.items():
        section = sections[name]
        assert systems <= {row["system"] for row in section["rows"]}
        for row in section["rows"]:
            assert row["raw"], row
            assert all(len(values) == 1 and values[0] > 0 for values in row["raw"].values()), row
        if name != "dump":
            assert section["equal"], name
    bars = [bar for section in sections.values() for bar in section["bars"]]
    assert len(bars) == 22
    judged = {"met", "MISSED", "reached", "not reached", "not measured"}
    assert {bar["verdict"] for bar in bars} <= judged
    dump = sections["dump"]
    assert any("not measured" in note for note in dump["notes"]), "a report without Kafka's tool says so"
    assert dump["bars"][0]["verdict"] == "not measured"
    text = written.read_text()
    assert all(section["title"] in text for section in sections.values())
    assert str(ROOT) not in text
    assert list(tmp_path.glob("data-*")) == [], "the stores are removed"


def test_unknown_sections_are_named() -> None:
    done = bench("--only", "append,nonsense")
    assert done.returncode == 2
    assert "nonsense" in done.stderr
    assert ", ".join(SECTIONS) in done.stderr


def test_records_have_one_size_and_keys_repeat() -> None:
    made = rows(0, 1_000)
    assert {len(row.key) for row in made} == {KEY_BYTES}
    assert {len(row.value) for row in made} == {VALUE_BYTES}
    assert len({row.key for row in made}) == 200
    assert made[17] == Record(17, key_of(17, 1_000), made[17].value)


def test_a_store_that_lost_a_record_is_not_measured(tmp_path: Path) -> None:
    store = Stratalog(tmp_path)
    try:
        store.append_batch(store.prepare(rows(0, 9, 10)))
        with pytest.raises(MismatchError):
            check(store, 10)
        store.append_batch(store.prepare(rows(9, 10, 10)))
        check(store, 10)
        assert store.scan().equals(expected_table(10))
    finally:
        store.close()


def test_runs_take_turns_and_the_median_counts() -> None:
    seen: list[str] = []

    def run(name: str) -> dict[str, float]:
        seen.append(name)
        return {"rate": float(len(seen))}

    cases = [Case(name, lambda name=name: run(name)) for name in "abc"]  # type: ignore[misc]
    found = take_turns(cases, 3)
    assert seen == list("abcbcacab")
    assert [row.median("rate") for row in found] == [6.0, 4.0, 5.0]


def test_bars_say_when_they_are_missed() -> None:
    section = Section("x", "X", (("rate", "records/s", ",.0f"),))
    section.rows = [
        Row("stratalog", {"rate": [40.0]}),
        Row("lmdb", {"rate": [10.0]}),
        Row("sqlite", {"rate": [1.0]}),
    ]
    assert ratio_bar(section, "rate", "stratalog", ["lmdb", "sqlite"], 3, "it").verdict == "met"
    missed = ratio_bar(section, "rate", "stratalog", ["lmdb", "sqlite"], 5, "it")
    assert (missed.verdict, missed.figure) == ("MISSED", "4.00× lmdb")
    assert ratio_bar(section, "rate", "stratalog", ["lmdb"], 5, "it", goal=True).verdict == "not reached"
    assert ratio_bar(section, "rate", "stratalog", ["absent"], 5, "it").verdict == "not measured"
    section.bars = [missed, Bar("other", "–", None)]
    text = report.as_markdown([section], report.environment("quick", 3))
    assert "**MISSED**" in text
    assert "| lmdb" in text
    assert "4.00×" in text
