"""A place for files: a directory that driver and executors both see, or a prefix of an object store.

Names are relative to the place, with ``/`` between their parts. Crash policy: a file for which `finish`
returned is durable, with its name and the directories above it. `move` gives one file its final name: a
reader sees it whole or not at all.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from stratalog.archive import ObjectInfo, open_objects
from stratalog.archive.objects import RemoteObjects, directory_of
from stratalog.errors import ConfigError, DiskFullError, StorageError
from stratalog.fs import RealFileSystem

if TYPE_CHECKING:
    import pyarrow as pa


class Place(Protocol):
    """Where files are written, read, listed and removed."""

    url: str

    def begin(self, name: str) -> Any:
        """Return what `pyarrow` writes a new file to: a path or a stream."""

    def finish(self, name: str, sink: Any) -> int:
        """Make a written file durable; return its size in bytes."""

    def reading(self, name: str) -> Any:
        """Return what `pyarrow` reads the file from."""

    def address(self, name: str) -> str:
        """Return the file's path or URL, as Spark and people write it."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List every file below ``prefix``, which ends with ``/`` or is empty."""

    def move(self, source: str, target: str) -> None:
        """Give a file its final name, durably; replace an older file of that name."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; names that do not exist are ignored."""


def place_of(url: str) -> Place:
    """Return the place a path or URL names; raise ConfigError if it names none."""
    if not url or not url.strip():
        raise ConfigError("output: no place given; expected a directory or s3://, gs://, az://")
    path = directory_of(url)
    if path is not None:
        return LocalPlace(path)
    try:
        objects = open_objects(url.rstrip("/"), RealFileSystem())
    except ConfigError as error:
        raise ConfigError(f"output={url}: {str(error).removeprefix(f'log.archive.url={url}: ')}") from None
    assert isinstance(objects, RemoteObjects)
    return RemotePlace(url.rstrip("/"), objects)


class LocalPlace:
    """A directory."""

    def __init__(self, path: str) -> None:
        self.url = path
        self._fs = RealFileSystem()
        self._objects = open_objects(path, self._fs)

    def address(self, name: str) -> str:
        return f"{self.url}/{name}"

    def reading(self, name: str) -> str:
        return self.address(name)

    def begin(self, name: str) -> str:
        path = self.address(name)
        self._make_dir(posixpath.dirname(path))
        return path

    def finish(self, name: str, sink: Any) -> int:
        path = self.address(name)
        with self._fs.open(path, "w") as file:
            file.sync()
            size = file.size()
        self._fs.sync_dir(posixpath.dirname(path))
        return size

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._objects.list(prefix)

    def move(self, source: str, target: str) -> None:
        path = self.address(target)
        self._make_dir(posixpath.dirname(path))
        self._fs.rename(self.address(source), path)
        self._fs.sync_dir(posixpath.dirname(path))

    def remove(self, names: Iterable[str]) -> None:
        self._objects.delete(names)

    def _make_dir(self, directory: str) -> None:
        missing = []
        at = directory
        while not self._fs.exists(at):
            missing.append(at)
            at = posixpath.dirname(at)
        self._fs.make_dir(directory)
        for made in missing:
            self._fs.sync_dir(posixpath.dirname(made))


class RemotePlace:
    """A prefix of an object store, by `obstore`; credentials come from the environment, as for the archive.

    A file is made in memory and put in one request: an upload in parts that a crash cuts short would leave
    pieces that no listing shows.
    """

    def __init__(self, url: str, objects: RemoteObjects) -> None:
        self.url = url
        self._objects = objects

    def address(self, name: str) -> str:
        return self._objects.url_of(name)

    def reading(self, name: str) -> pa.NativeFile:
        import pyarrow as pa

        return pa.BufferReader(self._objects.get(name).data)

    def begin(self, name: str) -> pa.NativeFile:
        import pyarrow as pa

        return pa.BufferOutputStream()

    def finish(self, name: str, sink: Any) -> int:
        data = memoryview(sink.getvalue()).cast("B")
        self._objects.put(name, data)
        return len(data)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._objects.list(prefix)

    def move(self, source: str, target: str) -> None:
        self._objects.copy(source, target)  # an object store has no rename
        self._objects.delete([source])

    def remove(self, names: Iterable[str]) -> None:
        self._objects.delete(names)


@contextmanager
def told(path: str) -> Iterator[None]:
    """Raise pyarrow's errors about a disk as this package's own."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        kind = DiskFullError if full else StorageError
        raise kind(f"{path}: {error}") from error
