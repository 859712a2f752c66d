"""An object store that fails, loses answers, or takes the process with it, at any request one likes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, TypeVar

from stratalog.archive import ObjectInfo, Objects, Tagged
from stratalog.errors import ArchiveError
from stratalog.fs import Buffer

When = Literal["before", "after"]
"""Whether the request took effect before the process died, or the answer got lost."""
R = TypeVar("R")


class Killed(BaseException):
    """The process is gone: nothing catches this."""


class FaultyObjects:
    """Passes requests on and counts them. From a kill on every request is one too many."""

    def __init__(self, inner: Objects) -> None:
        self.inner = inner
        self.url = inner.url
        self.requests: list[str] = []
        self.kill_at = -1
        self.kill_when: When = "before"
        self.fail: Callable[[int, str], When | None] = lambda number, request: None
        """Asked for each request: None lets it through."""
        self.before: Callable[[str], None] = lambda request: None
        self._dead = False
        self._mutex = threading.Lock()

    def _do(self, name: str, key: str, act: Callable[[], R]) -> R:
        request = f"{name} {key}"
        with self._mutex:
            number = len(self.requests)
            self.requests.append(request)
            if self._dead or (number == self.kill_at and self.kill_when == "before"):
                self._dead = True
                raise Killed
        self.before(request)
        fault = self.fail(number, request)
        if fault == "before":
            raise ArchiveError("did not go through", url=self.url_of(key))
        try:
            result = act()
        finally:
            if number == self.kill_at:
                self._dead = True
                raise Killed
        if fault == "after":
            raise ArchiveError("its answer got lost", url=self.url_of(key))
        return result

    def url_of(self, key: str) -> str:
        return self.inner.url_of(key)

    def get(self, key: str) -> Tagged:
        return self._do("get", key, lambda: self.inner.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._do("get_range", key, lambda: self.inner.get_range(key, start, length))

    def put(self, key: str, data: Buffer) -> None:
        self._do("put", key, lambda: self.inner.put(key, data))

    def put_if_absent(self, key: str, data: Buffer) -> str | None:
        return self._do("put_if_absent", key, lambda: self.inner.put_if_absent(key, data))

    def put_if_match(self, key: str, data: Buffer, tag: str) -> str | None:
        return self._do("put_if_match", key, lambda: self.inner.put_if_match(key, data, tag))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(self._do("list", prefix, lambda: [*self.inner.list(prefix)]))

    def delete(self, keys: Iterable[str]) -> None:
        # One request an object: a kill in the middle of many leaves some of them.
        for key in keys:
            self._do("delete", key, lambda key=key: self.inner.delete([key]))  # type: ignore[misc]

    def head(self, key: str) -> ObjectInfo | None:
        return self._do("head", key, lambda: self.inner.head(key))
