"""Moving a partition to another log directory, and using one that moves or loses its files.

The copy grows in a `-future` directory and is synced. Then the old directory is marked with
`stratalog.moved`, the copy gets its name by one rename, and the old directory is removed. A crash before
the rename leaves the old partition (its mark is removed) and a `-future` directory that the next start
removes; a crash after it leaves two directories of one name, of which the next start removes the marked one.

A move is in doubt (`Moves`) from before the partition is closed until it is open in one of the two places
and the other one is removed. An error or Ctrl-C at any point leaves it in doubt, and the next change to the
topic settles it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from stratalog.errors import ClosedError, CorruptionError, StorageError, StratalogError, again
from stratalog.fs import FileSystem
from stratalog.log.context import LogContext
from stratalog.log.names import DELETED, MOVED, parse_partition_dir
from stratalog.log.read.reader import relisting
from stratalog.log.write.log_end import Completion, End
from stratalog.log.write.writer import PartitionWriter
from stratalog.store.catalog import View
from stratalog.store.logdir import LogDir

if TYPE_CHECKING:
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.read.reader import Isolation
    from stratalog.log.segment.segment import Segment
    from stratalog.store.catalog import State
    from stratalog.store.partitions import Partitions


COPY_BYTES = 4 << 20
P = ParamSpec("P")
T = TypeVar("T")


def is_moved(fs: FileSystem, directory: str) -> bool:
    """Return True if this partition was being moved elsewhere: where it has a twin, the twin counts."""
    return fs.exists(f"{directory}/{MOVED}")


def take_mark_off(fs: FileSystem, directory: str) -> None:
    """Remove the mark of a move that did not happen: this directory is the partition."""
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
            copy_file(fs, f"{self.directory}/{each}", f"{self._future}/{each}")
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
    """The moves of a store that are in doubt, and partitions that are closed for a repair.

    Everything here happens inside ``changes.of`` of the topic.
    """

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._in_doubt: dict[tuple[str, int], tuple[Move | None, PartitionWriter]] = {}
        """No move: the partition is to be opened again where it is."""

    def topics(self) -> set[str]:
        """Return the topics with a move that is under way or was cut short."""
        return {name for name, _ in self._in_doubt.copy()} if self._in_doubt else set()

    def close(self, writer: PartitionWriter) -> None:
        """Close a partition for a repair; `settle` opens it again."""
        self._in_doubt[writer.topic, writer.partition] = (None, writer)
        writer.close()
        for segment in writer.segments():
            segment.forget()

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
            with or_missing(writer):
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
                elif move is not None and self._partitions.place(*key)[1] == move.final:
                    self._finish(move, writer)
                del self._in_doubt[key]

    def _go_back(self, move: Move | None, writer: PartitionWriter) -> None:
        with writer.maintenance, suppress(StorageError, OSError):  # opening it again finds the files
            writer.close()
        if move is not None:
            move.undo()
        entry = self._partitions.entries[writer.topic]
        try:
            self._partitions.opening.open_and_publish(entry, {writer.partition: writer.log_start_offset})
        except StratalogError:
            del self._in_doubt[writer.topic, writer.partition]
            raise

    def _finish(self, move: Move, writer: PartitionWriter) -> None:
        for segment in writer.segments():
            segment.forget()
        try:
            move.finish()
        except (StorageError, OSError) as error:
            self._partitions.context.warn(
                f"{move.directory}: {error}; the partition was moved; the next start removes the old files"
            )


def copy_file(fs: FileSystem, source: str, target: str) -> None:
    """Copy a file to a new one, with its time; durable on return, except for its name and time."""
    with fs.open(source) as reading, fs.open(target, "x") as writing:
        at = 0
        while data := reading.pread(COPY_BYTES, at):
            writing.pwrite(data, at)
            at += len(data)
        writing.sync()
    fs.set_mtime_ns(target, fs.stat(source).mtime_ns)  # retention asks when a log was written last


def steady(partitions: Partitions, view: View) -> View:
    """Return a view that goes on with a partition's new writer after a move; a follower stays as it is."""
    if not isinstance(view, PartitionWriter):
        return view
    return cast(PartitionWriter, _SteadyView(partitions, view))


