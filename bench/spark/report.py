"""The report of `bench.spark`: bars first, then a table for each question, Markdown and JSON."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import stratalog
from bench.harness import Bar
from bench.spark.first import KEPT, PLAIN
from bench.spark.questions import (
    CONNECTOR,
    FEW,
    HEADERS,
    HEADERS_ENDS,
    MANY,
    NARROW,
    QUESTIONS,
    RECORDS,
    RECORDS_ENDS,
    SOURCE,
    TOLD,
)
from bench.spark.rewrites import PIPELINE, PROCESS, ROWS
from bench.spark.sizes import BATCH_BYTES, PARTITIONS, Load, Sizes
from stratalog import kernel

Rows = Mapping[str, Mapping[str, Sequence[float]]]
"""System, figure: every run's."""
Found = Mapping[str, Mapping[str, Rows]]
"""Those by session and measurement."""
QUESTION_NAMES = tuple(question.name for question in QUESTIONS)
SECTIONS = (*QUESTION_NAMES, "first", "totals", "segments", "window", "batches", "compact", "export")

ON, OFF = "sockets on", "sockets off"
UNCHANGED = {"count": 2.5, "sum": 2.5, "top": 2.0}
NARROWED = {"count": 5.0, "sum": 4.0, "top": 3.5}
WINDOW, WINDOW_TOLD = 25.0, 1.0
COMPACT, EXPORT = 5.0, 2.5
BATCHES_S = 0.3
FIRST, TOTALS, SEGMENTS = 2.0, 3.0, 2.0


@dataclass(frozen=True, slots=True)
class Section:
    """One table. ``base``: whose seconds the others are compared with."""

    title: str
    rows: Rows
    base: str
    bars: Sequence[Bar]

    def median(self, system: str, figure: str) -> float | None:
        values = self.rows.get(system, {}).get(figure)
        return median(values) if values else None


def environment(sizes: Sizes, repeat: int, kafka: str, connector: str) -> dict[str, Any]:
    """What the figures were taken with; no names of machines or paths."""
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    return {
        "stratalog": stratalog.__version__,
        "kernel_compiled": kernel.compiled,
        "python": platform.python_version(),
        "pyspark": importlib.metadata.version("pyspark"),
        "pyarrow": importlib.metadata.version("pyarrow"),
        "connector": connector,
        "kafka": kafka,
        "java": java.split('"')[1] if '"' in java else "unknown",
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
        "sizes": sizes.name,
        "repeat": repeat,
    }


def sections(sizes: Sizes, found: Found) -> list[Section]:
    """A table for whatever was measured."""
    made = [
        _question(load, session, each.name, each.title, found)
        for load in sizes.loads
        for session in (ON, OFF)
        for each in QUESTIONS
        if f"{load.topic}/{each.name}" in found.get(session, {})
    ]
    first, on = sizes.loads[0].topic, found[ON]
    others = {
        "first": _first,
        "totals": _totals,
        "segments": _segments,
        "window": _window,
        "compact": _compact,
        "export": _export,
        "batches": _batches,
    }
    for name, make in others.items():
        if (rows := on.get(f"{first}/{name}")) is not None:
            made.append(make(first, rows))
    return made


def _first(topic: str, rows: Rows) -> Section:
    bars = [_ratio(rows, PLAIN, KEPT, FIRST, "CPU time of a session's first query", figure="cpu_s")]
    return Section(f"{topic}: the first query of a session", rows, PLAIN, bars)


def _totals(topic: str, rows: Rows) -> Section:
    bars = [
        _ratio(rows, RECORDS, HEADERS, TOTALS, "`count()`, against decoded records"),
        _ratio(rows, RECORDS_ENDS, HEADERS_ENDS, TOTALS, "ends by partition, against decoded records"),
    ]
    return Section(f"{topic}: counts and ends", rows, RECORDS, bars)


def _segments(topic: str, rows: Rows) -> Section:
    times = median(rows[MANY]["seconds"]) / median(rows[FEW]["seconds"])
    text = f"a hundred times as many segments: at most {SEGMENTS:g}× as long"
    return Section(f"{topic}: many segments", rows, FEW, [Bar(text, f"{times:.2f}×", times <= SEGMENTS)])


def _window(topic: str, rows: Rows) -> Section:
    bars = [
        _ratio(rows, CONNECTOR, SOURCE, WINDOW, "a narrow window by `where`"),
        _ratio(rows, TOLD, SOURCE, WINDOW_TOLD, "the window, against `startingTimestamp`"),
    ]
    return Section(f"{topic}: a window of time by `where`", rows, CONNECTOR, bars)


def _compact(topic: str, rows: Rows) -> Section:
    bars = [
        _ratio(rows, ROWS, PIPELINE, COMPACT, "`compact`, against Spark SQL's rows"),
        _ratio(rows, PROCESS, PIPELINE, 1.0, "`compact`, against one process", goal=True),
    ]
    return Section(f"{topic}: `compact`", rows, ROWS, bars)


def _export(topic: str, rows: Rows) -> Section:
    bars = [
        _ratio(rows, ROWS, PIPELINE, EXPORT, "`export`, against Spark SQL's rows"),
        _ratio(rows, PROCESS, PIPELINE, 1.0, "`export`, against one process", goal=True),
    ]
    return Section(f"{topic}: `export` to Parquet", rows, ROWS, bars)


