"""The `stratalog.tail` of a partition: how far it is synced, and what readers in other processes may see.

A positional write of 64 bytes into one of two slots, alternately, each with its own CRC: a write torn by
a crash leaves the other slot. It may lag behind the log, which costs a longer scan after a crash, and never
leads it, because it is written after the sync it speaks of. Only a swap syncs it: a tail that came back
from before would speak of bytes that the swap took away.
"""

from __future__ import annotations

from stratalog.format import tail as tails
from stratalog.format.tail import Tail
from stratalog.fs import FileSystem
from stratalog.log.context import LogContext
from stratalog.log.names import TAIL


def read_tail(fs: FileSystem, directory: str) -> Tail | None:
    """The newest valid slot; None when there is no tail or it cannot be believed."""
    try:
        return tails.parse(fs.read_file(f"{directory}/{TAIL}"))
    except FileNotFoundError:
        return None


class TailFile:
    """The writer's side. Calls are serialised by the partition's lock."""

    def __init__(self, context: LogContext, directory: str, known: Tail | None) -> None:
        self.path = f"{directory}/{TAIL}"
        self._context = context
        self._known = known
        self._generation = 0 if known is None else known.generation

    @property
    def high_watermark(self) -> int:
        """The one last written; -1 before the first."""
        return -1 if self._known is None else self._known.high_watermark

    def write(self, base: int, position: int, offset: int, high_watermark: int, *, flags: int) -> Tail:
        """Write the next slot and return it. A failure leaves the other one in force."""
        self._generation += 1
        tail = Tail(self._generation, base, position, offset, high_watermark, flags)
        with self._context.handles.pinned(self.path, "a") as file:
            file.pwrite(tails.pack_slot(tail), tails.slot_position(self._generation))
        self._known = tail
        return tail

    def sync(self) -> None:
        """Make the slot last written durable."""
        with self._context.handles.pinned(self.path, "a") as file:
            file.sync()
