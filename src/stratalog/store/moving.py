"""Moving a partition to another log directory.

The copy grows in a `-future` directory and is synced. Then the old directory is marked with
`stratalog.moved`, the copy gets its name by one rename, and the old directory is removed. A crash before
the rename leaves the old partition (its mark is taken off again) and a `-future` directory that the next
start removes; a crash after it leaves two directories of one name, of which the marked one goes.

A move is in doubt (`Moves`) from before the partition is closed until it is open in one of the two places
and the other one is cleared. Whatever cuts it short, an error or Ctrl-C, however often, leaves it in doubt,
and the next change to the topic settles it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from stratalog.errors import StorageError, StratalogError
from stratalog.fs import FileSystem
from stratalog.log.context import LogContext
from stratalog.log.names import DELETED
from stratalog.log.write.writer import PartitionWriter
from stratalog.store.logdir import LogDir

if TYPE_CHECKING:
    from stratalog.store.partitions import Partitions

COPY_BYTES = 4 << 20
MOVED = "stratalog.moved"


def is_moved(fs: FileSystem, directory: str) -> bool:
    """Whether this partition was being moved elsewhere: where it has a twin, the twin counts."""
    return fs.exists(f"{directory}/{MOVED}")


def take_mark_off(fs: FileSystem, directory: str) -> None:
    """The move never happened: this is the partition after all."""
    fs.remove(f"{directory}/{MOVED}")
    fs.sync_dir(directory)


class Move:
    """One move: `copy` and `commit`, then `finish` once the copy is open; `undo` after a failure before that.

    The partition must be closed. The target's checkpoints get its entries before the rename, the source's
    lose them at the end.
    """

    def __init__(
        self, context: LogContext, key: tuple[str, int], directory: str, source: LogDir, target: LogDir
    ) -> None:
        self.final = target.file(directory.rsplit("/", 1)[-1])
        self._context = context
        self._key = key
        self.directory = directory
        self._source = source
        self._target = target
        self._future = target.aside(directory, "future")
        self._renaming = False

    def copy(self) -> None:
        """Copy the partition beside its new place; durable on return."""
        context, fs = self._context, self._context.fs
        self._target.mark_dirty()
        self._source.mark_dirty()
        fs.make_dir(self._future)
        for each in fs.list_dir(self.directory):
            if each.endswith(DELETED):
                continue  # out of the log, and removed by its own clock
            context.handles.forget(f"{self.directory}/{each}")
            _copy(context, f"{self.directory}/{each}", f"{self._future}/{each}")
        fs.sync_dir(self._future)
        fs.sync_dir(self._target.path)

    def commit(self) -> None:
        """Make the copy the partition: from the rename on the next start finds it in its new place."""
        fs = self._context.fs
        self._target.checkpoints.take_over(self._key, self._source.checkpoints)
        fs.write_atomic(f"{self.directory}/{MOVED}", f"{self.final}\n".encode())
        self._renaming = True
        fs.rename(self._future, self.final)
        fs.sync_dir(self._target.path)

    def undo(self) -> None:
        """Make the old directory the partition again. Raise when it still counts as moved.

        A copy that has its name already loses it, durably, before the mark goes from the old one. Where that
        fails too, the next start may find two and names both: nothing is lost.
        """
        fs = self._context.fs
        with suppress(StorageError, OSError):
            if self._renaming and fs.exists(self.final):
                self._target.delete_partition(self.final)
        if is_moved(fs, self.directory):
            take_mark_off(fs, self.directory)
        with suppress(StorageError, OSError):
            if fs.exists(self._future):
                fs.remove_tree(self._future)
        with suppress(StorageError, OSError):
            self._target.checkpoints.forget([self._key])

    def finish(self) -> None:
        """Remove the old directory; readers that still have a file of it open keep it."""
        if self._context.fs.exists(self.directory):
            self._source.delete_partition(self.directory)
        self._source.checkpoints.forget([self._key])


class Moves:
    """The moves of a store that are in doubt. Everything here happens inside ``changes.of`` of the topic."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._in_doubt: dict[tuple[str, int], tuple[Move, PartitionWriter]] = {}

    def topics(self) -> set[str]:
        """Return the topics with a move that is under way or was cut short."""
        return {name for name, _ in self._in_doubt.copy()} if self._in_doubt else set()

    def make(self, writer: PartitionWriter, target: LogDir) -> None:
        """Move a partition. When this fails, or is interrupted, it goes on in its old place."""
        partitions, name, partition = self._partitions, writer.topic, writer.partition
        entry = partitions.entries[name]
        where, directory = entry.directories[partition]
        move = Move(partitions.context, (name, partition), directory, where, target)
        self._in_doubt[name, partition] = (move, writer)
        try:
            with writer.maintenance:  # a deletion of records under way ends before
                writer.close()
            if partitions.archives.tiering is not None:
                partitions.archives.tiering.suspend(name, partition)
            move.copy()
            move.commit()
            moved = entry.placed({partition: (target, move.final)})
            partitions.opening.open_and_publish(moved, {partition: writer.log_start_offset})
        finally:
            self.settle(name)

    def settle(self, name: str) -> None:
        """Bring a topic's moves that are in doubt to an end: in the new place if that is published, or back.

        May be cut short anywhere: the next call goes on. A partition that cannot be opened is offline.
        """
        for key, (move, writer) in self._in_doubt.copy().items() if self._in_doubt else ():
            if key[0] == name:
                if self._partitions.registry.view(*key) is writer:
                    self._go_back(move, writer)
                elif self._partitions.place(*key)[1] == move.final:
                    self._finish(move)
                del self._in_doubt[key]

    def _go_back(self, move: Move, writer: PartitionWriter) -> None:
        with writer.maintenance, suppress(StorageError, OSError):  # opening it again finds what is there
            writer.close()
        move.undo()
        entry = self._partitions.entries[writer.topic]
        try:
            self._partitions.opening.open_and_publish(entry, {writer.partition: writer.log_start_offset})
        except StratalogError:
            del self._in_doubt[writer.topic, writer.partition]
            raise

    def _finish(self, move: Move) -> None:
        try:
            move.finish()
        except (StorageError, OSError) as error:
            self._partitions.context.warn(
                f"{move.directory}: {error}; moved, the next start removes what is left"
            )


def _copy(context: LogContext, source: str, target: str) -> None:
    with context.fs.open(source, "r") as reading, context.fs.open(target, "x") as writing:
        size, at = reading.size(), 0
        while at < size:
            data = reading.pread(min(COPY_BYTES, size - at), at)
            if not data:
                break
            writing.pwrite(data, at)
            at += len(data)
        writing.sync()
