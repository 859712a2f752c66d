"""Appending ready-made batches, as a network server does: CPU time for each, and batches a second.

There is no peer: the figures are for comparing one version of Stratalog with another.
"""

from __future__ import annotations

import threading
import time
from functools import partial

import stratalog
from bench.harness import Bar, Case, MismatchError, Sample, Section, stopwatch, take_turns
from bench.plan import Plan
from stratalog.format import batch as batches

SHAPES = ((1, 100), (10, 100), (100, 100), (15, 1024), (1000, 1024))
"""Records in a batch, and bytes in a record's value."""

CPU_LIMIT_US = {"1 × 100 B": 10.0, "1 × 100 B, idempotent": 15.0}
COLUMNS = (("cpu_us", "CPU µs a batch", ",.1f"), ("rate", "batches/s", ",.0f"))


def run(plan: Plan) -> list[Section]:
    section = Section("produce", "Append ready-made batches, no fsync", COLUMNS)
    plan.say(section.title)
    cases = []
    for records, size in SHAPES:
        calls = max(5, min(plan.sizes.single // 8, (16 << 20) // (records * size)))
        for idempotent in (False, True):
            name = _name(records, size, idempotent)
            cases.append(Case(name, partial(_append, plan, records, size, calls, 1, idempotent)))
    for threads in (1, 16):
        calls = max(5, plan.sizes.single // 8 // threads)
        cases.append(
            Case(
                f"1 × 100 B, {threads} producer{'s' * (threads > 1)}",
                partial(_append, plan, 1, 100, calls, threads, True),
            )
        )
    section.rows = take_turns(cases, plan.repeat)
    section.equal.append("every topic has as many records as were sent, after each run")
    section.bars = [_cpu_bar(section, name, limit) for name, limit in CPU_LIMIT_US.items()]
    return [section]


def _name(records: int, size: int, idempotent: bool) -> str:
    told = f"{size} B" if size < 1024 else f"{size // 1024} KiB"
    return f"{records} × {told}{', idempotent' if idempotent else ''}"


def _cpu_bar(section: Section, name: str, limit: float) -> Bar:
    figure = section.figure(name, "cpu_us")
    text = f"a ready-made batch of {name}: at most {limit:g} µs of CPU"
    return (
        Bar(text, "–", None, True) if figure is None else Bar(text, f"{figure:.1f} µs", figure <= limit, True)
    )


def _append(plan: Plan, records: int, size: int, calls: int, threads: int, idempotent: bool) -> Sample:
    with plan.scratch() as path, stratalog.open(path / "store") as store:
        topic = store.create_topic("t", config={"max.message.bytes": 2 * records * (size + 100) + 1000})
        ready = [_batches(records, size, calls, 100 + each if idempotent else -1) for each in range(threads)]

        def produce(mine: list[bytearray]) -> None:
            for batch in mine:
                topic.append_batches(0, batch)

        workers = [threading.Thread(target=produce, args=(mine,)) for mine in ready[1:]]
        with stopwatch() as watch:
            for worker in workers:
                worker.start()
            produce(ready[0])
            for worker in workers:
                worker.join()
        if topic.log_end_offset() != records * calls * threads:
            raise MismatchError("append_batches did not append what was sent")
    total = calls * threads
    return {"cpu_us": watch.cpu_s / total * 1e6, "rate": total / max(watch.wall_s, 1e-9)}


def _batches(records: int, size: int, calls: int, producer_id: int) -> list[bytearray]:
    now = time.time_ns() // 1_000_000
    rows = [stratalog.Record(b"x" * size, timestamp=now)] * records
    made = []
    for call in range(calls):
        encoded, _ = batches.encode_records(
            rows,
            options=batches.BatchOptions(
                base_offset=0,
                leader_epoch=0,
                now_ms=now,
                max_bytes=1 << 30,
                producer_id=producer_id,
                producer_epoch=-1 if producer_id < 0 else 0,
                base_sequence=-1 if producer_id < 0 else call * records,
            ),
        )
        made.append(bytearray(encoded.data))
    return made