def _batches(topic: str, rows: Rows) -> Section:
    job = median(rows[SOURCE]["job_s"])
    text = f"view=batches, sum of records: under {BATCHES_S} s of job time"
    bar = Bar(text, f"{job * 1000:.0f} ms", job < BATCHES_S)
    return Section(f"{topic}: view=batches", rows, SOURCE, [bar])


def _question(load: Load, session: str, name: str, title: str, found: Found) -> Section:
    rows = found[session][f"{load.topic}/{name}"]
    about = f"{title}, {load.record_bytes:,} B, {session}"
    return Section(
        f"{load.topic}: {title}, {session}",
        rows,
        CONNECTOR,
        [
            _ratio(rows, CONNECTOR, SOURCE, UNCHANGED[name], f"{about}, unchanged"),
            _ratio(rows, CONNECTOR, NARROW, NARROWED[name], f"{about}, narrow schema"),
        ],
    )


def _ratio(
    rows: Rows,
    peer: str,
    ours: str,
    needed: float,
    what: str,
    *,
    goal: bool = False,
    figure: str = "seconds",
) -> Bar:
    ratio = median(rows[peer][figure]) / median(rows[ours][figure])
    return Bar(f"{what}: at least {needed:g}×", f"{ratio:.2f}×", ratio >= needed, goal)


def as_json(made: Sequence[Section], about: Mapping[str, Any], found: Found) -> dict[str, Any]:
    bars = [bar for section in made for bar in section.bars]
    return {
        "environment": dict(about),
        "bars": [{"text": bar.text, "figure": bar.figure, "verdict": bar.verdict} for bar in bars],
        "raw": found,
    }


def as_markdown(sizes: Sizes, made: Sequence[Section], about: Mapping[str, Any]) -> str:
    """Everything, bars first, every run's seconds in the tables."""
    lines = ["# Spark benchmarks", "", *_about(sizes, about), "", "## Bars", ""]
    bars = [[bar.text, bar.figure, _verdict(bar)] for section in made for bar in section.bars]
    lines += [*_table(["bar", "measured", "verdict"], bars), ""]
    for section in made:
        lines += [f"## {section.title}", "", *_figures(section), ""]
    return "\n".join(lines).rstrip() + "\n"


def _about(sizes: Sizes, about: Mapping[str, Any]) -> list[str]:
    loads = " and ".join(
        f"{load.records:,} records of {load.record_bytes:,} bytes ({load.topic})" for load in sizes.loads
    )
    kernel_is = "compiled" if about["kernel_compiled"] else "interpreted"
    flags = ["--small"] if sizes.name == "small" else []
    command = " ".join(("python -m bench.spark", *about["sections"], *flags))
    runs = "one run" if about["repeat"] == 1 else f"medians of {about['repeat']} runs taken in turn"
    method = (
        f"`{command} --repeat {about['repeat']}`, {about['minutes']} minutes:"
        f" {runs}, after one that does not count. {loads}, {PARTITIONS}"
        f" partitions each, produced once into the broker in batches of {BATCH_BYTES // 1024} KiB. stratalog"
        " reads a store that adopted the broker's segments by hard links and sealed them; “the broker's"
        " directory” is the same source on the log directory of the running broker. “×” is the compared"
        " system's seconds divided by the row's."
    )
    setting = (
        f"stratalog {about['stratalog']} ({kernel_is} kernel), PySpark {about['pyspark']}, Spark's Kafka"
        f" connector {about['connector']}, Kafka {about['kafka']}, Python {about['python']}, pyarrow"
        f" {about['pyarrow']}, Java {about['java']}; {about['machine']}, {about['cores']} cores, load average"
        f" {about['load_average']} at the end. The broker used {about['broker_cpu_s']} CPU seconds,"
        f" {about['broker_cpu_producing_s']} of them while the records were produced."
    )
    return [method, "", setting]


def _verdict(bar: Bar) -> str:
    return f"**{bar.verdict}**" if bar.verdict == "MISSED" else bar.verdict


def _figures(section: Section) -> list[str]:
    base = section.median(section.base, "seconds")
    extra = [("job_s", "job, s")] if any("job_s" in figures for figures in section.rows.values()) else []
    extra += [("size_mb", "MB")] if any("size_mb" in figures for figures in section.rows.values()) else []
    heads = ["", "seconds", f"× {section.base}", "CPU s", "broker's CPU s", *(head for _, head in extra)]
    rows = []
    for system, figures in section.rows.items():
        seconds = section.median(system, "seconds")
        ratio = "–" if not seconds or base is None else f"{base / seconds:.2f}×"
        cells = [system, _number(seconds), ratio]
        cells += [_number(section.median(system, name)) for name in ("cpu_s", "broker_cpu_s")]
        cells += [_number(section.median(system, name)) for name, _ in extra]
        rows.append([*cells, " ".join(f"{value:.2f}" for value in figures["seconds"])])
    return _table([*heads, "every run"], rows)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---", *("---:" for _ in heads[1:])]
    return ["| " + " | ".join(cells) + " |" for cells in (heads, rule, *rows)]
