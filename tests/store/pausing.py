"""A filesystem whose calls can be held up: one thread stops at a chosen call until the test lets it go on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from stratalog.fs import FileSystem
from stratalog.fs.contract import ComposedOperations, File, FileStat, Mode

PATIENCE_S = 10.0
BLOCKED_S = 0.1


class Pause:
    """One call that is held up. Let it go with `resume`, or use it in a ``with`` block."""

    def __init__(self, operation: str, path: str) -> None:
        self.operation = operation
        self.path = path
        self.taken = False
        self._reached = threading.Event()
        self._go = threading.Event()

    def stop_here(self) -> None:
        self._reached.set()
        assert self._go.wait(PATIENCE_S), f"{self.operation} {self.path} was never resumed"

    def wait_until_reached(self) -> None:
        assert self._reached.wait(PATIENCE_S), f"nothing came to {self.operation} {self.path}"

    def resume(self) -> None:
        self._go.set()

    def __enter__(self) -> Pause:
        return self

    def __exit__(self, *_: object) -> None:
        self.resume()


class _PausingFile:
    def __init__(self, fs: PausingFileSystem, file: File) -> None:
        self._fs = fs
        self._file = file

    def __enter__(self) -> _PausingFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._file, name)
        return self._fs.pausing(name, self._file.path, found) if callable(found) else found


class PausingFileSystem(ComposedOperations):
    """``inner``, where chosen calls wait. Operations are the names of the contract's methods."""

    def __init__(self, inner: FileSystem) -> None:
        self.inner = inner
        self._pauses: list[Pause] = []
        self._lock = threading.Lock()

    def pause_at(self, operation: str, path: str) -> Pause:
        """Hold up the next call of ``operation`` on a path that matches ``path``."""
        pause = Pause(operation, path)
        with self._lock:
            self._pauses.append(pause)
        return pause

    def pausing(self, operation: str, path: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def paused(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                found = next(
                    (
                        each
                        for each in self._pauses
                        if not each.taken and each.operation == operation and fnmatchcase(path, each.path)
                    ),
                    None,
                )
                if found is not None:
                    found.taken = True
            if found is not None:
                found.stop_here()
            return call(*args, **kwargs)

        return paused

    def open(self, path: str, mode: Mode = "r") -> Any:
        return _PausingFile(self, self.pausing("open", path, self.inner.open)(path, mode))

    def stat(self, path: str) -> FileStat:
        return self.inner.stat(path)

    def rename(self, src: str, dst: str) -> None:
        self.pausing("rename", dst, self.inner.rename)(src, dst)

    def remove(self, path: str) -> None:
        self.pausing("remove", path, self.inner.remove)(path)

    def sync_dir(self, path: str) -> None:
        self.pausing("sync_dir", path, self.inner.sync_dir)(path)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return found
        return lambda path, *args, **kwargs: self.pausing(name, path, found)(path, *args, **kwargs)


class Running:
    """A call in a thread of its own; `result` returns what it returned or raises what it raised."""

    def __init__(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self._outcome: Any = None
        self._error: BaseException | None = None

        def run() -> None:
            try:
                self._outcome = call(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - `result` raises it
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def ends_or_blocks(self) -> bool:
        """True when it has ended; a call that waits for a lock is given up on quickly."""
        self._thread.join(BLOCKED_S)
        return not self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "it never ended"
        if self._error is not None:
            raise self._error
        return self._outcome
