"""Checked locks: the table of `stratalog.locks` enforced at run time.

`LockChecker` replaces the locks of everything opened while it is active. It raises `LockViolationError`
when a thread takes a lock out of order, and when it makes a filesystem or object-store call, or waits for
a condition, under a lock that forbids it. Calls are seen by wrapping the methods of the filesystem classes
for the time the checker is active. A store that a `MemoryFileSystem.before_call` hook opens stands for
another machine: what it does counts apart.

A schedule explorer may set ``on_block``, called before a thread waits for a lock or a condition, and after,
``on_take``, called before a thread takes a lock that it does not hold, and ``on_done``, called when a
filesystem call returns. Touches no disk.
"""

from __future__ import annotations

import functools
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from stratalog import locks
from stratalog.archive.objects import DirectoryObjects, RemoteObjects
from stratalog.fs import MemoryFileSystem, RealFile, RealFileSystem
from stratalog.fs.memory import MemoryFile
from stratalog.locks import Io

_FILE_CALLS: Mapping[str, Io] = {
    "pread": Io.FILES,
    "pread_into": Io.FILES,
    "pwrite": Io.FILES,
    "truncate": Io.FILES,
    "sync": Io.SYNC,
}
_TREE_CALLS: Mapping[str, Io] = {
    "open": Io.FILES,
    "list_dir": Io.FILES,
    "stat": Io.FILES,
    "make_dir": Io.FILES,
    "rename": Io.FILES,
    "link": Io.FILES,
    "remove": Io.FILES,
    "remove_dir": Io.FILES,
    "remove_tree": Io.FILES,
    "sync_dir": Io.SYNC,
}
_OBJECT_CALLS: Mapping[str, Io] = dict.fromkeys(
    ("get", "get_range", "put", "put_if_absent", "put_if_match", "list", "delete", "head"), Io.NETWORK
)
_CALLS: tuple[tuple[type, Mapping[str, Io]], ...] = (
    (RealFile, _FILE_CALLS),
    (MemoryFile, _FILE_CALLS),
    (RealFileSystem, _TREE_CALLS),
    (MemoryFileSystem, _TREE_CALLS),
    (DirectoryObjects, _OBJECT_CALLS),
    (RemoteObjects, _OBJECT_CALLS),
)


_IN_A_HOOK = "_step"
"""The function of `MemoryFileSystem` that calls its hook."""


class LockViolationError(AssertionError):
    """A lock was taken out of order, or something was done under a lock that forbids it."""


