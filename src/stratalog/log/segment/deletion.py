"""Removing segments: renamed to `.deleted` at once, removed after `file.delete.delay.ms`.

A crash in between leaves `.deleted` files, which the next start removes. Readers that opened a file before it
was removed keep reading it. The delay is measured by the monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from stratalog import locks
from stratalog.errors import StorageError
from stratalog.log.names import DELETED, SEGMENT_KINDS, SNAPSHOT, parse_file

if TYPE_CHECKING:
    from stratalog.log.context import LogContext
    from stratalog.log.segment.segment import Segment


class Deletions:
    """Files waiting to be removed; one list for all partitions of a store. Thread-safe.

    The condition's lock protects the list and is held for memory work only. A name is busy while it is being
    renamed or removed: an earlier file of that name may be being removed.
    """

    def __init__(self) -> None:
        self._changed = locks.condition("deletions")
        self._due: dict[str, float] = {}
        self._busy: dict[str, bool] = {}

    def add(self, context: LogContext, directory: str, segments: Sequence[Segment], delay_s: float) -> None:
        """Rename the files of segments that are no longer listed, and remember to remove them.

        The log goes first, because readers look for it and would not notice a missing sidecar. Producer
        snapshots below the end of the last segment go too (a stop leaves one in the middle of a segment); the
        one at its end belongs to the next segment.
        """
        if not segments:
            return
        end = segments[-1].next_offset or 0
        files = [(name, parse_file(name)) for name in context.fs.list_dir(directory)]
        snapshots = [
            f"{directory}/{name}"
            for name, parsed in files
            if parsed is not None and parsed[1:3] == (SNAPSHOT, "") and parsed.base_offset < end
        ]
        self.rename(context, snapshots, delay_s)
        for segment in segments:
            self.rename(context, [segment.path(kind) for kind in SEGMENT_KINDS], delay_s)
            segment.forget()
        context.fs.sync_dir(directory)

    def rename(self, context: LogContext, paths: Iterable[str], delay_s: float) -> None:
        """Rename files in this order; the caller syncs the directory."""
        due = context.clock.monotonic_s() + delay_s
        for path in paths:
            context.handles.forget(path)
            try:
                with self._owning(path + DELETED):
                    context.fs.rename(path, path + DELETED)
                    self._due[path + DELETED] = due
            except FileNotFoundError:
                continue
            context.handles.forget(path)

    def waiting(self) -> list[str]:
        """Return the renamed files that are not removed yet."""
        with self._changed.lock:
            return list(self._due)

    def run(self, context: LogContext, *, everything: bool = False) -> None:
        """Remove the files that are due. A file that cannot be removed now is tried again later."""
        if not self._due:
            return
        now = context.clock.monotonic_s()
        with self._changed.lock:
            # A copy, made in one step: `rename` adds to the list without the lock.
            ready = [path for path, due in self._due.copy().items() if everything or due <= now]
        for path in ready:
            try:
                with self._owning(path):
                    if everything or self._due.get(path, math.inf) <= now:
                        with suppress(FileNotFoundError):
                            context.fs.remove(path)
                        self._due.pop(path, None)
            except StorageError as error:
                context.warn(f"{error}; tried again later")

    @contextmanager
    def _owning(self, path: str) -> Iterator[None]:
        owning = False
        try:
            with self._changed.lock:
                self._changed.wait_for(lambda: path not in self._busy)
                self._busy[path] = owning = True
            yield
        finally:
            if owning:
                with self._changed.lock:
                    del self._busy[path]  # no call before it is given back: see `locks.Condition`
                    self._changed.notify_all()
