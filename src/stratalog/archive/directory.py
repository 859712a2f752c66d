"""An archive in a directory, as safe as one in an object store: on our own filesystem contract.

`obstore` reaches directories too, but syncs nothing and cannot replace a file only if it is still the one
that was read. Here an object is written beside (`<key>.tmp`), synced, renamed and its name synced, with
the directories above it; a put that returned survives a power cut. The two conditional puts hold the lock
of `<root>/.lock` (of the open-file-description kind: it excludes other processes, and goes with its holder)
while they compare and replace.

Crash policy: the old object or the new one. A `.tmp` that a crash left is listed like any other object,
belongs to nothing, and is swept.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from stratalog import locks
from stratalog.archive.objects import ObjectInfo, Tagged
from stratalog.errors import ArchiveError, StorageError, StoreLockedError
from stratalog.fs import Buffer, FileSystem

LOCK = ".lock"
LOCK_TIMEOUT_S = 30.0
_PAUSE_S = 0.005
OBJECT_LIMIT_BYTES = 4 << 30


class DirectoryObjects:
    """Objects as files below ``root``."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root
        self._mutex = locks.lock("archive.directories")
        self._known_dirs: set[str] = set()
        self.url = f"file://{root}"

    def __repr__(self) -> str:
        return f"<DirectoryObjects {self._root}>"

    def url_of(self, key: str) -> str:
        return f"{self.url}/{key}" if key else self.url

    def _path(self, key: str) -> str:
        parts = key.split("/")
        if not key or any(part in ("", ".", "..") for part in parts):
            raise ArchiveError(f"{key!r} is not a key", url=self.url)
        return f"{self._root}/{key}"

    def get(self, key: str) -> Tagged:
        with self._errors(key):
            data = self._fs.read_file(self._path(key), OBJECT_LIMIT_BYTES)
        return Tagged(data, _tag)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._errors(key), self._fs.open(self._path(key)) as file:
            data = file.pread(length, start)
        if len(data) != length:
            raise ArchiveError(
                f"ends at byte {start + len(data)}, {start + length} wanted", url=self.url_of(key)
            )
        return data

    def put(self, key: str, data: Buffer) -> None:
        with self._errors(key):
            self._write(key, data)

    def put_if_absent(self, key: str, data: Buffer) -> str | None:
        with self._errors(key), self._locked():
            if self._fs.exists(self._path(key)):
                return None
            self._write(key, data)
        return _tag(data)

    def put_if_match(self, key: str, data: Buffer, tag: str) -> str | None:
        with self._errors(key), self._locked():
            try:
                found = _tag(self._fs.read_file(self._path(key), OBJECT_LIMIT_BYTES))
            except FileNotFoundError:
                return None
            if found != tag:
                return None
            self._write(key, data)
        return _tag(data)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._errors(prefix):
            yield from self._walk(prefix.rstrip("/"))

    def _walk(self, directory: str) -> Iterator[ObjectInfo]:
        path = f"{self._root}/{directory}" if directory else self._root
        try:
            names = self._fs.list_dir(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            key = f"{directory}/{name}" if directory else name
            if key == LOCK:
                continue
            try:
                stat = self._fs.stat(f"{path}/{name}")
            except FileNotFoundError:
                continue
            if stat.is_dir:
                yield from self._walk(key)
            else:
                yield ObjectInfo(key, stat.size, stat.mtime_ns // 1_000_000)

    def delete(self, keys: Iterable[str]) -> None:
        touched = set()
        for key in keys:
            with self._errors(key):
                path = self._path(key)
                try:
                    self._fs.remove(path)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                touched.add(posixpath.dirname(path))
        for directory in sorted(touched, key=len, reverse=True):
            with self._errors(""):
                self._tidy(directory)

    def head(self, key: str) -> ObjectInfo | None:
        with self._errors(key):
            try:
                stat = self._fs.stat(self._path(key))
            except (FileNotFoundError, NotADirectoryError):
                return None
        return ObjectInfo(key, stat.size, stat.mtime_ns // 1_000_000)

    # -- files ---------------------------------------------------------------------------------------

    def _write(self, key: str, data: Buffer) -> None:
        path = self._path(key)
        while True:
            self._make_dir(posixpath.dirname(path))
            try:
                self._fs.write_atomic(path, data)
                return
            except FileNotFoundError:
                # Somebody tidied the directory away, empty as it was: make it again.
                with self._mutex:
                    self._known_dirs.clear()

    def _make_dir(self, path: str) -> None:
        """Create a directory with those above it, and make the names of all of them durable."""
        with self._mutex:
            if path in self._known_dirs:
                return
        missing = []
        at = path
        while not self._fs.exists(at):
            missing.append(at)
            at = posixpath.dirname(at) or "/"
        self._fs.make_dir(path)
        for made in reversed(missing):
            self._fs.sync_dir(posixpath.dirname(made) or "/")
        if not missing:
            # Made by another process, perhaps a moment ago: what it did not live to sync, we do.
            self._fs.sync_dir(posixpath.dirname(path) or "/")
        with self._mutex:
            self._known_dirs.add(path)

    def _tidy(self, directory: str) -> None:
        """Sync a directory that lost a file; an empty one goes, and so on up."""
        while True:
            try:
                empty = directory != self._root and not self._fs.list_dir(directory)
                if not empty:
                    self._fs.sync_dir(directory)
                    return
                self._fs.remove_dir(directory)
            except (FileNotFoundError, StorageError):
                # Somebody puts something there, or tidies it too.
                return
            with self._mutex:
                self._known_dirs.discard(directory)
            directory = posixpath.dirname(directory)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among those who replace objects, in this process and in others."""
        self._make_dir(self._root)
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                lock = self._fs.lock(f"{self._root}/{LOCK}", {"pid": os.getpid()})
                break
            except StoreLockedError as error:
                if time.monotonic() > deadline:
                    raise ArchiveError(f"its lock is held for long: {error}", url=self.url) from error
                time.sleep(_PAUSE_S)
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """What the filesystem says, as an object store would say it."""
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(f"no object at {self.url_of(key)}") from None
        except (StorageError, OSError) as error:
            raise ArchiveError(str(error), url=self.url_of(key)) from error


def _tag(data: Buffer) -> str:
    return hashlib.sha256(data).hexdigest()
