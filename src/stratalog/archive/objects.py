"""Object stores as the archive uses them: eight requests, in a directory or through `obstore`.

Everything the archive does goes through an `Objects`, one call per request, so that a test can make each
request fail, lose its answer, or end the process.

Promises. A put that returned is durable and visible to every later get and list. A put takes effect wholly or
not at all; one that raised may have taken effect, or may still do so. Of several conditional puts on the same
state exactly one takes effect. ``delete`` of a missing object succeeds.

Errors: FileNotFoundError (with the object's URL) for a missing object, ArchiveError for everything else.
Every method may be called from any thread.

`DirectoryObjects` uses our own filesystem contract, because `obstore` syncs nothing in directories and has no
conditional replace there. `RemoteObjects` needs the extra ``archive`` (obstore), imported when such a store
is opened; credentials, endpoint and region come from the environment variables of each provider.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from stratalog import locks
from stratalog.errors import ArchiveError, ConfigError, StorageError, StoreLockedError
from stratalog.fs import Buffer, FileSystem

if TYPE_CHECKING:
    from obstore.store import ObjectStore


_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")


class Tagged:
    """A whole object, and the tag of this state for `Objects.put_if_match`.

    A tag that must be computed is computed on demand: hashing costs more than reading.
    """

    __slots__ = ("_tag", "data")

    def __init__(self, data: bytes, tag: str | Callable[[bytes], str]) -> None:
        self.data = data
        self._tag = tag

    @property
    def tag(self) -> str:
        return self._tag if isinstance(self._tag, str) else self._tag(self.data)


class ObjectInfo(NamedTuple):
    """One row of a listing."""

    key: str
    size: int
    modified_ms: int


class Objects(Protocol):
    """An object store below one prefix. Keys are relative, with ``/`` between their parts."""

    url: str

    def url_of(self, key: str) -> str:
        """Return the object's address, for people."""

    def get(self, key: str) -> Tagged:
        """Return the whole object."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return ``length`` bytes from ``start`` on; ArchiveError when the object has fewer."""

    def put(self, key: str, data: Buffer) -> None:
        """Create or replace the object."""

    def put_if_absent(self, key: str, data: Buffer) -> str | None:
        """Create the object and return its tag; None when it exists."""

    def put_if_match(self, key: str, data: Buffer, tag: str) -> str | None:
        """Replace exactly the state ``tag`` names and return the new tag; None when it is another state."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object whose key begins with ``prefix``, which ends with ``/`` or is empty."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects."""

    def head(self, key: str) -> ObjectInfo | None:
        """Return the listing's row of one object; None when it does not exist."""


def open_objects(url: str, fs: FileSystem, *, timeout_ms: int = 60_000, retries: int = 5) -> Objects:
    """Open the object store at ``url``: a path or ``file://`` is a directory, the rest is obstore's."""
    if not url:
        raise ConfigError("log.archive.url: an archive needs a URL or a directory")
    path = directory_of(url)
    if path is not None:
        return DirectoryObjects(fs, path)
    return open_remote(url, timeout_ms=timeout_ms, retries=retries)


def absolute_url(url: str) -> str:
    """Return the same place as seen from any working directory; the empty URL stays empty."""
    return url if not url or _SCHEME.match(url) else os.path.abspath(url)


