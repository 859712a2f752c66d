"""Appending lists of 1,000 prepared records, without and with a sync for each list; lists against Arrow
tables."""

from __future__ import annotations

from functools import partial

from bench.harness import Case, MismatchError, Sample, Section, rates, ratio_bar, stopwatch, take_turns
from bench.plan import Plan
from bench.records import expected_table, rows
from bench.sizes import BATCH
from bench.systems import PEER_NAMES, PEERS, LmdbWritemap, Stratalog, StratalogArrow, System

COLUMNS = (("rate", "records/s", ",.0f"), ("cpu_rate", "records per CPU second", ",.0f"))
SYSTEMS: tuple[type[System], ...] = (Stratalog, StratalogArrow, *PEERS, LmdbWritemap)


def run(plan: Plan) -> list[Section]:
    plain = Section("append", f"Append in batches of {BATCH:,}, no fsync", COLUMNS)
    plan.say(plain.title)
    sizes = plan.sizes
    cases = [
        Case(
            system.name,
            partial(_append, plan, system, sizes.append_slow if system.slow else sizes.append, False),
        )
        for system in SYSTEMS
    ]
    plain.rows = take_turns(cases, plan.repeat)
    plain.equal.append("every store gave back every record in order, after each run")
    plain.notes.append("From lists of prepared Python objects; the Arrow row is from tables.")
    plain.notes.append(
        "lmdb with writemap may be ruined by a power cut, and SQLite with synchronous=OFF may be too."
    )
    riskier = [*PEER_NAMES, LmdbWritemap.name]
    plain.bars = [
        ratio_bar(plain, "rate", Stratalog.name, PEER_NAMES, 5, "batches, against the best peer"),
        ratio_bar(plain, "rate", Stratalog.name, riskier, 5, "the same, with lmdb's writemap", goal=True),
        ratio_bar(plain, "rate", StratalogArrow.name, [Stratalog.name], 1, "Arrow tables, against lists"),
    ]

    synced = Section("append-sync", f"Append in batches of {BATCH:,}, fsync for each batch", COLUMNS)
    plan.say(synced.title)
    cases = []
    for system in SYSTEMS:
        batches = max(1, sizes.synced_batches // 4) if system.slow else sizes.synced_batches
        cases.append(Case(system.name, partial(_append, plan, system, batches * BATCH, True)))
    synced.rows = take_turns(cases, plan.repeat)
    synced.equal = plain.equal

    large = Section("append-large", f"Append {sizes.large:,} records in one call, no fsync", COLUMNS)
    plan.say(large.title)
    both: tuple[type[System], ...] = (Stratalog, StratalogArrow)
    large.rows = take_turns(
        [
            Case(system.name, partial(_append, plan, system, 3 * sizes.large, False, sizes.large))
            for system in both
        ],
        plan.repeat,
    )
    large.equal = plain.equal
    what = f"Arrow tables of {sizes.large:,}, against lists"
    large.bars = [ratio_bar(large, "rate", StratalogArrow.name, [Stratalog.name], 3, what)]
    return [plain, synced, large]


def _append(plan: Plan, system: type[System], count: int, sync: bool, batch: int = BATCH) -> Sample:
    with plan.scratch() as path:
        store = system(path / "store", sync=sync)
        try:
            ready = [store.prepare(rows(start, start + batch, count)) for start in range(0, count, batch)]
            append = store.append_batch
            with stopwatch() as watch:
                for prepared in ready:
                    append(prepared)
            del ready
            check(store, count)
        finally:
            store.close()
    return rates(count, watch)


def check(store: System, count: int) -> None:
    """The store holds exactly the first ``count`` records."""
    if not store.scan().equals(expected_table(count)):
        raise MismatchError(f"{store.name} did not give back what was appended")
