"""Reading everything into an Arrow table of key, value and offset, from a store closed and opened again."""

from __future__ import annotations

from functools import partial

from bench.harness import Case, MismatchError, Sample, Section, rates, ratio_bar, stopwatch, take_turns
from bench.plan import Plan
from bench.records import expected_table, rows
from bench.sizes import BATCH
from bench.systems import PEER_NAMES, PEERS, Stratalog, StratalogSingles, System

COLUMNS = (("rate", "records/s", ",.0f"), ("cpu_rate", "records per CPU second", ",.0f"))
SYSTEMS: tuple[type[System], ...] = (Stratalog, StratalogSingles, *PEERS)


def run(plan: Plan) -> list[Section]:
    section = Section("scan", "Full scan to an Arrow table (key, value, offset)", COLUMNS)
    plan.say(section.title)
    with plan.scratch() as path:
        stores: dict[type[System], tuple[System, int]] = {}
        try:
            for system in SYSTEMS:
                count = plan.sizes.scan_slow if system.slow else plan.sizes.scan
                fill(system, path / system.name, count)
                store = system(path / system.name)
                stores[system] = store, count
                if not store.scan().equals(expected_table(count)):
                    raise MismatchError(f"{system.name}: the scan is not what was appended")
            cases = [Case(system.name, partial(_scan, *stores[system])) for system in SYSTEMS]
            section.rows = take_turns(cases, plan.repeat)
        finally:
            for store, _ in stores.values():
                store.close()
    section.equal.append("the tables of all stores are equal, row by row")
    section.notes.append(
        f"stratalog holds batches of {BATCH:,}, or of one record each; a peer stores both alike. By default a"
        " scan of stratalog reads with a thread per core; the CPU column adds them up."
    )
    against = "against the best peer"
    section.bars = [
        ratio_bar(section, "rate", Stratalog.name, PEER_NAMES, 3, f"full batches, {against}"),
        ratio_bar(section, "rate", StratalogSingles.name, PEER_NAMES, 3, f"one-record batches, {against}"),
    ]
    return [section]


def fill(system: type[System], path: object, count: int, *, keyed: bool = False) -> None:
    """A store with ``count`` records, closed."""
    store = system(path, keyed=keyed)  # type: ignore[arg-type]
    try:
        for start in range(0, count, BATCH):
            store.append_batch(store.prepare(rows(start, min(start + BATCH, count), count)))
    finally:
        store.close()


def _scan(store: System, count: int) -> Sample:
    with stopwatch() as watch:
        table = store.scan()
    if table.num_rows != count:
        raise MismatchError(f"{store.name}: {table.num_rows} rows instead of {count}")
    return rates(count, watch)
