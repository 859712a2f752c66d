"""A filesystem where the k-th call is cut short by an exception: before it, in its middle, or after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from stratalog.fs import FileSystem
from stratalog.fs.contract import ComposedOperations, File, FileStat, Mode

When = Literal["before", "half", "after"]


class CuttingFileSystem(ComposedOperations):
    """``inner``, whose calls are counted while ``armed``; call number ``at`` raises ``error``."""

    def __init__(self, inner: FileSystem) -> None:
        self.inner = inner
        self.armed = False
        self.calls = 0
        self.names: list[str] = []
        self.at = -1
        self.when: When = "before"
        self.error: Callable[[], BaseException] = KeyboardInterrupt

    def arm(self, at: int, when: When, error: Callable[[], BaseException] = KeyboardInterrupt) -> None:
        """Interrupt the call number ``at`` from here on; -1 only counts."""
        self.armed, self.calls, self.names = True, 0, []
        self.at, self.when, self.error = at, when, error

    def disarm(self) -> int:
        """Stop counting; return how many calls there were."""
        self.armed = False
        return self.calls

    def run(self, name: str, path: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make one call, or cut it short."""
        if not self.armed:
            return call(*args, **kwargs)
        number, self.calls = self.calls, self.calls + 1
        self.names.append(f"{name} {path}")
        if number != self.at:
            return call(*args, **kwargs)
        if self.when == "after":
            call(*args, **kwargs)
        elif self.when == "half" and name == "pwrite":
            call(memoryview(args[0])[: len(args[0]) // 2], *args[1:])
        raise self.error()

    def open(self, path: str, mode: Mode = "r") -> Any:
        return _CuttingFile(self, self.run("open", path, self.inner.open, path, mode))

    def stat(self, path: str) -> FileStat:
        return self.inner.stat(path)

    def rename(self, src: str, dst: str) -> None:
        self.run("rename", src, self.inner.rename, src, dst)

    def remove(self, path: str) -> None:
        self.run("remove", path, self.inner.remove, path)

    def sync_dir(self, path: str) -> None:
        self.run("sync_dir", path, self.inner.sync_dir, path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _CuttingFile:
    def __init__(self, fs: CuttingFileSystem, file: File) -> None:
        self._fs = fs
        self._file = file

    def __enter__(self) -> _CuttingFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._file, name)
        if name not in ("pread", "pread_into", "pwrite", "truncate", "sync", "size"):
            return found
        path = self._file.path
        return lambda *args, **kwargs: self._fs.run(name, path, found, *args, **kwargs)
