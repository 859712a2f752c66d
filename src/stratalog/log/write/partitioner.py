"""Which partition a record goes to, as in Kafka's Java client: by its key, or sticky without one."""

from __future__ import annotations

import random

from stratalog import kernel, locks
from stratalog.errors import InvalidRecordError
from stratalog.log.write.named_errors import wrong_record
from stratalog.model import Record

STICKY_BYTES = 16 << 10
"""Keyless records stay with one partition for so many bytes, as a Kafka producer's do for a batch."""


class Partitioner:
    """Chooses partitions for one topic. Thread-safe."""

    def __init__(self) -> None:
        self._partition = 0
        self._left = STICKY_BYTES
        self._lock = locks.lock("topic.sticky")

    def sticky(self, count: int, size: int) -> int:
        """Choose one of ``count`` partitions for a record of ``size`` bytes without a key."""
        with self._lock:
            if self._left <= 0 or self._partition >= count:
                others = count - 1
                chosen = (self._partition + 1 + random.randrange(others)) % count if others else 0
                self._partition, self._left = chosen, STICKY_BYTES
            self._left -= size + 70
            return self._partition

    def group(self, rows: list[Record], count: int) -> dict[int, list[Record]]:
        """Return the rows by partition, each partition's in order; InvalidRecordError names what is none."""
        groups: dict[int, list[Record]] = {}
        for index, row in enumerate(rows):
            try:
                key = row[1] if len(row) > 1 else None
                if key is None:
                    value = row[0]
                    number = self.sticky(count, 0 if value is None else len(value))
                else:
                    number = kernel.partition_for_key(key, count)
            except (TypeError, LookupError) as error:
                raise InvalidRecordError(f"record {index}: {wrong_record(row) or error}") from error
            groups.setdefault(number, []).append(row)
        return groups
