"""What a dump found wrong: said at once when a file cannot be read on, and in a summary at the end.

Prints to the error stream. The summary has the text of Kafka's tool; files come in the order they were
dumped, where Kafka's come in that of a Java hash table.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TextIO


class Problems:
    """Collects mismatches per file; ``failed`` tells whether anything was unreadable."""

    def __init__(self, err: TextIO, before: Callable[[], None]) -> None:
        self._err = err
        self._before = before
        self.failed = False
        self.found_nothing = False
        self._index: dict[str, dict[int, int]] = {}
        self._time: dict[str, list[tuple[int, int]]] = {}
        self._order: dict[str, list[tuple[int, int]]] = {}
        self._not_found: dict[str, list[tuple[int, int]]] = {}
        self._gaps: dict[str, dict[int, int]] = {}

    def note(self, text: str) -> None:
        """Worth a word, and no failure."""
        self._before()
        print(text, file=self._err)

    def fail(self, text: str) -> None:
        """Something could not be read: the dump goes on where it can and ends with a code."""
        self.failed = True
        self.note(text)

    def missing(self, text: str) -> None:
        """There was nothing to read where something was asked for."""
        self.found_nothing = True
        self.note(text)

    def index_mismatch(self, path: str, index_offset: int, log_offset: int) -> None:
        self._index.setdefault(os.path.abspath(path), {})[index_offset] = log_offset

    def time_mismatch(self, path: str, index_timestamp: int, log_timestamp: int) -> None:
        self._time.setdefault(os.path.abspath(path), []).append((index_timestamp, log_timestamp))

    def time_out_of_order(self, path: str, timestamp: int, previous: int) -> None:
        self._order.setdefault(os.path.abspath(path), []).append((timestamp, previous))

    def offset_not_found(self, path: str, index_offset: int, log_offset: int) -> None:
        self._not_found.setdefault(os.path.abspath(path), []).append((index_offset, log_offset))

    def gaps(self, path: str, gaps: dict[int, int]) -> None:
        if gaps:
            self._gaps.setdefault(os.path.abspath(path), {}).update(gaps)

    def summary(self) -> None:
        self._before()
        lines: list[str] = []
        for path, pairs in self._index.items():
            lines.append(f"Mismatches in :{path}")
            lines += [f"  Index offset: {a}, log offset: {pairs[a]}" for a in sorted(pairs, reverse=True)]
        for path, times in self._time.items():
            lines.append(f"Found timestamp mismatch in :{path}")
            lines += [f"  Index timestamp: {a}, log timestamp: {b}" for a, b in times]
        for path, times in self._order.items():
            lines.append(f"Found out of order timestamp in :{path}")
            lines += [f"  Index timestamp: {a}, Previously indexed timestamp: {b}" for a, b in times]
        for path, missing in self._not_found.items():
            lines.append(f"The following indexed offsets are not found in :{path}")
            lines += [f"Indexed offset: {a}, found log offset: {b}" for a, b in missing]
        for path, pairs in self._gaps.items():
            lines.append(f"Non-consecutive offsets in {path}")
            lines += [f"  {a} is followed by {pairs[a]}" for a in sorted(pairs)]
        if lines:
            print("\n".join(lines), file=self._err)
