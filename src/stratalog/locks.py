"""Every lock of the engine: its name, what it protects, what may happen under it, and the order of all.

`ORDER` is the one place where the order is written. A thread that holds a lock may take only locks that
stand further down; two locks of one name are never held together. ``io`` is the most that a thread may do
while it holds the lock:

    MEMORY    nothing but memory
    FILES     filesystem calls that do not wait for the disk: reads, positional writes, renames
    SYNC      fsync as well, and waiting for a condition
    NETWORK   object stores as well

A lock comes from `lock`, `rlock` or `condition` and is the plain one of `threading`. Tests switch to
checked ones (`stratalog.testing.locks`), which raise on a wrong order and on forbidden I/O.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from functools import wraps
from typing import Any, Concatenate, NamedTuple, NoReturn, ParamSpec, TypeVar

from stratalog.errors import ConcurrentUseError, ForkedError

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class Io(IntEnum):
    """What a thread may do while it holds a lock; each includes those before it."""

    MEMORY = 0
    FILES = 1
    SYNC = 2
    NETWORK = 3


class Rank(NamedTuple):
    """One row of the table. Its place in the table is its rank."""

    name: str
    protects: str
    io: Io


ORDER: tuple[Rank, ...] = (
    Rank("client", "the connection to the process that holds a store, one request at a time", Io.NETWORK),
    Rank("closing", "the end of a store, once", Io.NETWORK),
    Rank("journal", "the commits of staged records: decided, rolled forward, one at a time", Io.NETWORK),
    Rank("transactions", "which transactional ids there are", Io.MEMORY),
    Rank("transaction", "the transactions of one id: begun, added to, ended", Io.NETWORK),
    Rank("loans", "compactions prepared elsewhere", Io.MEMORY),
    Rank("groups", "the consumers of this process, and which partitions they read", Io.MEMORY),
    Rank("claims", "which partition is being rewritten, lent or waited for", Io.MEMORY),
    Rank("changes", "which topics are being created, changed or deleted", Io.MEMORY),
    Rank("read-only", "the topics of logs that are opened for reading only", Io.NETWORK),
    Rank("listing", "a look at the log directories: which topics there are", Io.SYNC),
    Rank("lifecycle", "reports and figures of the janitor's rounds", Io.MEMORY),
    Rank("round", "notes of one round of the janitor", Io.MEMORY),
    Rank("tier", "changing the archive of one partition, one at a time", Io.NETWORK),
    Rank("partition.maintenance", "sealed segments being replaced or removed", Io.SYNC),
    Rank("tier.copy", "writing `stratalog.archive`", Io.SYNC),
    Rank("archive-view", "the manifest of a partition that only the archive has", Io.NETWORK),
    Rank("archive.partition", "one partition's manifest in the archive, one change at a time", Io.NETWORK),
    Rank("partition.sync", "one round of fsyncs of a partition at a time", Io.SYNC),
    Rank("partition", "the log of one partition: its end, its segments, its producers", Io.FILES),
    Rank("follower", "the segments of a partition that another process writes", Io.FILES),
    Rank("scan", "record batches that wait for the reader of a scan", Io.MEMORY),
    Rank("archives", "opening the archive, once", Io.FILES),
    Rank("tiers", "which partitions have an archive", Io.MEMORY),
    Rank("tier.manifest", "what is known of one partition's archive", Io.MEMORY),
    Rank("archive", "the archives of all partitions, by topic id", Io.MEMORY),
    Rank("archive.manifest", "the manifest as it was last seen", Io.MEMORY),
    Rank("archive.blocks", "which blocks are being fetched", Io.MEMORY),
    Rank("archive.cache", "the cached blocks of archived segments", Io.FILES),
    Rank("archive.directories", "which directories an archive on a disk is known to have", Io.MEMORY),
    Rank("keys", "the table of the active segment's keys", Io.MEMORY),
    Rank("estimates", "sketches of keys for the cleaner", Io.MEMORY),
    Rank("settings", "writing the settings file of a store", Io.SYNC),
    Rank("checkpoint", "one checkpoint file of a log directory, and its entries", Io.SYNC),
    Rank("audit", "writing `stratalog.audit`, one line at a time", Io.SYNC),
    Rank("log-dir", "the mark of a clean stop in a log directory", Io.SYNC),
    Rank("deletions", "which files wait to be removed, and which are being removed", Io.MEMORY),
    Rank("topic.sticky", "the partition that records without a key go to", Io.MEMORY),
    Rank("sidecars", "the cache of parsed indexes and seals", Io.MEMORY),
    Rank("control", "which clients the control socket serves", Io.MEMORY),
    Rank("control.frames", "the memory that large frames of all clients share", Io.MEMORY),
    Rank("progress", "what one client is sent, one frame at a time", Io.MEMORY),
    Rank("registry", "publishing topics and partitions; looking them up takes no lock", Io.MEMORY),
    Rank("handles", "the cache of open files", Io.MEMORY),
    Rank("sync-thread", "how many threads that sync for others run", Io.MEMORY),
)


RECHECK_S = 1.0
"""How often a waiting thread looks again by itself: the one that should wake it may be interrupted."""


class Condition(threading.Condition):
    """A condition whose lock is taken with ``with condition.lock:``.

    Entering the condition itself runs Python code: an interrupt there would leave its lock taken for good.
    Taking a plain lock in a ``with`` statement cannot be cut in two, also in a ``finally``: so the lock is
    an attribute, and what must be given back is given back there by one operation on a dict or set.
    """

    def __init__(self, lock: threading.RLock | None = None) -> None:
        super().__init__(lock)
        self.lock: threading.RLock = self._lock  # type: ignore[attr-defined]
        """The lock to hold around `wait` and `notify`."""

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        """Wait until the predicate is true; return its value, false on time-out."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (found := predicate()):
            left = RECHECK_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                break
            self.wait(min(left, RECHECK_S))
        return found


