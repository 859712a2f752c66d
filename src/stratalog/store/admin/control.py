"""The control socket's protocol and its client: how other processes ask the holder of a store for changes.

A frame, both ways:

    length of the header  uint32, big-endian
    header                JSON: {"command", "arguments", "payload": bytes that follow} or
                          {"result" | "error" | "progress", "payload"}
    payload               that many bytes; records travel as a RecordBatch

The payload has `MAX_PAYLOAD_BYTES` at most, more only where the receiver allows it: the holder does for one
record that is larger, as far as the ``max.message.bytes`` of its topic.

The holder sends a progress frame ([what, done, total]) right before it begins a command, and begins only if
that frame could be sent. A client that gives up shuts its socket down and then reads what has arrived:
without a progress frame the command was not begun and never will be. Long work sends more progress frames;
each of them begins the client's time-out anew.

Only the user who runs the holder may connect (the socket's mode is 0600). Every size is bounded.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from stratalog import errors, locks
from stratalog.errors import ControlError, StratalogError

SOCKET_NAME = ".stratalog.sock"
TEMPORARY_NAME = "control.sock"
MAX_HEADER_BYTES = 16 << 20
MAX_HEADER_VALUES = 2_000_000
"""A header of 16 MiB may hold five million empty lists, which would take twenty times its size in memory."""
MAX_PAYLOAD_BYTES = 64 << 20
RECEIVE_BYTES = 1 << 18
LONGEST_ADDRESS = 100
"""A Unix socket's address has 108 bytes at most."""

_LENGTH = struct.Struct(">I")


Progress = Callable[[str, int, int], None]
"""What is being done, how many bytes of it are done, and how many there are."""


HEARTBEAT = ""
"""The name in a progress frame that only says that the work has begun, or goes on."""


class Frame(NamedTuple):
    """One message."""

    header: dict[str, Any]
    payload: bytes = b""


BEGUN = Frame({"progress": [HEARTBEAT, 0, 0]})


def pack_frame(frame: Frame) -> bytes:
    """Return the bytes of a frame; raise `ControlError` if its header is not JSON or too large."""
    try:
        header = json.dumps({**frame.header, "payload": len(frame.payload)}).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ControlError(f"this cannot travel in a control frame: {error}") from error
    if len(header) > MAX_HEADER_BYTES:
        raise ControlError(
            f"a control header of {len(header)} bytes is too large: the limit is {MAX_HEADER_BYTES}"
        )
    return _LENGTH.pack(len(header)) + header + frame.payload


class FrameReader:
    """Cuts bytes that arrive in pieces into frames. Touches no socket.

    It is fed at most ``due`` bytes at a time, so it never holds more than the one frame that is arriving.
    Bytes that cannot be a frame raise `ControlError`; the stream cannot be read on after that.
    """

    def __init__(self, limit: Callable[[dict[str, Any]], int] = lambda header: MAX_PAYLOAD_BYTES) -> None:
        self._limit = limit
        """Returns how many bytes of payload may follow a header; raises if none of that size may."""
        self._clear()

    def _clear(self) -> None:
        self._buffer = bytearray()
        self._header: dict[str, Any] | None = None
        self._header_end = self._end = _LENGTH.size

    @property
    def due(self) -> int:
        """How many bytes are missing of the part that is arriving: the length, the header or the payload."""
        return self._end - len(self._buffer)

    @property
    def frame_bytes(self) -> int:
        """The size of the arriving frame as far as it is known; nothing is allocated ahead of its bytes."""
        return self._end

    @property
    def empty(self) -> bool:
        """True between two frames."""
        return not self._buffer

    def feed(self, data: bytes) -> Frame | None:
        """Add bytes; return the frame if they complete one."""
        assert len(data) <= self.due
        self._buffer += data
        while not self.due:
            if self._header is not None:
                frame = Frame(self._header, bytes(memoryview(self._buffer)[self._header_end :]))
                self._clear()
                return frame
            if self._end == _LENGTH.size:
                self._take_length()
            else:
                self._take_header()
        return None

    def _take_length(self) -> None:
        (size,) = _LENGTH.unpack_from(self._buffer)
        if not 2 <= size <= MAX_HEADER_BYTES:
            raise ControlError(f"a control header of {size} bytes; it has 2 to {MAX_HEADER_BYTES}")
        self._header_end = self._end = _LENGTH.size + size

    def _take_header(self) -> None:
        text = bytes(memoryview(self._buffer)[_LENGTH.size : self._header_end])
        if text.count(b",") + text.count(b"[") + text.count(b"{") > MAX_HEADER_VALUES:
            raise ControlError(f"a control header with more than {MAX_HEADER_VALUES} values")
        try:
            header = json.loads(text, parse_float=_finite, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise ControlError(f"not a control header: {error}") from error
        if not isinstance(header, dict):
            raise ControlError("not a control header: expected a JSON object")
        size = header.get("payload")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ControlError("not a control header: the length of the payload is missing")
        if size > MAX_PAYLOAD_BYTES and size > (limit := self._limit(header)):
            raise ControlError(f"not a control header: the payload has 0 to {limit} bytes")
        self._header = header
        self._end = self._header_end + size


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:40]} is too large a number")
    return value


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def listen(directory: str) -> tuple[socket.socket, str]:
    """Listen in the log directory, or in the temporary directory if its path is too long.

    The caller must hold the lock of the directory. Sockets that an earlier holder left are removed.
    """
    address = os.path.join(os.path.abspath(directory), SOCKET_NAME)
    if len(os.fsencode(address)) > LONGEST_ADDRESS:
        address = os.path.join(_temporary_directory(os.path.abspath(directory)), TEMPORARY_NAME)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            os.unlink(address)
        except FileNotFoundError:
            pass
        old = os.umask(0o177)
        try:
            listener.bind(address)
        finally:
            os.umask(old)
        listener.listen(64)
        listener.setblocking(False)
    except OSError:
        listener.close()
        remove_address(address)
        raise
    return listener, address


