"""The broker's benchmark in its smallest size, without Kafka: every load gives figures. Not speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stratalog
from bench.broker import __main__
from bench.broker.bench import Bench
from bench.broker.sections import SECTIONS, at_least, at_most
from bench.broker.servers import KAFKA, OURS
from bench.harness import MismatchError, Row, Section

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(stratalog.__file__).resolve().parents[1]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.broker", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONIOENCODING": "utf-8"},
    )


def test_every_load_gives_figures(tmp_path: Path) -> None:
    written = tmp_path / "RESULTS.md"
    where = ["--dir", str(tmp_path), "--report", str(written)]
    done = bench("--quick", "--no-kafka", "--json", *where)
    assert done.returncode == 0, done.stderr
    sections = {each["name"]: each for each in json.loads(done.stdout)["sections"]}
    kinds = {name.partition(",")[0] for name in sections}
    assert kinds == set(SECTIONS) - {"tools"}, "Kafka's tools are not run without Kafka"
    for name, section in sections.items():
        (row,) = section["rows"]
        assert row["system"] == OURS
        for figure, values in row["raw"].items():
            least = 0 if figure.startswith("cpu") else 1e-9  # ticks of a hundredth of a second
            assert all(value >= least for value in values), (name, figure, values)
        assert {bar["verdict"] for bar in section["bars"]} <= {"not measured"}
    text = written.read_text()
    assert all(section["title"] in text for section in sections.values())
    assert str(ROOT) not in text
    assert list(tmp_path.glob("broker-*")) == [], "the data is removed"


def test_unknown_sections_are_named() -> None:
    done = bench("nonsense")
    assert done.returncode == 2
    assert "nonsense" in done.stderr
    assert ", ".join(SECTIONS) in done.stderr


def test_a_section_that_fails_is_told_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(bench: Bench) -> Iterator[Section]:
        yield from SECTIONS["start"](bench)
        bench.servers[0].stop()
        raise MismatchError("it is gone")

    monkeypatch.setattr(
        __main__, "SECTIONS", {"broken": broken, "start": SECTIONS["start"], "memory": SECTIONS["memory"]}
    )
    written = tmp_path / "RESULTS.md"
    where = ["--dir", str(tmp_path), "--report", str(written)]
    assert __main__.main(["--quick", "--no-kafka", "broken", "memory", *where]) == 1
    text = written.read_text()
    assert "| broken: everything is measured | failed" in " ".join(text.split())
    assert "It ended with an error: it is gone." in text
    assert "## Start to ready" in text, "what it measured before it failed"
    assert "## Memory after a load" in text
    assert "not finished" not in text


def test_bars_compare_with_kafka_and_say_when_they_are_missed() -> None:
    section = Section("x", "X", (("rate", "requests/s", ",.0f"),))
    section.rows = [Row(OURS, {"rate": [20.0, 30.0, 40.0]}), Row(KAFKA, {"rate": [10.0, 20.0, 90.0]})]
    assert at_least(section, "rate", 1.5, "it").verdict == "met"
    missed = at_least(section, "rate", 1.6, "it")
    assert (missed.verdict, missed.figure) == ("MISSED", "1.50×")
    assert at_most(section, "rate", 1.5, "it").verdict == "met"
    assert at_most(section, "rate", 1.4, "it").verdict == "MISSED"
    assert at_most(section, "absent", 1.4, "it").verdict == "not measured"
