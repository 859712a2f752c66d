"""Every error Stratalog raises, in one tree.

    StratalogError
    ├── InvalidArgumentError          bad input from the caller (also a ValueError)
    │   ├── ConfigError               an unknown setting or a value out of its range
    │   ├── InvalidTopicError         a name Kafka would refuse
    │   ├── InvalidRecordError        a record or a batch the log cannot take
    │   │   └── RecordTooLargeError   past max.message.bytes or the segment
    │   └── UnsupportedCodecError     an unknown compression codec
    ├── NotFoundError                 (also a LookupError)
    │   ├── UnknownTopicError
    │   └── UnknownPartitionError
    ├── TopicExistsError
    ├── ConflictError                 another append came first; carries the log's actual end
    ├── OffsetOutOfRangeError         carries the valid range
    ├── FormatError
    │   ├── CorruptionError           bytes that fail their checks: where, and why
    │   └── UnsupportedFormat         an older or newer version: not damage
    ├── StorageError                  a filesystem operation failed
    │   ├── DiskFullError             heals when there is room
    │   ├── SyncFailedError           after a failed fsync nothing is acknowledged
    │   └── LogDirOfflineError        one directory failed; the others go on
    ├── ArchiveError                  a request to the object store failed, or an object is missing
    │   └── ArchiveConflictError      another store, or another process of this one, writes this archive
    ├── StoreError
    │   ├── StoreLockedError          another process writes here: who, and how to reach it
    │   ├── ReadOnlyError             a change was asked of a read-only store
    │   ├── ClosedError               used after close()
    │   ├── ForkedError               used in a forked child
    │   └── ControlError              the holder did not answer, or refused
    └── ProducerError                 idempotent and transactional producers
        ├── OutOfOrderSequenceError
        ├── InvalidProducerEpochError
        └── InvalidTxnStateError

Nothing here imports anything of the package: every room may raise these.
"""

from __future__ import annotations

from typing import Self, TypeVar


class StratalogError(Exception):
    """The root of every error this package raises on purpose.

    Errors cross process borders (Spark's workers, pools): each can be pickled and copied with all it carries.
    """

    batch_index: int = -1
    record_index: int = -1
    """Which batch of an append, and which record in it, both from 0; -1 when it is not about one."""

    advice: str = ""
    """What a program can do about it, the last part of its text; the command line has words of its own."""

    @property
    def message(self) -> str:
        """The text without the advice."""
        return super().__str__()

    def __str__(self) -> str:
        return f"{self.message}; {self.advice}" if self.advice else self.message

    def advising(self, advice: str) -> Self:
        """Add advice for programs; returns the error."""
        self.advice = advice
        return self

    def in_batch(self, batch_index: int, record_index: int = -1) -> Self:
        """Set the batch, and the record in it, that the error is about; returns the error."""
        self.batch_index = batch_index
        self.record_index = record_index
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (type(self), self.args, self.__dict__)


E = TypeVar("E", bound=BaseException)
S = TypeVar("S", bound=StratalogError)


