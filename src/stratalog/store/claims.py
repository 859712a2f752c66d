"""Who is rewriting which partition: one at a time, and long work gives way when somebody else wants in.

Compaction, erasing and archiving work on a partition for minutes without holding any lock of it; moving,
repairing and deleting it must not happen meanwhile. Nothing here survives the process, and nothing needs
to: what was being written when it died is told by its file names.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from stratalog.errors import ClosedError

Key = tuple[str, int]


class Claims:
    """Partitions that are spoken for. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: dict[Key, int] = {}  # by thread
        self._wanted: Counter[Key] = Counter()
        self._closed = False

    @contextmanager
    def attempt(self, key: Key) -> Iterator[bool]:
        """Claim a partition if nobody has it, for the length of the block; False when somebody does."""
        with self._changed:
            got = key not in self._held and not self._wanted[key] and not self._closed
            if got:
                self._held[key] = threading.get_ident()
        try:
            yield got
        finally:
            if got:
                self._release(key)

    @contextmanager
    def claim(self, key: Key) -> Iterator[None]:
        """Claim a partition, waiting for whoever has it; they see that it is wanted."""
        with self._changed:
            self._wanted[key] += 1
            try:
                self._changed.wait_for(lambda: key not in self._held or self._closed)
                if self._closed:
                    raise ClosedError("the store is closed")
                self._held[key] = threading.get_ident()
            finally:
                self._wanted[key] -= 1
        try:
            yield
        finally:
            self._release(key)

    def wanted(self, key: Key) -> bool:
        """Whether somebody waits for this partition: long work stops at its next safe point."""
        return self._wanted[key] > 0

    def close(self) -> None:
        """Give nothing out any more, and wait until everybody else has given back what they hold."""
        ours = threading.get_ident()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: all(thread == ours for thread in self._held.values()))

    def held(self) -> list[Key]:
        with self._changed:
            return sorted(self._held)

    def _release(self, key: Key) -> None:
        with self._changed:
            self._held.pop(key, None)
            self._changed.notify_all()
