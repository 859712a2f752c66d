"""``stratalog dump --print-data-log`` against Kafka's own tool, as commands, on the same segment."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import stratalog
from bench.harness import Case, MismatchError, Sample, Section, ratio_bar, take_turns
from bench.plan import Plan
from bench.records import rows
from bench.sizes import BATCH
from bench.systems.ours import TOPIC

OURS, KAFKA = "stratalog dump", "kafka-dump-log"
COLUMNS = (("mb_per_s", "MB/s", ",.1f"), ("seconds", "seconds", ".2f"), ("size_mb", "segment, MB", ",.0f"))
# As Kafka's own script starts it.
JVM_FLAGS = (
    "-Xmx256M",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
TOOL = "org.apache.kafka.tools.DumpLogSegments"


def run(plan: Plan) -> list[Section]:
    section = Section("dump", "Dump a segment with --print-data-log, whole command", COLUMNS)
    plan.say(section.title)
    with plan.scratch() as path:
        segment = _segment(path / "store", plan.sizes.dump_bytes)
        flags = ["--files", str(segment), "--print-data-log"]
        commands = {OURS: [sys.executable, "-m", "stratalog.cli", "dump", *flags]}
        java, why = _kafka() if plan.kafka else ([], "--no-kafka")
        if java:
            commands[KAFKA] = [*java, *flags]
        texts = {name: _output(command, path / "text") for name, command in commands.items()}
        if KAFKA in texts:
            if texts[OURS] != texts[KAFKA]:
                raise MismatchError("the two dumps are not the same text")
            section.equal.append(
                f"both print the same {texts[OURS].count(bytes([10])):,} lines, byte for byte"
            )
        elif not texts[OURS]:
            raise MismatchError("stratalog dump printed nothing")
        size = segment.stat().st_size
        cases = [Case(name, partial(_time, command, size)) for name, command in commands.items()]
        section.rows = take_turns(cases, plan.repeat)
    section.notes.append("Start of the process included, the JVM's too; output to /dev/null.")
    if why:
        section.notes.append(f"Kafka's tool was not measured: {why}")
    section.bars.append(ratio_bar(section, "mb_per_s", OURS, [KAFKA], 5, "dump, against Kafka's tool"))
    return [section]


def _segment(path: Path, size_bytes: int) -> Path:
    with stratalog.open(path) as store:
        topic = store.create_topic(TOPIC)
        start = 0
        while topic.size_bytes() < size_bytes:
            topic.append_many([stratalog.Record(row.value, row.key) for row in rows(start, start + BATCH)])
            start += BATCH
        return Path(topic.segments()[0].path)


def _kafka() -> tuple[list[str], str]:
    """The command that runs Kafka's tool, or why there is none."""
    try:
        kafka = importlib.import_module("tests.interop.kafka")
    except ImportError as error:
        return [], f"tests/interop is not here ({error})"
    try:
        log4j = next(part for part in kafka.java(TOOL) if part.startswith("-Dlog4j2."))
        return ["java", *JVM_FLAGS, log4j, "-cp", f"{kafka.fetch()}/*", TOOL], ""
    except kafka.KafkaError as error:
        return [], str(error).splitlines()[0]


def _environment() -> dict[str, str]:
    """The same stratalog as here; modules compiled once and not at each start, as with any installation."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(Path(stratalog.__file__).resolve().parents[1])}


def _output(command: Sequence[str], target: Path) -> bytes:
    with target.open("wb") as file:
        done = subprocess.run(command, stdout=file, check=False, env=_environment())
    if done.returncode:
        raise MismatchError(f"{command[0]} ended with exit status {done.returncode}")
    return target.read_bytes()


def _time(command: Sequence[str], size: int) -> Sample:
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=_environment())
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "mb_per_s": size / seconds / 1e6, "size_mb": size / 1e6}
