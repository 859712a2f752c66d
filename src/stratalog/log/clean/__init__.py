"""Rewriting one partition: compaction, the estimate of what it would bring, and erasing keys.

    compact       passes over a log: the key map, the groups, the quarantine
    workplace     what a round knows of its partition, and how what it made takes its place
    elsewhere     a round that another process does: a task, its outcome, both as JSON
    rules         what becomes of each batch, and `transactions`, which remembers what was met on the way
    grouping      which neighbours become one segment
    rewriting     new segments with all their sidecars, under ``.cleaned``; `reading` is strict about sources
    erase         every record of some keys goes
    estimate      sketches of keys: how many records are superseded
    pacing        throttle, progress, stop

Nothing here swaps files itself (`log.swap` does) or decides when to run (`log.policy`, `store`).
"""

from __future__ import annotations

from stratalog.log.clean.compact import clean
from stratalog.log.clean.erase import count_keys, erase_keys, erase_segment
from stratalog.log.clean.estimate import DuplicateEstimates
from stratalog.log.clean.reports import CleanReport, EraseReport
from stratalog.log.clean.rewriting import Rewritten, Target

__all__ = [
    "CleanReport",
    "DuplicateEstimates",
    "EraseReport",
    "Rewritten",
    "Target",
    "clean",
    "count_keys",
    "erase_keys",
    "erase_segment",
]
