"""The policies of a segment's life: what is deleted, cleaned, archived, and when.

Pure functions of (settings, segment facts, now) to decisions. Nothing in this room reads a clock, a file
or an object store, so the janitor, a preview and a test get the same answer from the same facts, and
every decision carries a sentence for people with the numbers that made it.
"""

from __future__ import annotations

from stratalog.log.policy.cleaning import Backoff, Cleanable, Effort, cleanable, wants_cleaning
from stratalog.log.policy.clock import ClockGuard
from stratalog.log.policy.preview import Step
from stratalog.log.policy.retention import (
    Expiry,
    SegmentFacts,
    archive_turned_off,
    expired,
    local_expired,
    newest_ms,
    next_expiry,
    to_archive,
)

__all__ = [
    "Backoff",
    "Cleanable",
    "ClockGuard",
    "Effort",
    "Expiry",
    "SegmentFacts",
    "Step",
    "archive_turned_off",
    "cleanable",
    "expired",
    "local_expired",
    "newest_ms",
    "next_expiry",
    "to_archive",
    "wants_cleaning",
]
