"""Memory that batches are encoded in, used again and again: fresh pages cost as much as encoding does."""

from __future__ import annotations

from collections import deque

FIRST_BYTES = 64 << 10
KEPT_BYTES = 2 << 20
_spare: deque[bytearray] = deque(maxlen=8)
"""A deque's ends may be used from any thread."""


def take() -> bytearray:
    """A buffer that nobody else uses; what is in it means nothing."""
    try:
        return _spare.pop()
    except IndexError:
        return bytearray(FIRST_BYTES)


def give_back(buffer: bytearray) -> None:
    """For the next one. Not after an error: its traceback may still look at the buffer."""
    if len(buffer) <= KEPT_BYTES:
        _spare.append(buffer)
