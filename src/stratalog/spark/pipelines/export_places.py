"""Where an export of Parquet files goes: a directory, or a prefix of an object store.

A task writes its files below ``_stratalog/staging``, under names that no reader of the output looks at; the
commit gives them their final names. In a directory that is a rename: a file is there whole or not at all,
and only once it is committed. An object store has no rename: the store copies the object on its own side
and the staged one goes, with the same effect for each file. In neither are several files one step for
whoever lists them meanwhile: a reader may see some files of the newest commit and not yet the others, and
while small files are merged or dates replaced, for a moment both the old and the new. The commit log says
what counts; see `stratalog.spark.pipelines.export.committed_files`.

Crash policy: a data file that is named in a commit was synced before the commit was made.
"""

from __future__ import annotations

import errno
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from stratalog.archive import Objects, open_objects
from stratalog.archive.objects import directory_of
from stratalog.archive.remote import RemoteObjects
from stratalog.errors import ConfigError, DiskFullError, StorageError
from stratalog.fs import RealFileSystem

if TYPE_CHECKING:
    import pyarrow as pa

LOG = "_stratalog"
STAGING = "staging"
COPIES_AT_ONCE = 16
_RUN = re.compile(r"([0-9]{8,})-[0-9a-f]+\Z")


class Place(Protocol):
    """An output. Names are relative to it, with ``/`` between their parts."""

    url: str
    objects: Objects
    """What lies below ``_stratalog``, the commit log among it."""

    def begin(self, name: str) -> Any:
        """What `pyarrow` writes a new file to: a path or a stream."""

    def finish(self, name: str, sink: Any) -> int:
        """Make a file that was written durable; its size in bytes."""

    def reading(self, name: str) -> Any:
        """What `pyarrow` reads the file from."""

    def address(self, name: str) -> str:
        """The file's path or URL, as Spark and people write it."""

    def exists(self, name: str) -> bool:
        """Whether the file is there."""

    def publish(self, moves: Sequence[tuple[str, str]]) -> list[str]:
        """Give files their final names, durably; those done before are fine. The names neither staged nor
        there are returned."""

    def remove(self, names: Iterable[str]) -> None:
        """Files that are not there are fine."""

    def sweep(self, version: int) -> None:
        """Remove what runs that meant to make a commit up to ``version`` have left in staging."""


def place_of(output: str) -> Place:
    """The place a path or URL names; ConfigError when it cannot be one."""
    if not output or not output.strip():
        raise ConfigError("output: nothing says where to export to; give a directory or s3://, gs://, az://")
    path = directory_of(output)
    if path is not None:
        return LocalPlace(path)
    try:
        objects = open_objects(output.rstrip("/"), RealFileSystem())
    except ConfigError as error:
        raise ConfigError(
            f"output={output}: {str(error).removeprefix(f'log.archive.url={output}: ')}"
        ) from None
    return RemotePlace(output.rstrip("/"), _Copying.of(objects))


def staging(version: int, run: str) -> str:
    """Where the run that means to make this commit writes."""
    return f"{LOG}/{STAGING}/{version:08d}-{run}"


