"""The thin layer between the archive and an object store: eight requests, and what each promises.

Everything the archive does goes through an `Objects`, one call a request, so that a test can make each of
them fail, lose its answer, or end the process. There are two: a directory (`archive.directory`, on our own
filesystem contract) and everything that `obstore` reaches (`archive.remote`).

Promises. A put that returned is durable and seen by every later get and list, whoever asks. A put takes
effect wholly or not at all; when it raised, it may have taken effect or not, or may yet. Of several
conditional puts on the same state exactly one takes effect. ``delete`` of what is not there is fine.

Errors: FileNotFoundError (with the object's URL) when there is no such object, ArchiveError for everything
else the store refuses. Every method may be called from any thread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from stratalog.errors import ConfigError
from stratalog.fs import Buffer, FileSystem

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")


class Tagged:
    """A whole object, and what names this very state of it in `Objects.put_if_match`.

    A tag that has to be computed is computed when somebody asks: hashing costs more than reading.
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
        """The object's address, for people."""

    def get(self, key: str) -> Tagged:
        """The whole object."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """``length`` bytes from ``start`` on; ArchiveError when the object has fewer."""

    def put(self, key: str, data: Buffer) -> None:
        """Make ``data`` the object, whatever was there."""

    def put_if_absent(self, key: str, data: Buffer) -> str | None:
        """Create the object; its tag, or None when there is one already."""

    def put_if_match(self, key: str, data: Buffer, tag: str) -> str | None:
        """Replace exactly the state ``tag`` names; the new tag, or None when that is no longer the state."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key begins with ``prefix``, which ends with ``/`` or is empty."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects."""

    def head(self, key: str) -> ObjectInfo | None:
        """What a listing would say of one object; None when there is none."""


def open_objects(url: str, fs: FileSystem, *, timeout_ms: int = 60_000, retries: int = 5) -> Objects:
    """The object store at ``url``: a plain path or ``file://`` is a directory, the rest is obstore's."""
    from stratalog.archive.directory import DirectoryObjects

    if not url:
        raise ConfigError("log.archive.url: an archive needs a URL or a directory")
    path = directory_of(url)
    if path is not None:
        return DirectoryObjects(fs, path)
    from stratalog.archive.remote import open_remote

    return open_remote(url, timeout_ms=timeout_ms, retries=retries)


def absolute_url(url: str) -> str:
    """Return the same place as seen from any working directory; the empty URL stays empty."""
    return url if not url or _SCHEME.match(url) else os.path.abspath(url)


def directory_of(url: str) -> str | None:
    """The directory that an archive's URL names; None when it is no local one."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        return os.path.abspath(url)
    if scheme.group(1).lower() != "file":
        return None
    path = url[len(scheme.group(0)) :]
    if not path.startswith("/"):
        raise ConfigError(f"log.archive.url={url}: a file URL has an absolute path, as in file:///archive")
    return path.rstrip("/") or "/"
