"""Appending one record at a time: throughput in a tight loop, then the latency of each call."""

from __future__ import annotations

import time
from array import array
from functools import partial

from bench.harness import Bar, Case, Sample, Section, rates, ratio_bar, stopwatch, take_turns
from bench.plan import Plan
from bench.records import rows
from bench.sections.append import check
from bench.systems import PEERS, LmdbWritemap, Stratalog, System
from bench.systems.lightning import Lmdb
from bench.systems.rocks import RocksDict

COLUMNS = (
    ("rate", "records/s", ",.0f"),
    ("cpu_rate", "records per CPU second", ",.0f"),
    ("p50_us", "p50 µs", ",.1f"),
    ("p99_us", "p99 µs", ",.1f"),
    ("max_us", "max µs", ",.0f"),
)
SYSTEMS: tuple[type[System], ...] = (Stratalog, *PEERS, LmdbWritemap)
P99_LIMIT_US = 1_000.0


def run(plan: Plan) -> list[Section]:
    plain = Section("single", "Append one record at a time, no fsync", COLUMNS)
    plan.say(plain.title)
    sizes = plan.sizes
    cases = [
        Case(
            system.name,
            partial(_append, plan, system, sizes.single_slow if system.slow else sizes.single, False),
        )
        for system in SYSTEMS
    ]
    plain.rows = take_turns(cases, plan.repeat)
    plain.equal.append("every store gave back every record in order, after each run")
    plain.bars = [
        ratio_bar(plain, "rate", Stratalog.name, [Lmdb.name], 1, "single appends, against lmdb"),
        ratio_bar(plain, "rate", Stratalog.name, [RocksDict.name], 1, "single appends, against rocksdict"),
        ratio_bar(
            plain,
            "rate",
            Stratalog.name,
            [LmdbWritemap.name],
            1,
            "single appends, against lmdb with writemap",
            goal=True,
        ),
        _p99_bar(plain),
    ]
    synced = Section("single-sync", "Append one record at a time, fsync for each", COLUMNS)
    plan.say(synced.title)
    cases = [Case(system.name, partial(_append, plan, system, sizes.synced, True)) for system in SYSTEMS]
    synced.rows = take_turns(cases, plan.repeat)
    synced.equal = plain.equal
    return [plain, synced]


def _p99_bar(section: Section) -> Bar:
    p99 = section.figure(Stratalog.name, "p99_us")
    text = "p99 of a single append: under 1 ms"
    return Bar(text, "–", None) if p99 is None else Bar(text, f"{p99 / 1e3:.3f} ms", p99 < P99_LIMIT_US)


def _append(plan: Plan, system: type[System], count: int, sync: bool) -> Sample:
    with plan.scratch() as path:
        store = system(path / "store", sync=sync)
        try:
            calls = [store.prepare_single(row) for row in rows(0, 2 * count)]
            append = store.single()
            with stopwatch() as watch:
                for arguments in calls[:count]:
                    append(*arguments)
            times = array("q", bytes(8 * count))
            clock = time.perf_counter_ns
            with stopwatch():
                for at, arguments in enumerate(calls[count:]):
                    began = clock()
                    append(*arguments)
                    times[at] = clock() - began
            check(store, 2 * count)
        finally:
            store.close()
    ordered = sorted(times)
    return {
        **rates(count, watch),
        "p50_us": ordered[count // 2] / 1e3,
        "p99_us": ordered[min(count - 1, count * 99 // 100)] / 1e3,
        "max_us": ordered[-1] / 1e3,
    }
