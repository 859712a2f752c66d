"""How much is produced and read."""

from __future__ import annotations

from dataclasses import dataclass, replace

PARTITIONS = 4
FIRST_MS = 1_760_000_000_000
RECORDS_PER_MS = 10
WINDOW_MS = 5_000
BATCH_BYTES = 16_384
"""``batch.size`` of the producer: the Java client's default."""


@dataclass(frozen=True, slots=True)
class Load:
    """One topic. ``keys`` different keys, a few of them in many records."""

    topic: str
    records: int
    key_bytes: int
    value_bytes: int
    keys: int
    segment_bytes: int

    @property
    def record_bytes(self) -> int:
        return self.key_bytes + self.value_bytes

    @property
    def window(self) -> tuple[int, int]:
        """Milliseconds [since, until) in the middle: five seconds, or a twentieth of less."""
        whole = max(self.records // RECORDS_PER_MS, 1)
        length = min(WINDOW_MS, max(whole // 20, 1))
        since = FIRST_MS + whole // 2
        return since, since + length

    @property
    def windowed(self) -> int:
        """How many records are in the window."""
        since, until = self.window
        return min(self.records, (until - FIRST_MS) * RECORDS_PER_MS) - (since - FIRST_MS) * RECORDS_PER_MS


SEGMENTED = 1_000_000


@dataclass(frozen=True, slots=True)
class Sizes:
    name: str
    loads: tuple[Load, ...]
    repeat: int
    segments: int
    """So many, and a hundred times as many, for one topic of ``SEGMENTED`` records."""

    def only(self, topic: str | None) -> Sizes:
        """One of the loads alone."""
        return (
            self if topic is None else replace(self, loads=tuple(e for e in self.loads if e.topic == topic))
        )


FULL = Sizes(
    "full",
    (
        Load("events", 10_000_000, 10, 90, 100_000, 128 << 20),
        Load("documents", 1_000_000, 10, 1_014, 100_000, 128 << 20),
    ),
    repeat=3,
    segments=100,
)
SMALL = Sizes(
    "small",
    (
        Load("events", 200_000, 10, 90, 2_000, 2 << 20),
        Load("documents", 20_000, 10, 1_014, 2_000, 2 << 20),
    ),
    repeat=2,
    segments=5,
)
