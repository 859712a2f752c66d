"""The `stratalog.tail` of a partition: how far it is synced, and what readers in other processes may see.

A positional write of 64 bytes into one of two slots, alternately, each with its own CRC: a write torn by
a crash leaves the other slot. It may lag behind the log, which costs a longer scan after a crash, and never
leads it, because it is written after the sync it speaks of. Only a swap syncs it: a tail that came back
from before would speak of bytes that the swap took away.
"""

from __future__ import annotations

from stratalog.errors import CorruptionError
from stratalog.format import tail as tails
from stratalog.format.identity import PartitionId
from stratalog.format.tail import Tail
from stratalog.fs import FileSystem
from stratalog.log.context import LogContext
from stratalog.log.names import TAIL
from stratalog.log.segment.identity import owner_of


def read_tail(fs: FileSystem, directory: str, owner: PartitionId) -> Tail | None:
    """Return the newest valid slot of ``owner``; None when there is no tail or neither slot is valid.

    CorruptionError when it was written for another partition: it does not speak of this log.
    """
    path = f"{directory}/{TAIL}"
    try:
        data = fs.read_file(path)
    except FileNotFoundError:
        return None
    tail = tails.parse(data, owner)
    stranger = tails.parse(data) if tail is None else None
    if stranger is not None:
        raise CorruptionError(f"it is the tail of {stranger.owner}", path=path)
    return tail


class TailFile:
    """The writer's side. Calls are serialised by the partition's lock."""

    def __init__(self, context: LogContext, directory: str, partition: int, known: Tail | None) -> None:
        self.path = f"{directory}/{TAIL}"
        self._context = context
        self._known = known
        self._generation = 0 if known is None else known.generation
        self.owner = owner_of(context.fs, directory, partition)
        """The partition that this directory is, as long as a writer has it."""

    @property
    def high_watermark(self) -> int:
        """The one last written; -1 before the first."""
        return -1 if self._known is None else self._known.high_watermark

    def write(self, base: int, position: int, offset: int, high_watermark: int, *, flags: int) -> Tail:
        """Write the next slot and return it. A failure leaves the other one in force."""
        self._generation += 1
        tail = Tail(self._generation, base, position, offset, high_watermark, flags, self.owner)
        with self._context.handles.pinned(self.path, "a") as file:
            file.pwrite(tails.pack_slot(tail), tails.slot_position(self._generation))
        self._known = tail
        return tail

    def sync(self) -> None:
        """Make the slot last written durable."""
        with self._context.handles.pinned(self.path, "a") as file:
            file.sync()
