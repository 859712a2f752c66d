"""Compaction against a real Kafka cleaner: the same log, the same settings, and the same bytes afterwards.

Both read hard links to the same sealed segments, from the page cache, with one cleaner and 128 MiB for keys.
Kafka's seconds are those it logs itself; the broker is warm, because it cleans one copy that does not count.
Ours are those of `store.compact`, from the plan to the last swap, in a process that just started.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import stratalog
from bench.compacting import peak_bytes, reset_peak
from bench.harness import Bar, Case, MismatchError, Sample, Section, ratio_bar, take_turns
from bench.plan import Plan
from bench.records import value_of
from stratalog.format.checkpoints import parse_offsets
from stratalog.kernel import crc32c

OURS, KAFKA = "stratalog", "kafka 4.3.1"
TOPIC = "compacted"
COLUMNS = (
    ("mb_per_s", "MB/s of log", ",.0f"),
    ("seconds", "seconds", ".2f"),
    ("peak_mb", "peak memory, MB", ",.0f"),
    ("size_mb", "log, MB", ",.0f"),
    ("left_mb", "left, MB", ",.0f"),
)
NEEDED = 4.0
NEEDED_MB_PER_S = 600.0
BATCH_BYTES = 16 << 10
KEYS_MEMORY_BYTES = 128 << 20
SEGMENTS = 5
ROWS_AT_A_TIME = 100_000
# As Kafka's own scripts start a broker.
JVM_FLAGS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
_CLEANED = re.compile(
    r"cleaned log (\S+) \(dirty section = \[\d+, \d+\]\)\s+([\d.,]+) MB of log processed in ([\d.,]+) seconds"
)


def run(plan: Plan) -> list[Section]:
    records, keys = plan.sizes.compact, plan.sizes.compact_keys
    title = f"Compact {records:,} records of {keys:,} keys"
    section = Section("compaction", title, COLUMNS)
    plan.say(section.title)
    with plan.scratch() as path:
        log = _Log(path / "made", records, keys)
        cases = [Case(OURS, partial(_ours, plan, log))]
        with _kafka(plan, path / "kafka", log) as (cleaner, why):
            if cleaner is not None:
                cases.append(Case(KAFKA, cleaner.run))
            section.rows = take_turns(cases, plan.repeat)
        section.equal += _compare(log)
    section.notes.append(
        "Batches of 16 KiB, uncompressed, from the page cache; one cleaner each, ours with a thread that"
        " reads ahead; 128 MiB for keys. Peak memory is that of the whole process while it compacts, Kafka's"
        " heap of 1 GiB included."
    )
    if why:
        section.notes.append(f"Kafka's cleaner was not measured: {why}")
    section.bars.append(
        ratio_bar(section, "mb_per_s", OURS, [KAFKA], NEEDED, "compaction, against Kafka's cleaner")
    )
    section.bars.append(_memory_bar(section))
    section.bars.append(_speed_bar(section))
    return [section]


def _speed_bar(section: Section) -> Bar:
    text = f"compaction: at least {NEEDED_MB_PER_S:g} MB/s"
    rate = section.figure(OURS, "mb_per_s")
    return Bar(text, "–", None) if rate is None else Bar(text, f"{rate:,.0f} MB/s", rate >= NEEDED_MB_PER_S)


def _memory_bar(section: Section) -> Bar:
    text = "compaction: less peak memory than Kafka's cleaner"
    ours, theirs = section.figure(OURS, "peak_mb"), section.figure(KAFKA, "peak_mb")
    if ours is None or theirs is None:
        return Bar(text, "–", None)
    return Bar(text, f"{ours:,.0f} of {theirs:,.0f} MB", ours < theirs)


class _Log:
    """A partition of sealed segments, written by us, and what became of it in each run."""

    def __init__(self, path: Path, records: int, keys: int) -> None:
        self.path = path
        self.segment_bytes = max(1 << 20, records * 110 // SEGMENTS)
        self.results: dict[str, list[tuple[str, int]]] = {}
        self.latest: dict[bytes, int] = {}
        self.settings: dict[str, object] = {
            "cleanup.policy": "compact",
            "segment.bytes": self.segment_bytes,
            "max.message.bytes": BATCH_BYTES,
            "retention.ms": -1,
            "min.cleanable.dirty.ratio": 0.01,
            "delete.retention.ms": 86_400_000,
        }
        with stratalog.open(path, background=False) as store:
            topic = store.create_topic(TOPIC, 1, {**self.settings, "cleaner.min.segment.age.ms": 0})
            for table in _tables(records, keys, self.latest):
                topic.append_many(table)
            topic.roll(0)
            self.end = topic.log_end_offset()
        self.directory = path / f"{TOPIC}-0"
        self.size = sum(file.stat().st_size for file in self.directory.glob("*.log"))

    def warm(self) -> None:
        for file in self.directory.glob("*.log"):
            with file.open("rb") as opened:
                while opened.read(1 << 22):
                    pass

    def note(self, system: str, directory: Path) -> int:
        """Remember what was left, for comparing; returns its size."""
        logs = sorted(directory.glob("*.log"))
        self.results[system] = [(file.name, crc32c(file.read_bytes())) for file in logs]
        return sum(file.stat().st_size for file in logs)


def _tables(records: int, keys: int, latest: dict[bytes, int]) -> Iterator[Any]:
    """Keys in no order, each about as often as any other; ``latest`` learns where each came last."""
    import pyarrow as pa

    rng = random.Random(4)
    names = [b"key-%06d" % number for number in range(keys)]
    for start in range(0, records, ROWS_AT_A_TIME):
        count = min(ROWS_AT_A_TIME, records - start)
        chosen = rng.choices(names, k=count)
        latest.update(zip(chosen, range(start, start + count), strict=True))
        yield pa.record_batch(
            {
                "key": pa.array(chosen, pa.binary()),
                "value": pa.array([value_of(number) for number in range(start, start + count)], pa.binary()),
            }
        )


def _sample(size: int, seconds: float, peak: int, left: int) -> Sample:
    return {
        "mb_per_s": size / seconds / 1e6,
        "seconds": seconds,
        "peak_mb": peak / 1e6,
        "size_mb": size / 1e6,
        "left_mb": left / 1e6,
    }


def _link(source: str, target: str) -> None:
    if source.endswith(".log") and os.path.getsize(source):
        os.link(source, target)  # a sealed log is replaced, never modified
    else:
        shutil.copy2(source, target)


def _ours(plan: Plan, log: _Log) -> Sample:
    with plan.scratch() as path:
        copy = path / "store"
        shutil.copytree(log.path, copy, ignore=shutil.ignore_patterns("*.sock"), copy_function=_link)
        log.warm()
        root = Path(__file__).resolve().parents[2]
        source = Path(stratalog.__file__).resolve().parents[1]
        done = subprocess.run(
            [sys.executable, "-m", "bench.compacting", str(copy), TOPIC],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            cwd=root,
            env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{root}"},
        )
        if done.returncode:
            raise MismatchError(f"compaction ended with exit status {done.returncode}")
        told = json.loads(done.stdout)
        left = log.note(OURS, copy / f"{TOPIC}-0")
        _check_latest(copy, log)
        return _sample(log.size, told["seconds"], told["peak_bytes"], left)


class _Cleaner:
    """A broker with a copy of the log for every run; the first of them warms it up."""

    def __init__(self, broker: Any, log: _Log, topics: list[str]) -> None:
        self._broker = broker
        self._log = log
        self._topics = topics

    def run(self) -> Sample:
        topic, log, broker = self._topics.pop(0), self._log, self._broker
        log.warm()
        reset_peak(broker.pid)
        _set_policy(broker, topic, "compact")
        kafka = importlib.import_module("tests.interop.kafka")
        kafka.wait_until(lambda: _cleaned_to(broker, topic) == log.end, f"the cleaner at {topic}", 600)
        kafka.wait_until(lambda: self._seconds(topic) is not None, f"what the cleaner says of {topic}", 60)
        seconds = self._seconds(topic)
        assert seconds is not None
        left = log.note(KAFKA, broker.partition_dir(topic))
        return _sample(log.size, seconds, peak_bytes(broker.pid), left)

    def _seconds(self, topic: str) -> float | None:
        for name, _, seconds in _CLEANED.findall(self._broker.output.read_text(errors="replace")):
            if name == f"{topic}-0":
                return float(seconds.replace(",", ""))
        return None


@contextmanager
def _kafka(plan: Plan, path: Path, log: _Log) -> Iterator[tuple[_Cleaner | None, str]]:
    """A warm broker that holds the log, or why there is none."""
    if not plan.kafka:
        yield None, "--no-kafka"
        return
    try:
        kafka = importlib.import_module("tests.interop.kafka")
        broker = kafka.KafkaBroker(
            path,
            {
                "log.cleaner.dedupe.buffer.size": KEYS_MEMORY_BYTES,
                "log.cleaner.backoff.ms": 100,
                "log.segment.delete.delay.ms": 1000,
            },
            flags=JVM_FLAGS,
        )
        topics = [f"{TOPIC}-{number}" for number in range(plan.repeat + 1)]
        _adopt(broker, log, topics)
    except ImportError as error:
        yield None, f"tests/interop is not here ({error})"
        return
    except kafka.KafkaError as error:
        yield None, str(error).splitlines()[0]
        return
    with broker:
        cleaner = _Cleaner(broker, log, topics)
        cleaner.run()
        yield cleaner, ""


def _adopt(broker: Any, log: _Log, topics: list[str]) -> None:
    """Give a new broker the log's files under each of ``topics``: made there, stopped, filled in."""
    settings = {**log.settings, "cleanup.policy": "delete", "segment.bytes": log.segment_bytes}
    with broker:
        for topic in topics:
            broker.create_topic(topic, config=settings)
        broker.stop()
        for topic in topics:
            directory = broker.partition_dir(topic)
            for file in directory.glob("0*"):
                file.unlink()
            for file in log.directory.iterdir():
                if file.suffix in (".log", ".index", ".timeindex"):
                    _link(str(file), str(directory / file.name))
        (broker.log_dir / ".kafka_cleanshutdown").unlink()


def _set_policy(broker: Any, topic: str, policy: str) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
    from confluent_kafka.admin._resource import ResourceType

    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def _cleaned_to(broker: Any, topic: str) -> int:
    try:
        data = (broker.log_dir / "cleaner-offset-checkpoint").read_bytes()
    except FileNotFoundError:
        return 0
    return parse_offsets(data).get((topic, 0), 0) if data else 0


def _check_latest(path: Path, log: _Log) -> None:
    with stratalog.open(path, read_only=True) as store:
        table = store.topic(TOPIC).scan(columns=["key", "offset"]).read_all()
    keys, offsets = table.column("key").to_pylist(), table.column("offset").to_pylist()
    if len(keys) != len(log.latest) or dict(zip(keys, offsets, strict=True)) != log.latest:
        raise MismatchError("what compaction left is not the latest record of every key")


def _compare(log: _Log) -> list[str]:
    ours, theirs = log.results.get(OURS), log.results.get(KAFKA)
    equal = [f"what is left is the latest record of each of the {len(log.latest):,} keys, at its offset"]
    if theirs is not None:
        if ours != theirs:
            raise MismatchError("compaction left other segments than Kafka's cleaner")
        equal.append("both leave the same segments, byte for byte")
    return equal
