"""The control socket: how other processes ask the one that holds a store to change something.

A frame, both ways:

    length of the header  uint32, big-endian
    header                JSON: {"command", "arguments", "payload": bytes that follow} or
                          {"result" | "error" | "progress", "payload"}
    payload               that many bytes; records travel as a RecordBatch

Long work answers with any number of progress frames ([what, done, total]) before its result; each of them
begins the asker's time-out anew. Only the user who runs the holder may connect (the socket's mode is 0600).
Frames are bounded.
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
from typing import Any, NamedTuple

from stratalog import errors
from stratalog.errors import ControlError, StratalogError

SOCKET_NAME = ".stratalog.sock"
TEMPORARY_NAME = "control.sock"
MAX_HEADER_BYTES = 16 << 20
MAX_PAYLOAD_BYTES = 64 << 20
LONGEST_ADDRESS = 100
"""A Unix socket's address has 108 bytes at most."""

_LENGTH = struct.Struct(">I")


Progress = Callable[[str, int, int], None]
"""What is being done, how many bytes of it are done, and how many there are."""


HEARTBEAT = ""
"""The name in a progress frame that only says that the work goes on."""


class Frame(NamedTuple):
    """One message."""

    header: dict[str, Any]
    payload: bytes = b""


def pack_frame(frame: Frame) -> bytes:
    header = json.dumps({**frame.header, "payload": len(frame.payload)}).encode()
    return _LENGTH.pack(len(header)) + header + frame.payload


def take_frame(buffer: bytearray) -> Frame | None:
    """The first whole frame of ``buffer``, which loses it; None when more bytes are due."""
    if len(buffer) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack_from(buffer)
    if size > MAX_HEADER_BYTES:
        raise ControlError(f"a control header of {size} bytes")
    if len(buffer) < _LENGTH.size + size:
        return None
    try:
        header = json.loads(bytes(buffer[_LENGTH.size : _LENGTH.size + size]))
        payload_size = int(header["payload"])
    except (ValueError, KeyError, TypeError) as error:
        raise ControlError(f"not a control header: {error}") from error
    if not 0 <= payload_size <= MAX_PAYLOAD_BYTES:
        raise ControlError(f"a control payload of {payload_size} bytes")
    end = _LENGTH.size + size + payload_size
    if len(buffer) < end:
        return None
    payload = bytes(buffer[_LENGTH.size + size : end])
    del buffer[:end]
    return Frame(header, payload)


def listen(directory: str) -> tuple[socket.socket, str]:
    """A listening socket in the log directory, or in the temporary directory when its path is too long.

    For whoever holds the lock of the directory: what an earlier holder left of either is swept away.
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
    """A new place for the socket of a log directory, named after it; those of dead holders are removed."""
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
    """Anybody may put things into the temporary directory."""
    found = entry.stat(follow_symlinks=False)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def remove_address(address: str) -> None:
    """Take the socket's name away again."""
    with suppress(OSError):
        os.unlink(address)
    if os.path.basename(address) == TEMPORARY_NAME:
        with suppress(OSError):
            os.rmdir(os.path.dirname(address))


def error_to_header(error: Exception) -> dict[str, Any]:
    return {"error": {"type": type(error).__name__, "message": str(error)}}


def raise_error(described: dict[str, Any]) -> None:
    """Raise the holder's error here, by its own name where that can be made from a message."""
    kind = getattr(errors, str(described.get("type")), None)
    message = str(described.get("message"))
    special = (errors.OffsetOutOfRangeError, errors.CorruptionError, errors.StoreLockedError)
    if isinstance(kind, type) and issubclass(kind, StratalogError) and not issubclass(kind, special):
        raise kind(message)
    raise ControlError(message)


class ControlClient:
    """A connection to the process that holds a store."""

    def __init__(self, address: str, pid: int | None, timeout_s: float = 30.0) -> None:
        self._who = f"process {pid}" if pid is not None else "the process"
        self._timeout_s = timeout_s
        self._buffer = bytearray()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(address)
        except OSError as error:
            self._socket.close()
            raise ControlError(
                f"{self._who} holds the store and does not answer at {address}: {error}"
            ) from error

    def request(
        self,
        command: str,
        arguments: dict[str, Any],
        payload: bytes = b"",
        progress: Progress | None = None,
    ) -> Frame:
        """Send a command and wait for its answer; the holder's errors are raised as they were there."""
        try:
            self._socket.sendall(pack_frame(Frame({"command": command, "arguments": arguments}, payload)))
            while True:
                frame = take_frame(self._buffer)
                if frame is not None and "progress" in frame.header:
                    if progress is not None and frame.header["progress"][0] != HEARTBEAT:
                        progress(*frame.header["progress"])
                    continue
                if frame is not None:
                    break
                data = self._socket.recv(1 << 20)
                if not data:
                    raise ControlError(f"{self._who}, which holds the store, closed the connection")
                self._buffer += data
        except TimeoutError as error:
            raise ControlError(
                f"{self._who} holds the store and did not answer {command!r} within {self._timeout_s:g} s"
            ) from error
        except OSError as error:
            raise ControlError(f"{self._who}, which holds the store, cannot be reached: {error}") from error
        if "error" in frame.header:
            raise_error(frame.header["error"])
        return frame

    def close(self) -> None:
        self._socket.close()
