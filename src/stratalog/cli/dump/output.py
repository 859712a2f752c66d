"""Where a dump's lines go: one large block, written when full.

Touches the stream it is given and nothing else. A dump makes hundreds of megabytes of text: the kernel
writes into the block in place, and everything else appends to it here.
"""

from __future__ import annotations

from typing import Protocol

BLOCK_BYTES = 1 << 20


class Sink(Protocol):
    """A binary stream: ``sys.stdout.buffer``, a file, a BytesIO."""

    def write(self, data: memoryview, /) -> int | None: ...

    def flush(self) -> None: ...


class Output:
    """A block of bytes in front of a stream."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._data = bytearray(BLOCK_BYTES)
        self.block = memoryview(self._data)
        self.used = 0

    def room(self, size: int) -> None:
        """Empty the block, and make it larger if even so ``size`` bytes do not fit."""
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
        """One line; undecodable parts of file names go out as they came in."""
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
