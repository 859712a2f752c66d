"""All errors that Stratalog raises, in one tree.

    StratalogError
    ├── InvalidArgumentError          bad input from the caller (also a ValueError)
    │   ├── ConfigError               an unknown setting or a value out of its range
    │   ├── InvalidTopicError         a name that Kafka refuses
    │   ├── InvalidRecordError        an invalid record or batch
    │   │   └── RecordTooLargeError   past max.message.bytes or the segment
    │   └── UnsupportedCodecError     an unknown compression codec
    ├── NotFoundError                 (also a LookupError)
    │   ├── UnknownTopicError
    │   └── UnknownPartitionError
    ├── TopicExistsError
    ├── ConflictError                 another append came first; carries the log's actual end
    ├── GroupInUseError               clients of the broker are members of the group
    ├── ConcurrentUseError            a second thread uses a consumer, a transaction or a reading
    ├── OffsetOutOfRangeError         carries the valid range
    ├── SerializationError            a serializer or deserializer failed; carries the record's offset
    ├── FormatError
    │   ├── CorruptionError           damaged data: where, and why
    │   └── UnsupportedFormat         an older or newer format version; not damage
    ├── StorageError                  a filesystem operation failed
    │   ├── DiskFullError             no space left; clears when there is space again
    │   ├── SyncFailedError           after a failed fsync nothing is acknowledged
    │   └── LogDirOfflineError        one directory failed; the others keep working
    ├── ArchiveError                  a request to the object store failed, or an object is missing
    │   └── ArchiveConflictError      another store, or another process of this one, writes this archive
    ├── StoreError
    │   ├── StoreLockedError          another process holds the store; carries its pid
    │   ├── ReadOnlyError             a change in a read-only store
    │   ├── ClosedError               used after close()
    │   ├── ForkedError               used in a forked child
    │   └── ControlError              the process that holds the store did not answer, or refused
    ├── ClusterError                  a Kafka cluster did not answer the command line, or refused
    └── ProducerError                 idempotent and transactional producers
        ├── OutOfOrderSequenceError   a gap; carries the sequence that is expected
        ├── DuplicateSequenceError    already appended, but the offset is no longer known
        ├── InvalidProducerEpochError
        ├── InvalidProducerIdMappingError  not the producer of this transactional id
        ├── UnstableOffsetCommitError a transaction that commits offsets is open; try again
        └── InvalidTxnStateError

This module imports nothing from the package: every other module may raise these errors.
"""

from __future__ import annotations

import re
from typing import Self, TypeVar


class StratalogError(Exception):
    """The base class of all errors that this package raises on purpose.

    Errors can be pickled and copied with all their attributes, for Spark workers and process pools.
    """

    batch_index: int = -1
    record_index: int = -1
    """The batch of an append and the record in it that the error is about, from 0; -1 if not known."""

    advice: str = ""
    """What a program can do about it: the last part of the text. The command line has its own hints."""

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
    """An argument is invalid."""


class ConfigError(InvalidArgumentError):
    """A setting is unknown, of the wrong type or out of its range."""


class InvalidTopicError(InvalidArgumentError):
    """The topic name is one that Kafka refuses."""


NOT_BYTES = "for text or objects use topic.using({}_serializer='str'), or 'json'"
"""Advice about a key or value that is not bytes."""
NOT_A_RECORD = "append a Record with append_many([record])"
"""Advice about a value that is a whole record."""