def _rebuilt(kind: type[S], args: tuple[object, ...], state: dict[str, object]) -> S:
    """Make an error again without its constructor, whose keywords are not among ``args``."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def again(error: E) -> E:
    """Return a copy of an error that is kept and raised more than once, for one raise.

    Every raise adds the frames of its call, and with them its records, to the traceback of the error raised.
    An error that is not of this tree is returned itself.
    """
    if not isinstance(error, StratalogError):
        return error
    made = _rebuilt(type(error), error.args, error.__dict__)
    made.__dict__.pop("__notes__", None)
    for note in getattr(error, "__notes__", ()):
        made.add_note(note)  # into a list of its own
    made.__cause__ = error.__cause__
    return made


class InvalidArgumentError(StratalogError, ValueError):
    """The caller handed in something that cannot be right."""


class ConfigError(InvalidArgumentError):
    """A setting is unknown, of the wrong type or out of its range."""


class InvalidTopicError(InvalidArgumentError):
    """A topic name that Kafka would refuse."""


class InvalidRecordError(InvalidArgumentError):
    """A record or batch the log cannot take."""


class RecordTooLargeError(InvalidRecordError):
    """A record or batch larger than ``max.message.bytes`` or than a segment."""


class UnsupportedCodecError(InvalidArgumentError):
    """A compression codec id or name that does not exist."""


class NotFoundError(StratalogError, LookupError):
    """Something named does not exist."""


class UnknownTopicError(NotFoundError):
    """No such topic in this store."""


class UnknownPartitionError(NotFoundError):
    """The topic exists but has no such partition."""


class TopicExistsError(StratalogError):
    """A topic of that name is already there."""


class ConflictError(StratalogError):
    """Another append came first: the log does not end at ``expected``, but at ``actual``."""

    def __init__(self, message: str, *, partition: int = -1, expected: int = -1, actual: int = -1) -> None:
        super().__init__(message)
        self.partition = partition
        self.expected = expected
        self.actual = actual


class OffsetOutOfRangeError(StratalogError):
    """An offset outside the log; ``first`` and ``end`` are the valid range, ``end`` exclusive."""

    def __init__(self, message: str, *, offset: int, first: int, end: int) -> None:
        super().__init__(message)
        self.offset = offset
        self.first = first
        self.end = end


class FormatError(StratalogError):
    """Bytes on disk or on the wire that cannot be used."""


class CorruptionError(FormatError):
    """Bytes that fail their checks. ``path`` and ``position`` say where, ``reason`` why."""

    def __init__(self, reason: str, *, path: str = "", position: int = -1) -> None:
        self.reason = reason
        self.path = path
        self.position = position
        where = f"{path or 'data'} at byte {position}" if position >= 0 else path or "data"
        super().__init__(f"{where}: {reason}")

    def at(self, path: str, base_position: int = 0) -> CorruptionError:
        """The same error placed in a file, for code that only saw a buffer."""
        position = self.position + base_position if self.position >= 0 else base_position
        return type(self)(self.reason, path=path, position=position)


class UnsupportedFormat(FormatError):  # noqa: N818 - the name is part of the public API
    """An older message format or a version newer than this library: not damage."""


class StorageError(StratalogError):
    """The filesystem failed an operation."""


class DiskFullError(StorageError):
    """No space left; the log is read-only until there is room."""


class SyncFailedError(StorageError):
    """An fsync failed: nothing written since the last good one may be acknowledged."""


class LogDirOfflineError(StorageError):
    """A log directory failed; its partitions are offline."""


class ArchiveError(StratalogError):
    """The object store failed a request, or does not hold what its manifest says. ``url`` is the object."""

    def __init__(self, reason: str, *, url: str = "") -> None:
        super().__init__(f"{url}: {reason}" if url else reason)
        self.reason = reason
        self.url = url


class ArchiveConflictError(ArchiveError):
    """Somebody else writes this partition's archive. ``owner`` is the id of that store."""

    def __init__(self, reason: str, *, url: str = "", owner: str = "") -> None:
        super().__init__(reason, url=url)
        self.owner = owner


class StoreError(StratalogError):
    """The store as a whole cannot do that."""


class StoreLockedError(StoreError):
    """Another process holds the store. ``pid`` and ``control`` are its, where known."""

    def __init__(self, message: str, *, pid: int | None = None, control: str | None = None) -> None:
        super().__init__(message)
        self.pid = pid
        self.control = control


class ReadOnlyError(StoreError):
    """A change was asked of a store, or a partition, that is read-only."""


class ClosedError(StoreError):
    """The store was used after ``close()``."""


class ForkedError(StoreError):
    """The store was used in a forked child; open it again there."""


class ControlError(StoreError):
    """The process holding the store did not answer, or refused."""


class ProducerError(StratalogError):
    """An idempotent or transactional producer broke its rules."""


class OutOfOrderSequenceError(ProducerError):
    """A sequence number that is neither next nor a duplicate."""


class InvalidProducerEpochError(ProducerError):
    """A producer epoch older than the current one (a fenced producer)."""


class InvalidTxnStateError(ProducerError):
    """A transaction marker or transactional batch that does not fit the state."""
