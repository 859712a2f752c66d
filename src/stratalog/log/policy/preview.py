"""The decisions of the policies as steps: what a preview shows and what the janitor then carries out.

One list serves both: a preview prints the steps, the janitor goes through those that are `due`, in order, and
looks at nothing else. Pure: the same decisions always make the same steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from stratalog.config.units import format_bytes, format_duration_ms
from stratalog.log.policy.cleaning import Cleanable
from stratalog.log.policy.retention import Expiry, SegmentFacts, moment

Action = Literal["roll", "delete", "drop-local", "drop-archive", "compact", "archive", "skip"]


class Step(NamedTuple):
    """One thing done to one segment, or to a run of them when compacting.

    ``action``             ``delete`` takes a segment out of the log, here and in the archive; ``drop-local``
                           and ``drop-archive`` take one of its two copies; ``skip`` is what would be done if
                           ``why`` were not in the way.
    ``next_offset``        the end of what it touches, exclusive.
    ``when_ms``            None: now. Else the moment it will be due, unless appends bring it forward.
    ``why``                for people, with its numbers.
    ``first_offset_lost``  the first offset that can no longer be read afterwards; None when none is lost.
    """

    action: Action
    topic: str
    partition: int
    base_offset: int
    next_offset: int
    size_bytes: int
    when_ms: int | None
    why: str
    first_offset_lost: int | None = None

    @property
    def due(self) -> bool:
        """True if the janitor does it now: neither put off nor in the future."""
        return self.when_ms is None and self.action != "skip"

    def to_json(self) -> dict[str, object]:
        return self._asdict()


def roll_step(topic: str, partition: int, active: SegmentFacts, why: str) -> Step:
    """Seal an idle active segment, for the reason that `roll_why` gave."""
    return _step("roll", topic, partition, active, why)


def expiry_steps(
    topic: str, partition: int, expiries: Iterable[Expiry], *, log_start_offset: int = 0
) -> list[Step]:
    """Return the steps of `expired` and `archive_turned_off`: deletions, and copies that leave the archive.

    Below ``log_start_offset`` nothing is readable, so nothing is lost.
    """
    steps = []
    for expiry in expiries:
        segment = expiry.segment
        if expiry.reason == "remote.log.delete.on.disable" and segment.local:
            steps.append(_step("drop-archive", topic, partition, segment, expiry.detail))
            continue
        lost = max(segment.base_offset, log_start_offset)
        readable = expiry.reason != "log start offset" and lost < segment.next_offset
        steps.append(
            _step("delete", topic, partition, segment, expiry.detail, lost=lost if readable else None)
        )
    return steps


def local_steps(topic: str, partition: int, expiries: Iterable[Expiry]) -> list[Step]:
    """Return the steps of `local_expired`: files that leave this machine and stay in the archive."""
    return [_step("drop-local", topic, partition, expiry.segment, expiry.detail) for expiry in expiries]


def archive_steps(topic: str, partition: int, segments: Iterable[SegmentFacts]) -> list[Step]:
    """Return the steps of `to_archive`."""
    return [
        _step(
            "archive",
            topic,
            partition,
            segment,
            f"{segment.state.value}, {format_bytes(segment.size_bytes)}, not in the archive yet",
        )
        for segment in segments
    ]


def compact_step(topic: str, partition: int, base_offset: int, found: Cleanable, why: str) -> Step:
    """Compact from the first local segment's ``base_offset``; ``why`` is what `wants_cleaning` gave."""
    size_bytes = found.clean_bytes + found.cleanable_bytes
    return Step(
        "compact", topic, partition, base_offset, found.first_uncleanable_offset, size_bytes, None, why
    )


def upcoming_step(
    topic: str,
    partition: int,
    coming: tuple[SegmentFacts, int],
    retention_ms: int,
    *,
    log_start_offset: int = 0,
) -> Step:
    """Return the deletion that `next_expiry` foresees."""
    segment, when_ms = coming
    why = f"expires {moment(when_ms)} (retention.ms={format_duration_ms(retention_ms)})"
    lost = max(segment.base_offset, log_start_offset)
    return _step("delete", topic, partition, segment, why, when_ms=when_ms, lost=lost)


def skipped(step: Step, because: str) -> Step:
    """Return the step as one that is not done now, and why."""
    return step._replace(action="skip", why=f"{step.why}; not now: {because}", first_offset_lost=None)


def _step(
    action: Action,
    topic: str,
    partition: int,
    segment: SegmentFacts,
    why: str,
    *,
    when_ms: int | None = None,
    lost: int | None = None,
) -> Step:
    return Step(
        action,
        topic,
        partition,
        segment.base_offset,
        segment.next_offset,
        segment.size_bytes,
        when_ms,
        why,
        lost,
    )