class InvalidRecordError(InvalidArgumentError):
    """A record or batch is invalid."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        text = str(args[0]) if args else ""
        found = re.search(r"(?<!header )\b(key|value) must be bytes", text)
        if found:
            self.advice = NOT_A_RECORD if text.endswith("not Record") else NOT_BYTES.format(found[1])


class RecordTooLargeError(InvalidRecordError):
    """A record or batch is larger than ``max.message.bytes`` or than a segment."""


class UnsupportedCodecError(InvalidArgumentError):
    """The compression codec is unknown."""


class NotFoundError(StratalogError, LookupError):
    """A store, directory, topic or group does not exist."""


class UnknownTopicError(NotFoundError):
    """The store has no such topic."""


class UnknownPartitionError(NotFoundError):
    """The topic exists but has no such partition."""


class TopicExistsError(StratalogError):
    """A topic with this name already exists."""


class ConflictError(StratalogError):
    """Another append came first: the log ends at ``actual``, not at ``expected``."""

    def __init__(self, message: str, *, partition: int = -1, expected: int = -1, actual: int = -1) -> None:
        super().__init__(message)
        self.partition = partition
        self.expected = expected
        self.actual = actual


class GroupInUseError(StratalogError):
    """The group has clients of the broker as members, so a program cannot consume in its name."""


class ConcurrentUseError(StratalogError):
    """A second thread uses what is for one thread at a time: a consumer, a transaction or a reading."""


class OffsetOutOfRangeError(StratalogError):
    """The offset is outside the log. ``first`` and ``end`` (exclusive) are the valid range."""

    def __init__(self, message: str, *, offset: int, first: int, end: int) -> None:
        super().__init__(message)
        self.offset = offset
        self.first = first
        self.end = end


class SerializationError(StratalogError):
    """A serializer or a deserializer failed; ``__cause__`` is what it raised.

    The offset is that of a record that was read; -1 in an append.
    """

    def __init__(self, message: str, *, topic: str = "", partition: int = -1, offset: int = -1) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class FormatError(StratalogError):
    """Data on disk or on the wire cannot be used."""


class CorruptionError(FormatError):
    """Data is damaged: it fails its checks. ``path`` and ``position`` say where, ``reason`` why."""

    def __init__(self, reason: str, *, path: str = "", position: int = -1) -> None:
        self.reason = reason
        self.path = path
        self.position = position
        where = f"{path or 'data'} at byte {position}" if position >= 0 else path or "data"
        super().__init__(f"{where}: {reason}")

    def at(self, path: str, base_position: int = 0) -> CorruptionError:
        """Return the same error placed in a file, for code that only saw a buffer."""
        position = self.position + base_position if self.position >= 0 else base_position
        return type(self)(self.reason, path=path, position=position)


class UnsupportedFormat(FormatError):  # noqa: N818 - the name is part of the public API
    """The format version is older or newer than this library supports. This is not damage."""


class StorageError(StratalogError):
    """A filesystem operation failed."""


class DiskFullError(StorageError):
    """No space is left on the disk; the log is read-only until there is space again."""


class SyncFailedError(StorageError):
    """An fsync failed: nothing written since the last successful one may be acknowledged."""


class LogDirOfflineError(StorageError):
    """A log directory failed; its partitions are offline."""


class ArchiveError(StratalogError):
    """A request to the object store failed, or an object is missing. ``url`` is the object."""

    def __init__(self, reason: str, *, url: str = "") -> None:
        super().__init__(f"{url}: {reason}" if url else reason)
        self.reason = reason
        self.url = url


class ArchiveConflictError(ArchiveError):
    """Another store writes this partition's archive. ``owner`` is the id of that store."""

    def __init__(self, reason: str, *, url: str = "", owner: str = "") -> None:
        super().__init__(reason, url=url)
        self.owner = owner


class StoreError(StratalogError):
    """The store is in a state that does not allow the operation."""


class StoreLockedError(StoreError):
    """Another process holds the store. ``pid`` and ``control`` are its pid and control socket, if known."""

    def __init__(self, message: str, *, pid: int | None = None, control: str | None = None) -> None:
        super().__init__(message)
        self.pid = pid
        self.control = control


class ReadOnlyError(StoreError):
    """The store or partition is read-only and cannot be changed."""


class ClosedError(StoreError):
    """The store was used after ``close()``."""


class ForkedError(StoreError):
    """The store was used in a forked child process; open it again there."""


class ControlError(StoreError):
    """The process that holds the store did not answer, or refused."""

    begun: bool = False
    """The holder had started the command, which may still complete."""

    def with_begun(self, begun: bool) -> Self:
        """Set whether the command had started; returns the error."""
        self.begun = begun
        return self


class ClusterError(StratalogError):
    """A Kafka cluster did not answer the command line, or refused."""


class ProducerError(StratalogError):
    """An idempotent or transactional producer violated the protocol."""


class OutOfOrderSequenceError(ProducerError):
    """A sequence number leaves a gap. ``expected`` is the next valid one, -1 if it is not known."""

    def __init__(self, message: str, *, expected: int = -1) -> None:
        super().__init__(message)
        self.expected = expected


class DuplicateSequenceError(ProducerError):
    """The sequences were already appended, at offsets that are no longer known.

    Nothing was lost or written twice: continue after ``last_sequence``, the producer's last in the partition.
    """

    def __init__(self, message: str, *, last_sequence: int = -1) -> None:
        super().__init__(message)
        self.last_sequence = last_sequence


class InvalidProducerEpochError(ProducerError):
    """The producer epoch is older than the current one: the producer is fenced."""


class InvalidProducerIdMappingError(ProducerError):
    """The producer id is not that of this transactional id."""


class UnstableOffsetCommitError(ProducerError):
    """A group's offsets are unknown until a transaction that commits them ends."""


class InvalidTxnStateError(ProducerError):
    """A transaction marker or transactional batch is not valid in the current state."""
