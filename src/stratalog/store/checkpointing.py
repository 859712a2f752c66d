"""Bring the checkpoints of a log directory up to date with the partitions that lie in it.

Crash policy: a checkpoint may be older than the log, never newer; see `checkpoints`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stratalog.log.write.writer import PartitionWriter
from stratalog.store.checkpoints import Key, Offsets
from stratalog.store.logdir import LogDir
from stratalog.store.registry import Registry

Value = Callable[[PartitionWriter, int | None], int | None]
"""Looks up what a checkpoint says of a partition, given what it said before."""


def bring_up_to_date(where: LogDir, registry: Registry) -> None:
    """Write what the writers in one directory say now.

    Values are looked up under the lock of the file they go to: a partition that was deleted, moved or created
    meanwhile is seen as it is now. Entries of partitions that are not open stay, those of unknown ones go.
    """

    def current(known: Mapping[Key, int], value: Value) -> Offsets:
        result: Offsets = {}
        for entry in registry.entries.values():
            for partition, (each, _) in entry.directories.items():
                if each is where:
                    key = (entry.name, partition)
                    view = registry.view(*key)
                    before = known.get(key)
                    now = value(view, before) if isinstance(view, PartitionWriter) else before
                    if now is not None:
                        result[key] = now
        return result

    files = where.checkpoints
    files.recovery_point.change(lambda known: current(known, lambda writer, _: writer.recovery_point))
    files.log_start.change(lambda known: current(known, _log_start_to_keep))
    files.log_start.ensure()
    files.high_watermark.change(lambda known: current(known, lambda writer, _: writer.end_offset()))


def _log_start_to_keep(writer: PartitionWriter, known: int | None) -> int | None:
    """Return the log start to write down: never below the known one, which a deletion may be about to reach.

    Where the log begins with its first segment no entry is needed, as in Kafka.
    """
    start = writer.log_start_offset
    if known is None and start <= writer.segments()[0].base_offset and not writer.is_tiered:
        return None
    return start if known is None else max(start, known)
