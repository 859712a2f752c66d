"""What is measured, a module for each; every one of them has ``run(plan) -> list[Section]``."""

from __future__ import annotations

from collections.abc import Callable

from bench.harness import Section
from bench.plan import Plan
from bench.sections import append, archive, compaction, dump, point, produce, recovery, scan, single, start

SECTIONS: dict[str, Callable[[Plan], list[Section]]] = {
    "append": append.run,
    "single": single.run,
    "produce": produce.run,
    "scan": scan.run,
    "point": point.run,
    "recovery": recovery.run,
    "dump": dump.run,
    "compaction": compaction.run,
    "archive": archive.run,
    "start": start.run,
}
"""By the names that ``--only`` takes, in the order of the report."""
