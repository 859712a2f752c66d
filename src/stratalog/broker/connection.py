"""One client: frames in, answers out, in order.

A connection answers one request at a time, as Kafka does: while a request waits (for the disk, for new
records), the next ones stay in the buffer. A frame's memory grows as its bytes arrive, and nothing is read
while answers wait to be sent. A client whose requests come whole has no buffer: all share the loop's. Larger
buffers are counted, and bounded, for all connections together (`stratalog.broker.queued`).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from stratalog import kernel
from stratalog.broker.loop import FIRST_BUFFER, READ, WRITE, EventLoop
from stratalog.broker.queued import QueuedBytes

_size_of = struct.Struct(">i").unpack_from
NOT_NOW = (errno.EAGAIN, errno.EINTR)
LARGE_BUFFER = 4 << 20
"""A buffer that grew past this for a large request is given back after it."""


class FileRange(Protocol):
    """Bytes of a file that is open until they are sent."""

    length: int
    position: int

    def fileno(self) -> int: ...

    def release(self) -> None: ...


Part = bytes | memoryview | FileRange


class Connection:
    """A socket with its buffers. ``handle`` gets each frame; it answers with `answer`, at once or later."""

    def __init__(
        self,
        loop: EventLoop,
        sock: socket.socket,
        peer: str,
        max_frame: int,
        queued: QueuedBytes,
        handle: Callable[[Connection, memoryview], None],
        closed: Callable[[Connection, str], None],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self.peer = peer
        self._max_frame = max_frame
        self._queued = queued
        self._held = 0
        """What is counted of its memory."""
        self._unsent = 0
        """The size of a large answer that the client has not read yet."""
        self._starved = False
        """It waits for memory and reads nothing."""
        self._handle = handle
        self._closed = closed
        self._buffer = loop.buffer
        """That of all until bytes have to wait here for more, or for the answer before them."""
        self._have = 0
        self._out: deque[Part] = deque()
        self._handling = False
        self._events = READ
        self.open = True
        self.busy = False
        """A request is being answered; requests behind it wait."""
        self.abandoned: Callable[[], None] | None = None
        """What to do if the client leaves before the request at hand is answered."""
        self.last_used_s = loop.turn_s
        """When bytes came or went last, or a request was answered."""
        loop.watch(self._fd, READ, self._on_ready)

    @property
    def idle(self) -> bool:
        """True if no request is being answered and no answer waits to be sent."""
        return not self.busy and not self._out

    def answer(self, parts: Sequence[Part]) -> None:
        """Send the answer of the request at hand; an empty one sends nothing. Go on with the next request."""
        if not self.open:
            _release(parts)
            return
        self.busy, self.abandoned = False, None
        self.last_used_s = self._loop.turn_s
        if parts and not (len(parts) == 1 and not self._out and self._sent(parts[0])):
            self._out.extend(parts)
            self._flush()
            if self._out:
                unsent = sum(len(part) for part in self._out if isinstance(part, bytes | memoryview))
                self._unsent = unsent if unsent > FIRST_BUFFER else 0
                self._count()
        if self._have and self.open and not self._handling:
            self._take_frames()

    def _sent(self, part: Part) -> bool:
        """Send a whole answer at once, as most are; False, with nothing sent, if it is not one for that."""
        if type(part) is not bytes or len(part) > FIRST_BUFFER:
            return False
        sent = kernel.send(self._fd, part)
        if sent < 0:  # `_flush` finds it too, unless there is room by then
            return False
        if sent < len(part):
            self._out.append(memoryview(part)[sent:])
            self._watch()
        return True

    def close(self, why: str = "") -> None:
        """Close the socket; the requests at hand get no answer."""
        if not self.open:
            return
        self.open = False
        self._loop.forget(self._fd)
        _release(self._out)
        self._out.clear()
        self._sock.close()
        self._closed(self, why)
        self._queued.forget(self)
        if self.abandoned is not None:
            self.abandoned()

    def _lost(self, error: OSError) -> None:
        """Close after an error of the socket; that the client went away in its own way is no news."""
        self.close("" if isinstance(error, ConnectionError) else str(error))

    def _on_ready(self, events: int) -> None:
        self.last_used_s = self._loop.turn_s
        if events & WRITE:
            self._flush()
        if self.open and events & ~WRITE:
            if self._starved:  # nothing is read now: the client hung up
                self.close()
            else:
                self._receive()

    def _receive(self) -> None:
        if self.busy and self._buffer is self._loop.buffer:
            self._buffer = memoryview(bytearray(FIRST_BUFFER))
        if self._have == len(self._buffer) and not self._grow():
            return
        if len(self._buffer) == FIRST_BUFFER:
            size = kernel.receive(self._fd, self._buffer, self._have)
        else:
            size = self._receive_much()
        if size <= 0:
            if not size:
                self.close()
            elif -size not in NOT_NOW:
                self._lost(OSError(-size, os.strerror(-size)))
            return
        self._have += size
        if self.busy:
            self._watch()
        else:
            self._take_frames()

    def _receive_much(self) -> int:
        """Receive into a large buffer: other threads may run while so much is copied."""
        try:
            return self._sock.recv_into(self._buffer[self._have :])
        except OSError as error:
            return -(error.errno or errno.EIO)

    def _take_frames(self) -> None:
        """Handle every whole frame in the buffer until one has to wait."""
        at = 0
        self._handling = True
        try:
            while self.open and not self.busy and not self._out and self._have - at >= 4:
                (size,) = _size_of(self._buffer, at)
                if not 0 < size <= self._max_frame:
                    self.close(f"a frame of {size} bytes")
                    return
                if self._have - at < size + 4:
                    break
                frame = self._buffer[at + 4 : at + 4 + size]
                at += size + 4
                self.busy = True
                try:
                    self._handle(self, frame)
                except ValueError as error:
                    self.close(str(error))
                    return
                except Exception:
                    self.close("an unexpected error")
                    raise
        finally:
            self._handling = False
        size = len(self._buffer)
        too_large = size > LARGE_BUFFER or (size > FIRST_BUFFER and self._queued.short)
        if at == self._have and not too_large:
            self._have = 0
        elif self.open and (at or self._buffer is self._loop.buffer):
            rest = bytes(self._buffer[at : self._have])
            if self._buffer is self._loop.buffer or (too_large and len(rest) <= FIRST_BUFFER):
                self._buffer = memoryview(bytearray(FIRST_BUFFER))
            self._buffer[: len(rest)] = rest
            self._have = len(rest)
            if too_large:
                self._count()
        if at and size > FIRST_BUFFER:
            self._queued.served(self)
        self._watch()

    def _grow(self) -> bool:
        """Make room for more of a frame, twice as much as came so far; False if it has to wait for memory."""
        size = self._wanted()
        held = len(self._buffer) if len(self._buffer) > FIRST_BUFFER else 0
        if self._queued.may_take(self, size - held):
            self._enlarge(size)
            return True
        self._starved = True
        self._watch()
        return False

    def _wanted(self) -> int:
        whole = self._max_frame + 4
        if self._have >= 4 and not self.busy:
            whole = min(whole, int.from_bytes(self._buffer[:4], "big", signed=True) + 4)
        return max(self._have + 1, min(2 * self._have, whole))

    def _enlarge(self, size: int) -> None:
        larger = memoryview(bytearray(size))
        larger[: self._have] = self._buffer[: self._have]
        self._buffer = larger
        self._count()

    def make_room(self) -> None:
        """Go on with the frame that waited for memory."""
        self._starved = False
        self._enlarge(self._wanted())
        self._watch()

    def give_back(self) -> None:
        """Give back a buffer that holds nothing."""
        if not self._have and self.open:
            self._buffer = self._loop.buffer
            self._count()

    def _count(self) -> None:
        """Report how much memory is held beside the first buffer."""
        held = (len(self._buffer) if len(self._buffer) > FIRST_BUFFER else 0) + self._unsent
        if held != self._held and self.open:
            self._held = held
            self._queued.hold(self, held)

    def _watch(self) -> None:
        """Read only while there is room for requests and no answer waits to be sent."""
        if not self.open:
            return
        full = self.busy and self._have >= FIRST_BUFFER
        events = WRITE if self._out else 0 if full or self._starved else READ
        if events != self._events:
            self._events = events
            self._loop.change(self._fd, events)

    def _flush(self) -> None:
        out = self._out
        try:
            while out:
                part = out[0]
                if isinstance(part, bytes | memoryview):
                    more = socket.MSG_MORE if len(out) > 1 else 0
                    sent = self._sock.send(part, more)
                    if sent < len(part):
                        out[0] = memoryview(part)[sent:]
                        break
                    out.popleft()
                else:
                    sent = os.sendfile(self._fd, part.fileno(), part.position, part.length)
                    if not sent and part.length:
                        self.close("a segment ended before its batches were sent")
                        return
                    part.position += sent
                    part.length -= sent
                    if part.length:
                        continue
                    out.popleft()
                    part.release()
        except BlockingIOError:
            pass
        except OSError as error:
            self._lost(error)
            return
        if not out and self._unsent:
            self._unsent = 0
            self._count()
        if not out and self._have >= 4 and not self.busy and not self._handling:
            self._take_frames()
        self._watch()


def _release(parts: Sequence[Part] | deque[Part]) -> None:
    for part in parts:
        if not isinstance(part, bytes | memoryview):
            part.release()
