"""Removing segments: renamed to `.deleted` at once, removed after `file.delete.delay.ms`.

A crash in between leaves `.deleted` files, which the next start removes. Readers that opened a file
before it went keep reading it.
"""

from __future__ import annotations

import threading

from stratalog.log.context import LogContext
from stratalog.log.names import DELETED, SEGMENT_KINDS
from stratalog.log.segment import Segment


class Deletions:
    """Files waiting to be removed, by the monotonic clock."""

    def __init__(self, context: LogContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._due: list[tuple[float, str]] = []

    def add(self, directory: str, segments: list[Segment], delay_s: float) -> None:
        """Rename the files of segments that nobody looks for any more, and remember to remove them.

        The sidecars go first: a `.log` without them is still whole, they without it are orphans.
        """
        if not segments:
            return
        due = self._context.clock.monotonic_s() + delay_s
        fs = self._context.fs
        for segment in segments:
            for kind in reversed(SEGMENT_KINDS):
                path = segment.path(kind)
                self._context.handles.forget(path)
                try:
                    fs.rename(path, path + DELETED)
                except FileNotFoundError:
                    continue
                with self._lock:
                    self._due.append((due, path + DELETED))
            segment.forget()
        fs.sync_dir(directory)

    def run(self, *, everything: bool = False) -> None:
        """Remove what is due."""
        now = self._context.clock.monotonic_s()
        with self._lock:
            ready = [path for due, path in self._due if everything or due <= now]
            self._due = [(due, path) for due, path in self._due if not everything and due > now]
        for path in ready:
            try:
                self._context.fs.remove(path)
            except FileNotFoundError:
                continue