class LocalPlace:
    """A directory, which driver and executors both see."""

    def __init__(self, path: str) -> None:
        self.url = path
        self._fs = RealFileSystem()
        self.objects = open_objects(f"{path}/{LOG}", self._fs)

    def address(self, name: str) -> str:
        return f"{self.url}/{name}"

    def reading(self, name: str) -> str:
        return self.address(name)

    def exists(self, name: str) -> bool:
        return self._fs.exists(self.address(name))

    def begin(self, name: str) -> str:
        path = self.address(name)
        self._fs.make_dir(posixpath.dirname(path))
        return path

    def finish(self, name: str, sink: Any) -> int:
        with self._fs.open(self.address(name), "w") as file:
            file.sync()
            return file.size()

    def publish(self, moves: Sequence[tuple[str, str]]) -> list[str]:
        lost, touched = [], set()
        for staged, name in moves:
            directory = posixpath.dirname(self.address(name))
            if directory not in touched:
                self._make_dir(directory)
                touched.add(directory)
            try:
                self._fs.rename(self.address(staged), self.address(name))
            except FileNotFoundError:
                if not self._fs.exists(self.address(name)):
                    lost.append(name)
        for directory in touched:
            self._fs.sync_dir(directory)
        return lost

    def _make_dir(self, directory: str) -> None:
        missing = []
        at = directory
        while not self._fs.exists(at):
            missing.append(at)
            at = posixpath.dirname(at)
        self._fs.make_dir(directory)
        for made in missing:
            self._fs.sync_dir(posixpath.dirname(made))

    def remove(self, names: Iterable[str]) -> None:
        touched = set()
        for name in names:
            try:
                self._fs.remove(self.address(name))
            except FileNotFoundError:
                continue
            touched.add(posixpath.dirname(self.address(name)))
        for directory in touched:
            if self._fs.list_dir(directory):
                self._fs.sync_dir(directory)
            else:
                self._fs.remove_dir(directory)

    def sweep(self, version: int) -> None:
        root = self.address(f"{LOG}/{STAGING}")
        try:
            names = self._fs.list_dir(root)
        except FileNotFoundError:
            return
        for name in names:
            if _is_over(name, version):
                # A run that lost may still be writing there: the next one sweeps the rest.
                with suppress(StorageError, OSError):
                    self._fs.remove_tree(f"{root}/{name}")


class RemotePlace:
    """A prefix of an object store, by `obstore`; credentials from the environment, as for the archive.

    A file is made in memory and put in one request.
    """

    def __init__(self, url: str, objects: _Copying) -> None:
        self.url = url
        self.objects = open_objects(f"{url}/{LOG}", RealFileSystem())
        self._data = objects

    def address(self, name: str) -> str:
        return self._data.url_of(name)

    def reading(self, name: str) -> pa.NativeFile:
        import pyarrow as pa

        return pa.BufferReader(self._data.get(name).data)

    def exists(self, name: str) -> bool:
        return self._data.head(name) is not None

    def begin(self, name: str) -> pa.NativeFile:
        import pyarrow as pa

        return pa.BufferOutputStream()

    def finish(self, name: str, sink: Any) -> int:
        # One request: an upload in parts that a crash cuts short would leave pieces that no listing shows.
        data = memoryview(sink.getvalue()).cast("B")
        self._data.put(name, data)
        return len(data)

    def publish(self, moves: Sequence[tuple[str, str]]) -> list[str]:
        with ThreadPoolExecutor(COPIES_AT_ONCE, thread_name_prefix="stratalog-publish") as pool:
            there = list(pool.map(lambda move: self._publish(*move), moves))
        self._data.delete(staged for staged, _ in moves)
        return [name for (_, name), found in zip(moves, there, strict=True) if not found]

    def _publish(self, staged: str, name: str) -> bool:
        try:
            self._data.copy(staged, name)
        except FileNotFoundError:
            return self.exists(name)
        return True

    def remove(self, names: Iterable[str]) -> None:
        self._data.delete(names)

    def sweep(self, version: int) -> None:
        keys = [info.key for info in self.objects.list(f"{STAGING}/")]
        self.objects.delete(key for key in keys if _is_over(key.split("/")[1], version))


class _Copying(RemoteObjects):
    """An object store that is also asked to copy."""

    @classmethod
    def of(cls, objects: Objects) -> _Copying:
        if not isinstance(objects, RemoteObjects):
            raise ConfigError(f"{objects.url}: no object store")
        return cls(objects._store, objects.url)

    def copy(self, source: str, target: str) -> None:
        """Copy an object on the store's side; FileNotFoundError when there is none."""
        with self._errors(source):
            self._api.copy(self._store, source, target)


@contextmanager
def told(path: str) -> Iterator[None]:
    """What pyarrow says of a disk, as our own errors."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        kind = DiskFullError if full else StorageError
        raise kind(f"{path}: {error}") from error


def _is_over(name: str, version: int) -> bool:
    found = _RUN.match(name)
    return found is not None and int(found[1]) <= version
