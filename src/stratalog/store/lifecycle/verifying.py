"""Checking a whole store, or a part of it, without changing anything."""

from __future__ import annotations

from collections.abc import Callable

from stratalog.errors import FormatError, LogDirOfflineError
from stratalog.log.check.damage import UNKNOWN, Damage
from stratalog.log.check.verify import VerifyReport, verify_partition
from stratalog.store.store import Store


def verify(
    store: Store,
    topic: str | None = None,
    partition: int | None = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> VerifyReport:
    """Check every CRC, offset, index and sidecar; ``progress`` is told how many bytes went by."""
    report = VerifyReport()
    for name in store.topics() if topic is None else [topic]:
        count = store.topic(name).partitions
        for number in range(count) if partition is None else [partition]:
            report = report.merge(_verify(store, name, number, progress))
    return report


def _verify(store: Store, name: str, number: int, progress: Callable[[int], None] | None) -> VerifyReport:
    """Check one partition; one that is offline, or cannot be looked at, is damage as a whole."""
    try:
        return verify_partition(store._partitions.view(name, number), progress=progress)
    except (LogDirOfflineError, FormatError, FileNotFoundError) as error:
        where = f"{name}-{number}"
        return VerifyReport(damages=(Damage(where, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, str(error)),))