def directory_of(url: str) -> str | None:
    """Return the directory that an archive's URL names; None when it is not local."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        return os.path.abspath(url)
    if scheme.group(1).lower() != "file":
        return None
    path = url[len(scheme.group(0)) :]
    if not path.startswith("/"):
        raise ConfigError(f"log.archive.url={url}: a file URL has an absolute path, as in file:///archive")
    return path.rstrip("/") or "/"


LOCK = ".lock"
LOCK_TIMEOUT_S = 30.0
_PAUSE_S = 0.005
OBJECT_LIMIT_BYTES = 4 << 30


class DirectoryObjects:
    """Objects as files below ``root``.

    An object is written to `<key>.tmp`, synced, renamed, and its name and the directories above are synced.
    Conditional puts hold the lock of `<root>/.lock` while they compare and replace; it excludes other
    processes. A crash leaves the old object or the new one, and perhaps a `.tmp`, which is swept like any
    orphan.
    """

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
        return Tagged(data, _sha256)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._errors(key), self._fs.open(self._path(key)) as file:
            data = file.pread(length, start)
        return _whole(data, start, length, self.url_of(key))

    def put(self, key: str, data: Buffer) -> None:
        with self._errors(key):
            self._write(key, data)

    def put_if_absent(self, key: str, data: Buffer) -> str | None:
        with self._errors(key), self._locked():
            if self._fs.exists(self._path(key)):
                return None
            self._write(key, data)
        return _sha256(data)

    def put_if_match(self, key: str, data: Buffer, tag: str) -> str | None:
        with self._errors(key), self._locked():
            try:
                found = _sha256(self._fs.read_file(self._path(key), OBJECT_LIMIT_BYTES))
            except FileNotFoundError:
                return None
            if found != tag:
                return None
            self._write(key, data)
        return _sha256(data)

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
                # Another process removed the directory because it was empty: create it again.
                with self._mutex:
                    self._known_dirs.clear()

    def _make_dir(self, path: str) -> None:
        """Create a directory with its parents, and sync all their names."""
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
            # Another process made it, perhaps just now, and may not have synced it.
            self._fs.sync_dir(posixpath.dirname(path) or "/")
        with self._mutex:
            self._known_dirs.add(path)

    def _tidy(self, directory: str) -> None:
        """Sync a directory that lost a file; remove it when empty, and so on up."""
        while True:
            try:
                empty = directory != self._root and not self._fs.list_dir(directory)
                if not empty:
                    self._fs.sync_dir(directory)
                    return
                self._fs.remove_dir(directory)
            except (FileNotFoundError, StorageError):
                # Another process is using it, or removed it too.
                return
            with self._mutex:
                self._known_dirs.discard(directory)
            directory = posixpath.dirname(directory)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude every other conditional put, of this process and of others."""
        self._make_dir(self._root)
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                lock = self._fs.lock(f"{self._root}/{LOCK}", {"pid": os.getpid()})
                break
            except StoreLockedError as error:
                if time.monotonic() > deadline:
                    raise ArchiveError(
                        f"its lock was held for more than {LOCK_TIMEOUT_S:g} s: {error}", url=self.url
                    ) from error
                time.sleep(_PAUSE_S)
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """Turn errors of the filesystem into those of `Objects`."""
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(f"no object at {self.url_of(key)}") from None
        except (StorageError, OSError) as error:
            raise ArchiveError(str(error), url=self.url_of(key)) from error


def _whole(data: bytes, start: int, length: int, url: str) -> bytes:
    """Return the bytes of a range; ArchiveError if there are fewer than requested."""
    if len(data) != length:
        raise ArchiveError(f"ends at byte {start + len(data)}, expected {start + length}", url=url)
    return data


def _sha256(data: Buffer) -> str:
    return hashlib.sha256(data).hexdigest()


_DELETE_AT_ONCE = 500


def open_remote(url: str, *, timeout_ms: int, retries: int) -> Objects:
    """Open the store at ``url``; ConfigError when obstore is missing or does not know the URL."""
    try:
        from obstore.exceptions import BaseError
        from obstore.store import AzureStore, GCSStore, S3Store, from_url
    except ImportError as error:
        raise ConfigError(
            f"an archive at {url} needs the package obstore: pip install 'stratalog[archive]'"
        ) from error
    timeout = timedelta(milliseconds=timeout_ms)
    try:
        store = from_url(
            url,
            client_options={
                "timeout": timeout,
                "connect_timeout": min(timeout, timedelta(seconds=10)),
                "allow_http": _plain_http_asked_for(),
            },
            retry_config={"max_retries": retries, "retry_timeout": timeout * (retries + 1)},
        )
    except (BaseError, ValueError, TypeError, NotImplementedError) as error:
        raise ConfigError(f"log.archive.url={url}: {_first_line(error)}") from error
    if not isinstance(store, S3Store | GCSStore | AzureStore):
        raise ConfigError(f"log.archive.url={url}: an archive lies in a directory, in s3://, gs:// or az://")
    return RemoteObjects(store, url.rstrip("/"))