class LockChecker:
    """Makes checked locks, and records violations of their rules. Thread-safe."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.edges: set[tuple[str, str]] = set()
        """Every pair (held, taken) that was seen."""
        self.on_block: Callable[[bool], None] = lambda _: None
        self.on_take: Callable[[str], None] = lambda _: None
        self.on_done: Callable[[], None] | None = None
        self._ranks = {rank.name: (number, rank.io) for number, rank in enumerate(locks.ORDER)}
        self._local = threading.local()

    @contextmanager
    def active(self) -> Iterator[LockChecker]:
        """Make every lock a checked one, and watch filesystem calls, for the length of the block."""
        before = locks.use(
            locks.Factory(
                functools.partial(CheckedLock, self),  # type: ignore[arg-type]
                functools.partial(CheckedRLock, self),  # type: ignore[arg-type]
                functools.partial(CheckedCondition, self),
            )
        )
        wrapped = [each for kind, calls in _CALLS for each in self._wrap(kind, calls)]
        try:
            yield self
        finally:
            for kind, name, method in reversed(wrapped):
                setattr(kind, name, method)
            locks.use(before)

    def _wrap(self, kind: type, calls: Mapping[str, Io]) -> Iterator[tuple[type, str, Any]]:
        for name, io in calls.items():
            method = kind.__dict__.get(name)
            if method is not None:
                setattr(kind, name, self._watched(method, io))
                yield kind, name, method

    def _watched(self, method: Callable[..., Any], io: Io) -> Callable[..., Any]:
        local = self._local

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            if getattr(local, "held", None):
                self.check_io(io, method.__name__)
            result = method(*args, **kwargs)
            if self.on_done is not None:
                self.on_done()
            return result

        return call

    @property
    def held(self) -> list[Any]:
        """The checked locks that this thread holds, in the order it took them."""
        try:
            return self._local.held  # type: ignore[no-any-return]
        except AttributeError:
            self._local.held = []
            return self._local.held  # type: ignore[no-any-return]

    def check_io(self, io: Io, call: str, waiting: Any = None) -> None:
        """Raise if this thread holds a lock under which ``io`` is forbidden."""
        for each in self.held:
            if each.io < io and each is not waiting:
                self._violation(f"{call} ({io.name}) under the lock {each.name!r}")

    def check_order(self, wanted: Any) -> None:
        """Raise if this thread must not take ``wanted`` now."""
        for each in self.held:
            self.edges.add((each.name, wanted.name))
            if each.rank >= wanted.rank:
                self._violation(f"the lock {wanted.name!r} is taken under {each.name!r}")

    def rank(self, name: str) -> tuple[int, Io]:
        """Return the rank of a name and what may be done under it; KeyError if the table has no such row."""
        return self._ranks[name]

    def _violation(self, message: str) -> None:
        if _in_a_hook():
            return
        self.violations.append(message + "\n" + "".join(traceback.format_stack(limit=14)[:-3]))
        raise LockViolationError(message)


class CheckedLock:
    """A `threading.Lock` that checks its place in the order."""

    def __init__(self, checker: LockChecker, name: str) -> None:
        self.name = name
        self.rank, self.io = checker.rank(name)
        self._checker = checker
        self._inner: Any = self._make()

    def _make(self) -> Any:
        return threading.Lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; a thread that does not wait may take it in any order."""
        checker = self._checker
        if blocking and self._is_new():
            checker.check_order(self)
            checker.on_take(self.name)
        got = self._inner.acquire(False)
        if not got and blocking:
            checker.on_block(True)
            try:
                got = self._inner.acquire(True, timeout)
            finally:
                checker.on_block(False)
        if got:
            checker.held.append(self)
        return bool(got)

    def _is_new(self) -> bool:
        return True

    def release(self) -> None:
        """Give the lock back."""
        held = self._checker.held
        if self in held:
            held.reverse()
            held.remove(self)
            held.reverse()
        self._inner.release()

    def locked(self) -> bool:
        """Return True if a thread holds the lock."""
        return bool(self._inner.locked())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class CheckedRLock(CheckedLock):
    """A `threading.RLock` that checks its place in the order."""

    def _make(self) -> Any:
        return threading.RLock()

    def _is_new(self) -> bool:
        return not self._is_owned()

    # What `threading.Condition` asks of a lock that may be taken several times.

    def _is_owned(self) -> bool:
        return self in self._checker.held

    def _release_save(self) -> int:
        times = self._checker.held.count(self)
        for _ in range(times):
            self.release()
        return times

    def _acquire_restore(self, times: int) -> None:
        for _ in range(times):
            self.acquire()


class CheckedCondition(locks.Condition):
    """A condition over a checked lock; waiting counts as I/O that waits for a disk."""

    def __init__(self, checker: LockChecker, name: str) -> None:
        super().__init__(CheckedRLock(checker, name))  # type: ignore[arg-type]
        self._checker = checker
        self._name = name

    def wait(self, timeout: float | None = None) -> bool:
        """Wait; the condition's own lock is free meanwhile, so only the others count."""
        checker = self._checker
        checker.check_io(Io.SYNC, f"waiting for {self._name}", self._lock)  # type: ignore[attr-defined]
        checker.on_block(True)
        try:
            return super().wait(timeout)
        finally:
            checker.on_block(False)


def _in_a_hook() -> bool:
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == _IN_A_HOOK:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
