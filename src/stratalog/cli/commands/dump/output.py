"""What a dump is asked to do, where its lines go, and what it found wrong.

Lines are those of Kafka's tool, or one JSON object a line:

    {"type": "file", "path": …}               {"type": "log", "baseOffset": …}
    {"type": "batch", …}                      the fields of Kafka's line; deleteHorizonMs null when unset
    {"type": "record", …}                     key and payload with the option for contents; text where the
                                              bytes are UTF-8, else keyBase64 and payloadBase64
    {"type": "offsetIndexEntry", …}  {"type": "timeIndexEntry", …}  {"type": "abortedTxn", …}
    {"type": "producer", …}  {"type": "emptyIndex", …}  {"type": "sane", …}  {"type": "trailingBytes", …}
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TextIO

MAX_INT = 2**31 - 1
DEFAULT_MAX_MESSAGE_SIZE = 5 * 1024 * 1024
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """The flags of Kafka's dump tool, less its Java decoder classes, plus ``json``."""

    print_data_log: bool = False
    deep_iteration: bool = False
    verify_index_only: bool = False
    index_sanity_check: bool = False
    max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE
    max_bytes: int = MAX_INT
    skip_record_metadata: bool = False
    offsets_decoder: bool = False
    transaction_log_decoder: bool = False
    cluster_metadata_decoder: bool = False
    share_group_state_decoder: bool = False
    json: bool = False

    @property
    def decoder(self) -> str | None:
        """The internal topic whose records are decoded; the first option wins, as in Kafka."""
        if self.offsets_decoder:
            return "offsets"
        if self.transaction_log_decoder:
            return "transaction-log"
        if self.cluster_metadata_decoder:
            return "cluster-metadata"
        return "share-group-state" if self.share_group_state_decoder else None

    @property
    def contents(self) -> bool:
        """True if keys and payloads are printed; any decoder implies it."""
        return self.print_data_log or self.decoder is not None

    @property
    def deep(self) -> bool:
        """True if batches are opened; printing contents implies it."""
        return self.deep_iteration or self.contents


class Sink(Protocol):
    """A binary stream: ``sys.stdout.buffer``, a file, a BytesIO."""

    def write(self, data: memoryview, /) -> int | None: ...

    def flush(self) -> None: ...


class Output:
    """A block of bytes in front of a stream, written when full.

    A dump makes hundreds of megabytes of text: the kernel writes into the block in place.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._data = bytearray(BLOCK_BYTES)
        self.block = memoryview(self._data)
        self.used = 0

    def room(self, size: int) -> None:
        """Empty the block; make it larger if ``size`` bytes still do not fit."""
        self._drain()
        if size > len(self.block):
            self._data = bytearray(size)
            self.block = memoryview(self._data)

    def write(self, data: bytes) -> None:
        if len(data) > len(self.block) - self.used:
            self.room(len(data))
        self.block[self.used : self.used + len(data)] = data
        self.used += len(data)

    def line(self, text: str) -> None:
        """Write one line; undecodable parts of file names go out as they came in."""
        self.write(text.encode("utf-8", "surrogateescape"))
        self.write(b"\n")

    def flush(self) -> None:
        self._drain()
        self._sink.flush()

    def _drain(self) -> None:
        position = 0
        while position < self.used:
            written = self._sink.write(self.block[position : self.used])
            position = self.used if written is None else position + written
        self.used = 0


class Printer:
    """Prints facts as a line of Kafka's tool or as a JSON object. The kernel prints most batches itself."""

    def __init__(self, out: Output, as_json: bool) -> None:
        self._out = out
        self.json = as_json

    def show(self, kind: str, text: str, **facts: object) -> None:
        """Print a line: ``text``, or ``facts`` as JSON."""
        # ASCII only: the escapes keep even undecodable file names in one valid line.
        self._out.line(json.dumps({"type": kind, **facts}, separators=(",", ":")) if self.json else text)

    def row(self, kind: str, **facts: object) -> None:
        """Print ``name: value`` pairs, or the same as JSON."""
        text = "" if self.json else " ".join(f"{name}: {value}" for name, value in facts.items())
        self.show(kind, text, **facts)


_SUMMARY = {
    "index": ("Mismatches in :", "  Index offset: {}, log offset: {}"),
    "time": ("Found timestamp mismatch in :", "  Index timestamp: {}, log timestamp: {}"),
    "order": (
        "Found out of order timestamp in :",
        "  Index timestamp: {}, Previously indexed timestamp: {}",
    ),
    "not found": (
        "The following indexed offsets are not found in :",
        "Indexed offset: {}, found log offset: {}",
    ),
    "gaps": ("Non-consecutive offsets in ", "  {} is followed by {}"),
}


class Problems:
    """What a dump found wrong: printed at once if a file cannot be read on, else in a summary at the end.

    The summary has the text of Kafka's tool; files come in the order they were dumped, where Kafka's come in
    that of a Java hash table. ``before`` is called ahead of every print to the error stream.
    """

    def __init__(self, err: TextIO, before: Callable[[], None]) -> None:
        self._err = err
        self._before = before
        self.failed = False
        self.found_nothing = False
        self._found: dict[str, dict[str, list[tuple[int, int]]]] = {kind: {} for kind in _SUMMARY}

    def note(self, text: str) -> None:
        """Print something that is not a failure."""
        self._before()
        print(text, file=self._err)

    def fail(self, text: str) -> None:
        """Report something unreadable: the dump goes on where it can and ends with a code."""
        self.failed = True
        self.note(text)

    def missing(self, text: str) -> None:
        """Report a path with nothing to read."""
        self.found_nothing = True
        self.note(text)

    def mismatch(self, kind: str, path: str, *pairs: tuple[int, int]) -> None:
        """Remember two numbers that disagree, under a heading of the summary."""
        if pairs:
            self._found[kind].setdefault(os.path.abspath(path), []).extend(pairs)

    def summary(self) -> None:
        self._before()
        for kind, (title, line) in _SUMMARY.items():
            for path, pairs in self._found[kind].items():
                if kind in ("index", "gaps"):  # one line an offset, in order
                    pairs = sorted(dict(pairs).items(), reverse=kind == "index")
                print(title + path, *(line.format(a, b) for a, b in pairs), sep="\n", file=self._err)