def _temporary_directory(directory: str) -> str:
    """Make a new directory for the socket, named after the log directory; remove those of dead holders."""
    prefix = f"stratalog-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]}-"
    where = tempfile.gettempdir()
    if len(os.fsencode(where)) + len(prefix) + len(TEMPORARY_NAME) + 10 > LONGEST_ADDRESS:
        where = "/tmp"  # TMPDIR may be as long as the log directory
    with suppress(OSError), os.scandir(where) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and _is_ours(entry):
                remove_address(os.path.join(entry.path, TEMPORARY_NAME))
    return tempfile.mkdtemp(prefix=prefix, dir=where)


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """Return True for a directory of this user: all users share the temporary directory."""
    found = entry.stat(follow_symlinks=False)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def remove_address(address: str) -> None:
    """Unlink the socket file, and the directory that was made for it."""
    with suppress(OSError):
        os.unlink(address)
    if os.path.basename(address) == TEMPORARY_NAME:
        with suppress(OSError):
            os.rmdir(os.path.dirname(address))


def error_to_header(error: Exception) -> dict[str, Any]:
    message = error.message if isinstance(error, StratalogError) else str(error)
    return {"error": {"type": type(error).__name__, "message": message}}


def raise_error(described: dict[str, Any]) -> NoReturn:
    """Raise the holder's error here, by its own name where that can be made from a message."""
    kind = getattr(errors, str(described.get("type")), None)
    message = str(described.get("message"))
    special = (errors.OffsetOutOfRangeError, errors.CorruptionError, errors.StoreLockedError)
    if isinstance(kind, type) and issubclass(kind, StratalogError) and not issubclass(kind, special):
        raise kind(message)
    raise ControlError(message)


class _DroppedError(ControlError):
    """The holder closed the connection before it began the command, and did not say why."""


class ControlClient:
    """A connection to the process that holds a store; made anew when the holder dropped it as idle.

    Thread-safe: a request waits for the one before it, because an answer does not name its request. In a
    forked child, which shares the socket, it is refused.
    """

    def __init__(self, address: str, pid: int | None, timeout_s: float = 30.0) -> None:
        self._address = address
        self._who = f"process {pid}" if pid is not None else "the process"
        self._timeout_s = timeout_s
        self._process = os.getpid()
        self._lock = locks.rlock("client")
        self._asking = False
        self._socket: socket.socket | None = self._connect()

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(self._timeout_s)
        try:
            connection.connect(self._address)
        except OSError as error:
            connection.close()
            raise ControlError(
                f"{self._who} holds the store and does not answer at {self._address}: {error}"
            ) from error
        return connection

    def request(
        self,
        command: str,
        arguments: dict[str, Any],
        payload: bytes = b"",
        progress: Progress | None = None,
    ) -> Frame:
        """Send a command and wait for its answer; raise the holder's errors as they were raised there.

        When no answer comes, the error says whether the command was begun: only then it may still happen.
        """
        data = pack_frame(Frame({"command": command, "arguments": arguments}, payload))
        locks.check_process(self._process)
        with self._lock:
            if self._asking:
                raise ControlError(f"{command!r} was asked from the progress of another request; wait for it")
            try:
                self._asking = True
                try:
                    frame = self._ask(command, data, progress)
                except _DroppedError:
                    frame = self._ask(command, data, progress)
            finally:
                self._asking = False
        if "error" in frame.header:
            raise_error(frame.header["error"])
        return frame

    def _ask(self, command: str, data: bytes, progress: Progress | None) -> Frame:
        connection = self._socket = self._socket or self._connect()
        try:
            return self._exchange(connection, command, data, progress)
        except BaseException:
            self.close()  # the next answer to arrive there would not be the next request's
            raise

    def _exchange(
        self, connection: socket.socket, command: str, data: bytes, progress: Progress | None
    ) -> Frame:
        reader, lost, begun, late = FrameReader(), "", False, False
        try:
            connection.sendall(data)
        except TimeoutError:
            late = _give_up(connection)
        except OSError as error:
            lost = f" ({error})"  # the reason may have arrived
        while True:
            try:
                arrived = connection.recv(min(reader.due, RECEIVE_BYTES))
            except TimeoutError:
                late = _give_up(connection)
                continue
            except OSError as error:
                arrived, lost = b"", f" ({error})"
            if not arrived:
                break
            frame = reader.feed(arrived)
            if frame is not None and "progress" not in frame.header:
                return frame
            if frame is not None:
                begun = True
                if progress is not None and frame.header["progress"][0] != HEARTBEAT:
                    progress(*frame.header["progress"])
        outcome = "had started and may still complete" if begun else "had not started and was cancelled"
        if late:
            raise ControlError(
                f"{self._who} holds the store and did not answer {command!r} within {self._timeout_s:g} s;"
                f" the command {outcome}"
            ).with_begun(begun)
        raise (ControlError if begun else _DroppedError)(
            f"{self._who}, which holds the store, closed the connection{lost}; the command {outcome}"
        ).with_begun(begun)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _give_up(connection: socket.socket) -> bool:
    """Make sure that the holder begins nothing from now on; what it has sent can still be read."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    return True
