"""Rewriting one partition: compaction, erasing keys, and an estimate of what compaction would remove.

    compact            one round: the key map, the groups, the quarantine; the estimate
    rules              what becomes of each batch
    rewriting          new segments, from sources that are read to the last byte
    swap               new segments take the place of old ones
    erase              every record of some keys goes
    remote_compaction  a round carried out by another process
    child              the process that does so beside a broker

When to run is decided elsewhere (`log.policy`, `store`).
"""

from __future__ import annotations

from stratalog.log.clean.compact import CleanReport, DuplicateEstimates, clean
from stratalog.log.clean.erase import EraseReport, count_keys, erase_keys, erase_segment
from stratalog.log.clean.rewriting import Pace, RewriteTarget, Rewritten

__all__ = [
    "CleanReport",
    "DuplicateEstimates",
    "EraseReport",
    "Pace",
    "RewriteTarget",
    "Rewritten",
    "clean",
    "count_keys",
    "erase_keys",
    "erase_segment",
]
