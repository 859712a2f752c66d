"""How much is sent: ``full`` for figures, ``quick`` to see that it works."""

from __future__ import annotations

from dataclasses import dataclass

PARTITIONS = 4
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Sizes:
    """``seconds`` of each load that runs by time; records of those that run by count."""

    name: str
    repeat: int
    seconds: float
    kib_records: int
    """Records of 1 KiB by librdkafka; three times as many of 100 bytes."""
    java_records: int
    connections: tuple[int, ...]
    fsync_connections: tuple[int, ...]
    grown_partitions: tuple[int, ...]
    grown_connections: tuple[int, ...]
    starts: int


FULL = Sizes("full", 3, 3.0, 1_000_000, 1_000_000, (16, 64), (1, 16, 64), (1, 100, 2000), (1, 100, 2000), 3)
QUICK = Sizes("quick", 1, 0.3, 5_000, 5_000, (4,), (2,), (1, 10), (1, 20), 1)