def unmoved(
    partitions: Partitions,
    view: View,
    look: Callable[Concatenate[View, P], T],
    *args: P.args,
    **options: P.kwargs,
) -> T:
    """Return ``look(view, …)``; look again, in its new place, when the partition was moved meanwhile.

    For a short look: a file that went with the old directory is missing, or looks like one that never was.
    """
    if not isinstance(view, PartitionWriter):
        return relisting(view, partial(look, view, *args, **options))
    registry = partitions.registry
    while True:
        try:
            found = look(view, *args, **options)
            if registry.view(view.topic, view.partition) is view:
                return found
        except (FileNotFoundError, CorruptionError):
            if registry.view(view.topic, view.partition) is view:
                raise
        after = partitions.successor(view)
        if after is None:
            return look(view, *args, **options)
        view = after


class _SteadyView:
    """Passes everything on to the partition's present writer; frequent calls have a method of their own."""

    __slots__ = ("_partitions", "_registry", "_state", "_writer", "partition", "topic")

    def __init__(self, partitions: Partitions, writer: PartitionWriter) -> None:
        self.topic = writer.topic
        self.partition = writer.partition
        self._partitions = partitions
        self._registry = partitions.registry
        self._state: State | None = None
        self._writer = writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now(), name)

    def _now(self) -> PartitionWriter:
        state = self._registry.state
        if state is not self._state:
            self._writer = self._partitions.successor(self._writer) or self._writer
            self._state = state
        return self._writer

    @property
    def log_start_offset(self) -> int:
        return self._now().segment_list.log_start_offset

    @property
    def next_offset(self) -> int:
        return self._now().active.ledger.next_offset

    def refresh(self) -> None:
        self._now().refresh()

    def end_offset(self, isolation: Isolation = "read_uncommitted") -> int:
        return self._now().end_offset(isolation)

    def segments(self) -> tuple[Segment, ...]:
        return self._now().segment_list.all()

    def replaced(self, segment: Segment) -> bool:
        return self._now().replaced(segment)

    def aborted(self, start: int, end: int) -> list[AbortedTxn]:
        return unmoved(self._partitions, self._now(), lambda view: view.aborted(start, end))

    def wait(self, *args: Any, **options: Any) -> bool:
        """Wait as the writer does; a move under way is waited for."""
        while True:
            writer = self._now()
            try:
                return writer.wait(*args, **options)
            except ClosedError:
                found = self._partitions.wait_for_successor(writer)
                if found is None:
                    raise
                self._writer = found


def flush(writer: PartitionWriter) -> None:
    """Sync a writer; raise ClosedError if it was closed for a move, so that the next one is called."""
    if isinstance(writer.ends.error, ClosedError):
        raise again(writer.ends.error)
    writer.flush()


def durable(writer: PartitionWriter, end: int) -> Completion:
    """Call `PartitionWriter.durable`; raise ClosedError as `flush` does."""
    return _unless_closed(writer.durable(end))


def when(writer: PartitionWriter, end: End, offset: int) -> Completion:
    """Return the completion of an end of the log; raise ClosedError as `flush` does."""
    return _unless_closed(writer.ends.when(end, offset))


def _unless_closed(completion: Completion) -> Completion:
    """Raise the error of a completion of a closed writer, so that the caller tries the next one."""
    if isinstance(completion.error, ClosedError):
        raise again(completion.error)
    return completion


def missing(view: View, error: FileNotFoundError) -> StratalogError:
    """Build the error for a file of a partition that is not there, naming the directory and the way out.

    Where the topic was deleted meanwhile it is the error for that.
    """
    directory = view.directory
    if isinstance(view, PartitionWriter) and view.deleted is not None:
        return again(view.deleted)
    if view.context.fs.exists(directory):
        path = error.filename or (error.args[0] if error.args else directory)
        return StorageError(
            f"{path} is gone, but the log needs it: another program removed it; put it back, or see"
            f" `stratalog repair`"
        )
    parsed = parse_partition_dir(directory.rsplit("/", 1)[-1])
    given_up = "" if parsed is None else f" {parsed.topic} --partition {parsed.partition}"
    return StorageError(
        f"{directory} is gone: another program removed, renamed or unmounted it; put it back and open the"
        f" store again, or give the partition up with `stratalog repair{given_up} --action drop-damaged`"
    )


@contextmanager
def or_missing(view: View) -> Iterator[None]:
    """Around work on a partition: a file that is not there is a `StorageError` that says what to do."""
    try:
        yield
    except FileNotFoundError as error:
        raise missing(view, error) from error
