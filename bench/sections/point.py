"""Reading single records in random order, by offset and by key."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bench.harness import Case, MismatchError, Sample, Section, rates, stopwatch, take_turns, times_bar
from bench.plan import Plan
from bench.records import Row, rows
from bench.sections.scan import fill
from bench.systems import PEERS, Stratalog, StratalogSingles, System
from bench.systems.lightning import Lmdb

COLUMNS = (("rate", "reads/s", ",.0f"), ("us", "µs each", ",.1f"))
MOST = 10.0
"""A point read takes at most so many times as long as lmdb's."""
SYSTEMS: tuple[type[System], ...] = (Stratalog, StratalogSingles, *PEERS)


def run(plan: Plan) -> list[Section]:
    by_offset = Section("point-offset", "Read one record by offset, in random order", COLUMNS)
    by_key = Section("point-key", "Read the latest record of a key, in random order", COLUMNS)
    plan.say("Read one record, by offset and by key")
    chance = random.Random(5)
    with plan.scratch() as path:
        stores: dict[type[System], System] = {}
        offset_cases, key_cases = [], []
        try:
            for system in SYSTEMS:
                count = plan.sizes.point_slow if system.slow else plan.sizes.point
                fill(system, path / system.name, count, keyed=True)
                store = stores[system] = system(path / system.name, keyed=True)
                made = rows(0, count)
                picked = chance.choices(made, k=plan.sizes.reads)
                latest = {row.key: row for row in made}
                newest = [latest[row.key] for row in picked]
                offset_cases.append(
                    Case(system.name, partial(_read, store.by_offset, [row.offset for row in picked], picked))
                )
                key_cases.append(
                    Case(system.name, partial(_read, store.by_key, [row.key for row in newest], newest))
                )
            by_offset.rows = take_turns(offset_cases, plan.repeat)
            by_key.rows = take_turns(key_cases, plan.repeat)
        finally:
            for store in stores.values():
                store.close()
    for section, what in ((by_offset, "a read by offset"), (by_key, "a read by key")):
        section.bars = [times_bar(section, "us", Stratalog.name, Lmdb.name, MOST, f"{what}, against lmdb")]
        section.equal.append("every read gave the record that was appended: offset, key and value")
    by_key.notes.append("stratalog with key.index.enable; the peers with what their module says about keys.")
    return [by_offset, by_key]


def _read(read: Callable[[Any], Row], wanted: Sequence[object], expected: list[Row]) -> Sample:
    with stopwatch() as watch:
        found = [read(each) for each in wanted]
    if found != expected:
        raise MismatchError(f"{read}: a read gave another record than was appended")
    return {**rates(len(found), watch), "us": watch.wall_s / len(found) * 1e6}
