"""A bounded set of open files, shared by everything that reads or writes segments.

Tens of thousands of segments must be readable under a small ``ulimit -n``. A user of a file acquires it,
which pins it, and releases it soon; an unpinned file stays open until its place is needed (least recently
used first). A pinned file is never closed, so no thread can find its descriptor turned into another file.

The limit is soft in one case: when every open file is pinned and ``on_pressure`` finds nothing to release,
a file is opened beyond it and closed as soon as it is released, because refusing a read would be worse; the
process's own limit still stands behind it. Nothing here matters after a crash.

Ctrl-C or a failed allocation may cut any step short. What counts against the limit is counted from the
tables, and the order of steps keeps whoever uses a file out of the idle ones: at worst a file stays open for
too long.
"""

from __future__ import annotations

import contextlib
import errno
import resource
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from stratalog import locks
from stratalog.errors import ClosedError, InvalidArgumentError, StorageError
from stratalog.fs.contract import File, FileSystem, Mode

_MOST = 8192
_LEAST = 16
# Others may snatch what the callback released; after so many tries the limit gives way.
_PRESSURE_CALLS = 100


def default_limit() -> int:
    """Half of RLIMIT_NOFILE, the other half being for sockets, maps and the program around us; 16 to 8192."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST
    return max(_LEAST, min(soft // 2, _MOST))


class HandleStats(NamedTuple):
    """Numbers of a cache; the last four count from its creation."""

    limit: int
    open: int
    pinned: int
    hits: int
    misses: int
    evictions: int
    over_limit: int


class _Entry:
    __slots__ = ("file", "path", "pins", "writable")

    def __init__(self, file: File, path: str, writable: bool) -> None:
        self.file = file
        self.path = path
        self.writable = writable
        self.pins = 1


class HandleCache:
    """Open files of one filesystem, at most ``limit`` of them while pins allow. Thread-safe."""

    def __init__(self, fs: FileSystem, limit: int | None = None) -> None:
        self.limit = default_limit() if limit is None else limit
        if self.limit < 1:
            raise InvalidArgumentError(f"a handle limit must be at least 1, not {self.limit}")
        self.on_pressure: Callable[[], bool] | None = None
        """Called without a lock when pins alone fill the limit; returns True if it released something."""
        self._fs = fs
        self._mutex = locks.lock("handles")
        self._by_path: dict[str, _Entry] = {}  # what is forgotten or replaced is in `_by_file` alone
        self._by_file: dict[File, _Entry] = {}
        self._idle: OrderedDict[_Entry, None] = OrderedDict()  # unpinned, least recently used first
        self._places: set[object] = set()  # taken for opens under way
        self._forgets = 0
        self._closed = False
        self._hits = self._misses = self._evictions = self._over_limit = 0

    def acquire(self, path: str, mode: Mode = "r") -> File:
        """Return a file that stays open until :meth:`release`; every acquire needs its own release.

        Handles are shared: two acquires of a path usually give the same File. A writable handle serves
        readers too; asking for "w" or "a" where only a reading handle is cached opens a writable one
        beside it. "x" always creates. Errors are those of ``FileSystem.open``.
        """
        writable = mode != "r"
        while True:
            with self._mutex:
                if mode != "x":
                    entry = self._by_path.get(path)
                    if entry is not None and (entry.writable or not writable):
                        self._hits += 1
                        entry.pins += 1
                        self._idle.pop(entry, None)
                        return entry.file
                if self._closed:
                    raise ClosedError(f"{path}: the file handles are closed")
                forgets = self._forgets
            place = object()
            try:
                self._make_room(place)
                file = self._open(path, mode)
                with self._mutex:
                    # After a forget the name may mean another file: look again (what "x" created is ours).
                    useless: File | None = file
                    entered = mode == "x" or (forgets == self._forgets and not self._closed)
                    if entered:
                        self._misses += 1
                        useless = self._enter(file, path, mode)
                        self._places.discard(place)
            finally:
                self._places.discard(place)
            if useless is not None:
                useless.close()
            if entered:
                return file

    def release(self, file: File) -> None:
        """Unpin; the file may be closed from now on."""
        with self._mutex:
            entry = self._by_file.get(file)
            if entry is None or entry.pins == 0:
                raise InvalidArgumentError(f"{file.path}: released more often than acquired")
            taken = len(self._by_file) + len(self._places)
            keep = self._by_path.get(entry.path) is entry and taken <= self.limit
            if entry.pins == 1 and keep:
                self._idle[entry] = None
            entry.pins -= 1
            if entry.pins or keep:
                return
            self._drop(entry)
        file.close()

    @contextlib.contextmanager
    def pinned(self, path: str, mode: Mode = "r") -> Iterator[File]:
        """``acquire`` and ``release`` around a block."""
        file = self.acquire(path, mode)
        try:
            yield file
        finally:
            self.release(file)

    def forget(self, path: str) -> None:
        """Drop the handle of a name that was renamed or removed; a pinned file closes at release."""
        with self._mutex:
            self._forgets += 1
            entry = self._by_path.pop(path, None)
            if entry is None or entry.pins:
                return
            self._drop(entry)
        entry.file.close()

    def forget_below(self, directory: str) -> None:
        """Forget every file of a directory that was renamed or removed: another may get its name."""
        with self._mutex:
            self._forgets += 1  # an open under way looks again
            paths = [path for path in self._by_path if path.startswith(f"{directory}/")]
        for path in paths:
            self.forget(path)

    def paths(self) -> list[str]:
        """Return the names under which files are kept open."""
        with self._mutex:
            return list(self._by_path)

    def stats(self) -> HandleStats:
        """Return the numbers of this moment."""
        with self._mutex:
            return HandleStats(
                self.limit,
                len(self._by_file),
                sum(entry.pins > 0 for entry in self._by_file.values()),
                self._hits,
                self._misses,
                self._evictions,
                self._over_limit,
            )

    def close(self) -> None:
        """Close unpinned files now, the others when released; acquire raises ClosedError from now on."""
        with self._mutex:
            self._closed = True
            idle = list(self._idle)
            self._by_path.clear()
        for entry in idle:
            entry.file.close()
            with self._mutex:
                self._drop(entry)

    def _enter(self, file: File, path: str, mode: Mode) -> File | None:
        """Under the mutex: take a freshly opened file in, pinned once. Return a file to close: the one it
        replaced, if it is not pinned.
        """
        entry = _Entry(file, path, writable=mode != "r")
        self._by_file[file] = entry
        before = self._by_path.get(path)
        if self._closed or (before is not None and before.writable >= entry.writable and mode != "x"):
            return None  # another thread was faster: its handle stays, this one closes at release
        self._by_path[path] = entry
        if before is None or before not in self._idle:
            return None
        self._drop(before)
        return before.file

    def _drop(self, entry: _Entry) -> None:
        """Under the mutex: out of the tables; the caller closes the file outside."""
        if self._by_path.get(entry.path) is entry:
            self._by_path.pop(entry.path)
        self._by_file.pop(entry.file, None)
        self._idle.pop(entry, None)

    def _make_room(self, place: object) -> None:
        """Take a place: a free one, that of the file idle longest, or one that ``on_pressure`` frees."""
        calls_left = _PRESSURE_CALLS
        while True:
            victim: _Entry | None = None
            with self._mutex:
                if len(self._by_file) + len(self._places) < self.limit:
                    self._places.add(place)
                    return
                if self._idle:
                    victim = self._evict()
            if victim is not None:
                victim.file.close()
            elif calls_left and self.on_pressure is not None and self.on_pressure():
                calls_left -= 1
            else:
                with self._mutex:
                    self._places.add(place)
                    self._over_limit += 1
                return

    def _evict(self) -> _Entry:
        entry = next(iter(self._idle))
        self._drop(entry)
        self._evictions += 1
        return entry

    def _open(self, path: str, mode: Mode) -> File:
        """Open; when the process itself is out of descriptors, close idle ones, whatever our limit says."""
        while True:
            try:
                return self._fs.open(path, mode)
            except StorageError as error:
                cause = error.__cause__
                if not isinstance(cause, OSError) or cause.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                with self._mutex:
                    victim = self._evict() if self._idle else None
                if victim is not None:
                    victim.file.close()
                elif self.on_pressure is None or not self.on_pressure():
                    raise
