"""Claims on partitions: one rewrite at a time, and long work stops when another thread wants the partition.

Compaction, erasing and archiving work on a partition for minutes without holding any lock of it; moving,
repairing and deleting it must not happen meanwhile. Nothing here survives the process, and nothing needs
to: file names show what was being written when it died.

A partition may also be lent to another process that prepares files in a directory of its own: that stops
`attempt` like a claim does, while `claim` just ends it. A loan that is not extended in time is over, because
the borrower may be dead.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from stratalog import locks
from stratalog.errors import ClosedError

Key = tuple[str, int]


class Claims:
    """The partitions that are claimed or lent. Thread-safe."""

    def __init__(self) -> None:
        self._lent: dict[Key, tuple[str, float]] = {}
        """The token of the borrower, and when the loan ends."""
        self._changed = locks.condition("claims")
        self._held: dict[Key, int] = {}  # by thread
        self._wanted: Counter[Key] = Counter()
        self._closed = False

    @contextmanager
    def attempt(self, key: Key) -> Iterator[bool]:
        """Claim a partition for the length of the block if it is free; yield whether it was."""
        got = False
        try:
            with self._changed.lock:
                if self._free(key):
                    self._held[key] = threading.get_ident()
                    got = True
            yield got
        finally:
            if got:
                del self._held[key]  # in one step: no interrupt can come before it
                self._tell()

    @contextmanager
    def claim(self, key: Key) -> Iterator[None]:
        """Claim a partition for the block; wait for its holder, which sees that it is wanted."""
        got = False
        try:
            with self._changed.lock:
                self._wanted[key] += 1
                try:
                    self._lent.pop(key, None)
                    while key in self._held and not self._closed:
                        self._changed.wait(locks.RECHECK_S)
                    if self._closed:
                        raise ClosedError("the store is closed")
                    self._held[key] = threading.get_ident()
                    got = True
                finally:
                    self._wanted[key] -= 1
                    if not self._wanted[key]:
                        del self._wanted[key]
            yield
        finally:
            if got:
                del self._held[key]  # in one step: no interrupt can come before it
                self._tell()

    # -- loans -------------------------------------------------------------------------------------------

    def lend(self, key: Key, token: str, seconds: float) -> bool:
        """Lend a partition if it is free; ``token`` identifies the borrower."""
        with self._changed.lock:
            if not self._free(key):
                return False
            self._lent[key] = token, time.monotonic() + seconds
            return True

    def extend(self, key: Key, token: str, seconds: float) -> bool:
        """Lend it for longer; False when it is no longer this borrower's."""
        with self._changed.lock:
            if not self._is_lent(key, token):
                return False
            self._lent[key] = token, time.monotonic() + seconds
            return True

    @contextmanager
    def redeem(self, key: Key, token: str) -> Iterator[bool]:
        """Turn a loan into a claim, for the length of the block; False when it is over."""
        with self._changed.lock:
            got = self._is_lent(key, token) and not self._closed
            if got:
                del self._lent[key]
                self._held[key] = threading.get_ident()
        try:
            yield got
        finally:
            if got:
                del self._held[key]  # in one step: no interrupt can come before it
                self._tell()

    def give_back(self, key: Key, token: str) -> None:
        """End a loan: the borrower is done with it."""
        with self._changed.lock:
            if self._is_lent(key, token):
                del self._lent[key]

    def is_lent(self, key: Key, token: str) -> bool:
        """Return True if the loan still stands."""
        with self._changed.lock:
            return self._is_lent(key, token)

    def _is_lent(self, key: Key, token: str) -> bool:
        borrower, until_s = self._lent.get(key, ("", 0.0))
        return borrower == token and until_s > time.monotonic()

    def _free(self, key: Key) -> bool:
        if self._lent.get(key, ("", 0.0))[1] > time.monotonic():
            return False
        self._lent.pop(key, None)
        return key not in self._held and not self._wanted[key] and not self._closed

    def wanted(self, key: Key) -> bool:
        """Return True if a thread waits for this partition: long work stops at its next safe point."""
        return self._wanted[key] > 0

    def close(self) -> None:
        """Refuse new claims and wait until all other threads have released theirs."""
        ours = threading.get_ident()
        with self._changed.lock:
            self._closed = True
            self._lent.clear()
            self._changed.notify_all()
            while any(thread != ours for thread in self._held.copy().values()):
                self._changed.wait(locks.RECHECK_S)

    def held(self) -> list[Key]:
        with self._changed.lock:
            return sorted(self._held.copy())

    def _tell(self) -> None:
        with self._changed.lock:
            self._changed.notify_all()