def _plain_http_asked_for() -> bool:
    """Return whether the environment names an endpoint without TLS."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")
    return any(os.environ.get(name, "").startswith("http://") for name in names)


class RemoteObjects:
    """The objects below the prefix that ``store`` was opened with.

    Every put is one request: an interrupted upload in parts would leave pieces that no listing shows.
    """

    def __init__(self, store: ObjectStore, url: str) -> None:
        import obstore

        self._api = obstore
        self._store = store
        self.url = url

    def __repr__(self) -> str:
        return f"<RemoteObjects {self.url}>"

    def url_of(self, key: str) -> str:
        return f"{self.url}/{key}" if key else self.url

    def get(self, key: str) -> Tagged:
        with self._errors(key):
            found = self._api.get(self._store, key)
            meta = found.meta
            return Tagged(bytes(found.bytes()), _tag(meta))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._errors(key):
            data = bytes(self._api.get_range(self._store, key, start=start, length=length))
        return _whole(data, start, length, self.url_of(key))

    def put(self, key: str, data: Buffer) -> None:
        with self._errors(key):
            self._api.put(self._store, key, data, use_multipart=False)

    def put_if_absent(self, key: str, data: Buffer) -> str | None:
        return self._put_if(key, data, "create")

    def put_if_match(self, key: str, data: Buffer, tag: str) -> str | None:
        return self._put_if(key, data, json.loads(tag))

    def _put_if(self, key: str, data: Buffer, mode: Any) -> str | None:
        failed = self._api.exceptions
        with self._errors(key):
            try:
                return _tag(self._api.put(self._store, key, data, mode=mode, use_multipart=False))
            except (failed.AlreadyExistsError, failed.PreconditionError, FileNotFoundError):
                return None

    def copy(self, source: str, target: str) -> None:
        """Copy an object on the store's side; FileNotFoundError when there is none."""
        with self._errors(source):
            self._api.copy(self._store, source, target)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._errors(prefix):
            for rows in self._api.list(self._store, prefix.rstrip("/") or None):
                for row in rows:
                    modified_ms = int(row["last_modified"].timestamp() * 1000)
                    yield ObjectInfo(row["path"], row["size"], modified_ms)

    def delete(self, keys: Iterable[str]) -> None:
        doomed = list(keys)
        for at in range(0, len(doomed), _DELETE_AT_ONCE):
            some = doomed[at : at + _DELETE_AT_ONCE]
            with self._errors(some[0]):
                try:
                    self._api.delete(self._store, some)
                except FileNotFoundError:
                    self._delete_each(some)

    def _delete_each(self, keys: Sequence[str]) -> None:
        """Delete one by one: some stores stop at the first missing object."""
        for key in keys:
            try:
                self._api.delete(self._store, key)
            except FileNotFoundError:
                continue

    def head(self, key: str) -> ObjectInfo | None:
        with self._errors(key):
            try:
                row = self._api.head(self._store, key)
            except FileNotFoundError:
                return None
        return ObjectInfo(key, row["size"], int(row["last_modified"].timestamp() * 1000))

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(f"no object at {self.url_of(key)}") from None
        except (self._api.exceptions.BaseError, OSError, NotImplementedError, ValueError) as error:
            raise ArchiveError(_first_line(error), url=self.url_of(key)) from error


def _tag(meta: Any) -> str:
    """Return the tag of a state; stores differ in which of the two values they compare."""
    known = {name: meta.get(name) for name in ("e_tag", "version")}
    return json.dumps({name: value for name, value in known.items() if value is not None})


def _first_line(error: BaseException) -> str:
    """Drop the response dump that obstore puts behind the first line of a message."""
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
