"""What an export asks of its output, whatever the format.

An output holds each log (a partition of one topic id) up to an end offset. A `Change` adds files, moves the
ends and names the dead letters that belong to it; `LakeTable.commit` makes all of it true at once, or none of
it. A commit is refused with `ConflictError` when another run moved one of the same ends first. The caller
then reads the ends again and plans again: exactly once needs nothing else.

Dead letters are Parquet files that the executors wrote. They are pending from the commit that names them
until they were sent: `pending` lists them with a number that is the same in every run, and `sent` ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from stratalog.errors import StoreError
from stratalog.spark.offsets import Pair
from stratalog.spark.pipelines.lake.files import DataFile, Target
from stratalog.spark.pipelines.lake.payload import Payload
from stratalog.spark.pipelines.lake.work import Letters


@dataclass(frozen=True, order=True, slots=True)
class Log:
    """One log: a topic that was deleted and made anew has another id, and so is another log."""

    topic: str
    topic_id: str
    partition: int

    @property
    def key(self) -> str:
        """The name under which tables keep its end. A directory older than topic ids has no id."""
        return f"{self.topic_id or self.topic}:{self.partition}"


@dataclass(frozen=True)
class Pending:
    """Dead letters of one topic that are committed and not yet known to be sent."""

    topic: str
    query: str
    batch: int
    """With ``query`` the id of the send; batches of a query rise."""
    files: tuple[str, ...]
    target: Target
    """What reads the files."""


@dataclass(frozen=True)
class Dates:
    """Whole UTC days [since_ms, until_ms) of some topics, or of all."""

    topics: tuple[str, ...]
    since_ms: int
    until_ms: int


@dataclass(frozen=True)
class Change:
    """What one run adds to an output."""

    run: str
    """An id that no other run has."""
    before: Mapping[Log, int]
    """The ends this change was planned with; a log that is new is not among them."""
    ends: Mapping[Log, int]
    files: tuple[DataFile, ...]
    letters: tuple[Letters, ...] = ()
    replacing: Dates | None = None


class ConflictError(StoreError):
    """Another run changed the output first; nothing of the change was applied."""


class LakeTable(Protocol):
    """An output of an export."""

    columns: tuple[str, ...]
    """The record columns that its data files have."""
    split: bool
    """Whether each range of a log needs files of its own."""

    @property
    def url(self) -> str:
        """Where it is, for people."""

    def prepare(self, logs: Sequence[Log], payloads: Sequence[Payload], *, value: bool) -> None:
        """Create the table if it does not exist; give it the columns of the payloads, and the value's unless
        no row will have one; note the topic ids."""

    def ends(self, logs: Sequence[Log]) -> dict[Log, int]:
        """Read the table as it is now; return the end offset of each log that it holds something of."""

    def ids_of(self, topic: str) -> set[str]:
        """The ids of the topics of this name that the table holds or was about to hold."""

    def oldest(self, dates: Dates) -> dict[Pair, int]:
        """The smallest offset of each partition that the table holds at these dates."""

    def target(self, run: str) -> Target:
        """Where the executors write the files of a run."""

    def commit(self, change: Change) -> int:
        """Apply a change; durable on return. Return how many files it replaced.

        Raise ConflictError only if nothing of it was applied; after another error it may have been.
        """

    def discard(self, run: str) -> None:
        """Remove the files of a run that did not commit."""

    def pending(self) -> list[Pending]:
        """Dead letters of earlier commits that are to be sent, oldest first."""

    def sent(self, letters: Pending) -> None:
        """Forget dead letters that were sent."""

    def merge(self, topics: Sequence[str], compression: str) -> int:
        """Make small files into larger ones; return how many files were replaced."""

    def facts(self) -> dict[str, object]:
        """Details for the result of a run."""
