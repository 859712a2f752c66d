"""Changes to the structure of a store: one at a time for each topic, side by side for different ones.

Creating, deleting, altering, moving and repairing may take as long as a disk or an object store takes. They
exclude each other topic by topic, and nothing else waits for them: reads, appends, the flush and changes to
other topics go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stratalog import locks
from stratalog.errors import ClosedError


class Changes:
    """Which topics are being changed, and by which thread. Thread-safe.

    A change may do I/O of any kind and take any lock that comes after: the condition's own lock is held only
    for a look at memory. ``settle`` is called with the topic's name before a change begins: it ends one that
    was cut short.
    """

    def __init__(self, settle: Callable[[str], None] = lambda name: None) -> None:
        self._settle = settle
        self._changed = locks.condition("changes")
        self._held: dict[str, tuple[int, int]] = {}  # by name: the thread, and how often it entered
        self._closed = False

    @contextmanager
    def of(self, name: str, *, wait: bool = True) -> Iterator[bool]:
        """Exclude other changes to a topic, and to those that Kafka would confuse it with.

        Without ``wait`` the block runs all the same when there is one, and gets False.
        """
        key, thread = name.replace(".", "_"), threading.get_ident()
        entered = False
        try:
            with self._changed.lock:
                while not self._free(key, thread) and wait:
                    self._changed.wait(locks.RECHECK_S)
                if self._free(key, thread):
                    held = self._held.get(key)
                    depth = held[1] if held is not None and held[0] == thread else 0
                    if self._closed and not depth:
                        raise ClosedError("the store is closed")
                    self._held[key] = (thread, depth + 1)
                    entered = True
            if entered and not depth:
                self._settle(name)
            yield entered
        finally:
            if entered:
                if depth:
                    self._held[key] = (thread, depth)
                else:
                    del self._held[key]  # in one step: no interrupt can come before it
                    with self._changed.lock:
                        self._changed.notify_all()

    def _free(self, key: str, thread: int) -> bool:
        held = self._held.get(key)  # others take themselves off without the lock
        return held is None or held[0] == thread or self._closed

    def close(self) -> None:
        """Let no change begin any more, and wait for those that are under way."""
        with self._changed.lock:
            self._closed = True
            self._changed.notify_all()
            ours = threading.get_ident()
            while any(thread != ours for thread, _ in self._held.copy().values()):
                self._changed.wait(locks.RECHECK_S)