class Factory(NamedTuple):
    """Where locks come from."""

    lock: Callable[[str], threading.Lock]
    rlock: Callable[[str], threading.RLock]
    condition: Callable[[str], Condition]


PLAIN = Factory(lambda name: threading.Lock(), lambda name: threading.RLock(), lambda name: Condition())

_factory = PLAIN


def use(factory: Factory) -> Factory:
    """Make locks with ``factory`` from now on; return the one before."""
    global _factory
    before, _factory = _factory, factory
    return before


def lock(name: str) -> threading.Lock:
    """Return a new lock; ``name`` is its row in `ORDER`."""
    return _factory.lock(name)


def rlock(name: str) -> threading.RLock:
    """Return a new lock that its holder may take again."""
    return _factory.rlock(name)


def condition(name: str) -> Condition:
    """Return a new condition over a lock of its own."""
    return _factory.condition(name)


def _forked() -> ForkedError:
    return ForkedError("this store was opened before a fork; open it again in the child")


def check_process(pid: int) -> None:
    """Raise `ForkedError` in a child of the process ``pid``; for work that goes on without a lock."""
    if os.getpid() != pid:
        raise _forked()


class _ForkedLock:
    """Stands for a lock or a condition in a forked child; whatever needs it is refused."""

    def acquire(self, *_: object, **__: object) -> NoReturn:
        raise _forked()

    __enter__ = wait = wait_for = notify = notify_all = acquire

    @property
    def lock(self) -> _ForkedLock:
        """The lock of a condition: this one."""
        return self

    def release(self, *_: object) -> None:
        """Do nothing: the lock is the parent's."""

    __exit__ = release


_FORKED = _ForkedLock()


def refuse_forked(*owners: object) -> None:
    """In a forked child: make every lock of these objects raise `ForkedError` from now on.

    A thread of the parent, which does not exist here, may have held a lock at the fork: it would never be
    released. Takes no lock itself.
    """
    for owner in owners:
        for name, value in list(vars(owner).items()):
            if callable(getattr(value, "acquire", None)):
                setattr(owner, name, _FORKED)


def refused(what: str) -> ConcurrentUseError:
    """Build the error for a second thread in something that is for one at a time."""
    return ConcurrentUseError(f"{what} is for one thread at a time, and another thread is using it now")


class OneThread:
    """Which thread is inside an object's methods that are `for_one_thread`. Not a lock: it never waits."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.inside: dict[None, int] = {}
        """The thread, while there is one: taken and given back in one step each."""


def for_one_thread(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], T]:
    """Make a method raise `ConcurrentUseError` while another thread is in one; ``self.one_thread`` knows."""

    @wraps(method)
    def alone(self: S, /, *args: P.args, **options: P.kwargs) -> T:
        owner: Any = self
        inside: dict[None, int] = owner.one_thread.inside
        thread = threading.get_ident()
        if inside.get(None) == thread:
            return method(self, *args, **options)
        try:
            if inside.setdefault(None, thread) != thread:
                raise refused(owner.one_thread.what)
            return method(self, *args, **options)
        finally:
            if inside.get(None) == thread:
                del inside[None]

    return alone
