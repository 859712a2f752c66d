"""The policies of a segment's life: what is deleted, cleaned, archived, and when.

Pure functions of (settings, segment facts, now) to decisions. Nothing in this room reads a clock, a file
or an object store, so the janitor, a preview and a test get the same answer from the same facts, and
every decision carries a sentence for people with the numbers that made it.

``facts`` what is known of a segment; ``retention`` deletion; ``cleaning`` compaction; ``tiering`` the
archive; ``clock`` whether now can be believed; ``preview`` all of them as a list of steps.
"""

from __future__ import annotations

from stratalog.log.policy.cleaning import Backoff, Cleanable, Effort, cleanable, wants_cleaning
from stratalog.log.policy.clock import ClockGuard
from stratalog.log.policy.facts import SegmentFacts, newest_ms
from stratalog.log.policy.preview import Step
from stratalog.log.policy.retention import Expiry, expired, next_expiry, roll_to_expire
from stratalog.log.policy.tiering import archive_expired, local_expired, to_archive

__all__ = [
    "Backoff",
    "Cleanable",
    "ClockGuard",
    "Effort",
    "Expiry",
    "SegmentFacts",
    "Step",
    "archive_expired",
    "cleanable",
    "expired",
    "local_expired",
    "newest_ms",
    "next_expiry",
    "roll_to_expire",
    "to_archive",
    "wants_cleaning",
]
