"""The control socket's server: a few threads of its own, so that no client is ever in the way of a flush.

One thread accepts connections; each connection has a thread that reads one frame, runs its command and sends
the answer, then the next. A client costs a thread, a descriptor, and memory as its bytes arrive:

- more than `MAX_CONNECTIONS` at a time: the one that has been idle longest is dropped; if none is idle, the
  new one is refused;
- a frame that is not complete after `FRAME_TIMEOUT_S`, an answer that is not read within `SEND_TIMEOUT_S`:
  the connection is dropped;
- frames above `SMALL_FRAME_BYTES` share `LARGE_FRAMES_BYTES`; one that finds no room waits in its socket, and
  one that is larger than all of it, because its topic allows such records, has all of it to itself;
- bytes that are not a frame get an error for an answer and end their connection, with one line in the log.

A command is begun only while its client still waits for it; see `stratalog.store.admin.control`.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from stratalog import locks
from stratalog.errors import ControlError, StratalogError
from stratalog.log.context import logger
from stratalog.store.admin.control import (
    BEGUN,
    HEARTBEAT,
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    RECEIVE_BYTES,
    Frame,
    FrameReader,
    Progress,
    error_to_header,
    pack_frame,
    remove_address,
)

MAX_CONNECTIONS = 64
SMALL_FRAME_BYTES = 64 << 10
LARGE_FRAMES_BYTES = 2 * (MAX_HEADER_BYTES + MAX_PAYLOAD_BYTES)
IDLE_TIMEOUT_S = 600.0
FRAME_TIMEOUT_S = 30.0
SEND_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 1.0
"""How long a client may take to read its answer once the store is closing."""
PROGRESS_S = 0.2
BEAT_S = 5.0
ACCEPT_RETRY_S = 0.1


class ControlServer:
    """Serves a listening socket until `stop`.

    ``run(command, arguments, payload, progress)`` runs a command and returns its result. ``limit(header)``
    returns how many bytes of payload a command may have.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        limit: Callable[[dict[str, Any]], int],
        listener: socket.socket,
        address: str,
    ) -> None:
        self.address = address
        self.limit = limit
        self.large_frames = _Room(LARGE_FRAMES_BYTES)
        self.stopping = False
        self._run = run
        self._listener = listener
        self._connections: dict[_Connection, threading.Thread] = {}
        self._lock = locks.lock("control")
        """Protects ``_connections``. No other lock is taken under it, and nothing is sent or received."""
        # Shutdown of a listening socket does not wake the thread that waits for clients.
        self._wake, self._awaited = socket.socketpair()
        self._thread = threading.Thread(target=self._accept_all, name="stratalog-control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Accept nothing more, wait for the commands that are running, close the socket and unlink it."""
        self.stopping = True
        self._wake.close()
        if self._thread.is_alive():
            self._thread.join()
        self.large_frames.close()
        with self._lock:
            connections = dict(self._connections)
        for each, thread in connections.items():
            each.stop(thread)
        self._awaited.close()
        self._listener.close()
        remove_address(self.address)

    def abandon(self) -> None:
        """In a forked child: close the descriptors, which the parent has too. Takes no lock."""
        for each in (self._wake, self._awaited, self._listener):
            each.close()
        for connection in self._connections:
            connection.close()

    def run(self, frame: Frame, progress: Progress) -> Frame:
        """Run a command; every failure becomes an answer."""
        try:
            header = frame.header
            asked = header.get("command"), header.get("arguments"), frame.payload, progress
            return Frame({"result": self._run(*asked)})
        except StratalogError as error:
            return Frame(error_to_header(error))
        except Exception as error:  # noqa: BLE001 - the client gets the error, and the thread goes on
            logger.exception("control command failed")
            return Frame(error_to_header(error))

    def forget(self, connection: _Connection) -> None:
        with self._lock:
            self._connections.pop(connection, None)

    def _accept_all(self) -> None:
        waiting = select.poll()
        for each in (self._listener, self._awaited):
            waiting.register(each, select.POLLIN)
        while not self.stopping:
            waiting.poll(BEAT_S * 200)
            try:
                accepted, _ = self._listener.accept()
            except BlockingIOError:
                pass
            except OSError as error:
                if not self.stopping:
                    logger.warning("control socket: cannot accept: %s", error)
                    time.sleep(ACCEPT_RETRY_S)  # too many open files, most likely
            else:
                self._admit(accepted)
            for connection in list(self._connections):
                connection.beat()

    def _admit(self, accepted: socket.socket) -> None:
        connection = _Connection(self, accepted)
        if not self._make_place():
            logger.warning("control connection refused: %d are busy", MAX_CONNECTIONS)
            connection.refuse(ControlError(f"the holder serves {MAX_CONNECTIONS} busy connections already"))
            return
        thread = threading.Thread(target=connection.serve, name="stratalog-command", daemon=True)
        with self._lock:
            self._connections[connection] = thread
        try:
            thread.start()
        except RuntimeError as error:
            self.forget(connection)
            connection.refuse(ControlError(f"the holder cannot serve another connection: {error}"))

    def _make_place(self) -> bool:
        with self._lock:
            if len(self._connections) < MAX_CONNECTIONS:
                return True
            idle = [each for each in self._connections if each.idle_since is not None]
            longest = min(idle, key=lambda each: each.idle_since or 0.0, default=None)
            if longest is not None:
                del self._connections[longest]
        if longest is None:
            return False
        longest.hang_up()
        return True


class _Room:
    """Bytes that large frames may take, all connections together."""

    def __init__(self, free_bytes: int) -> None:
        self._free = free_bytes
        self._closed = False
        self._changed = locks.condition("control.frames")

    def take(self, size: int, timeout_s: float) -> bool:
        """Reserve ``size`` bytes, waiting for others to give theirs back; return False if they do not."""
        with self._changed.lock:
            self._changed.wait_for(lambda: self._closed or self._free >= size, timeout_s)
            if self._closed or self._free < size:
                return False
            self._free -= size
            return True

    def give_back(self, size: int) -> None:
        with self._changed.lock:
            self._free += size
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed.lock:
            self._closed = True
            self._changed.notify_all()


class _Connection:
    """One client, served by one thread; `beat`, `hang_up` and `stop` are called by others."""

    def __init__(self, server: ControlServer, accepted: socket.socket) -> None:
        self.idle_since: float | None = time.monotonic()
        """Since when the client is idle; None while a frame arrives or runs."""
        self._server = server
        self._socket = accepted
        self._reserved_bytes = 0
        self._running = False
        self._sent_at: dict[str, float] = {}
        self._sending = locks.lock("progress")
        """Keeps frames apart, and reports of progress within the time of their command: protects
        ``_running`` and ``_sent_at``. Its holder may wait for the client; progress is dropped meanwhile."""

    def serve(self) -> None:
        """Answer frames until the client goes or breaks a rule, or the server stops."""
        try:
            while self._serve_one():
                self.idle_since = time.monotonic()
        except StratalogError as error:
            logger.warning("control connection dropped: %s", error)
            self.refuse(error)
        except OSError as error:
            logger.warning("control connection dropped: %s", error)
        except Exception:  # noqa: BLE001 - a thread that ends must leave a trace
            logger.exception("control connection dropped")
        finally:
            self._server.forget(self)
            self.close()

    def _serve_one(self) -> bool:
        """Receive a frame and answer it; return False if there is no other one to wait for."""
        try:
            frame = self._receive()
            return frame is not None and self._answer(frame)
        finally:
            self._server.large_frames.give_back(self._reserved_bytes)
            self._reserved_bytes = 0

    def _receive(self) -> Frame | None:
        reader = FrameReader(self._server.limit)
        deadline = time.monotonic() + IDLE_TIMEOUT_S
        while True:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                arrived = self._socket.recv(min(reader.due, RECEIVE_BYTES))
            except TimeoutError:
                if reader.empty:
                    return None
                raise ControlError(f"a frame was not complete after {FRAME_TIMEOUT_S:g} s") from None
            if not arrived:
                if reader.empty:
                    return None
                raise ControlError("the client closed it within a frame")
            if reader.empty:
                self.idle_since = None
                deadline = time.monotonic() + FRAME_TIMEOUT_S
            frame = reader.feed(arrived)
            if frame is not None:
                return frame
            self._reserve(reader.frame_bytes, deadline)

    def _reserve(self, frame_bytes: int, deadline: float) -> None:
        wanted = min(frame_bytes, LARGE_FRAMES_BYTES) - self._reserved_bytes
        if frame_bytes > SMALL_FRAME_BYTES and wanted > 0:
            if not self._server.large_frames.take(wanted, max(deadline - time.monotonic(), 0.0)):
                raise ControlError(f"no room for a frame of {frame_bytes} bytes beside others; try again")
            self._reserved_bytes += wanted

    def _answer(self, frame: Frame) -> bool:
        """Run a command if its client still waits for it, and send the answer."""
        with self._sending:
            if self._server.stopping:
                return False
            try:
                self._send(BEGUN)
            except OSError as error:
                raise OSError(
                    f"{frame.header.get('command')!r} is cancelled: its client has disconnected"
                ) from error
            self._socket.setblocking(False)
            self._sent_at = {HEARTBEAT: time.monotonic()}
            self._running = True
        answer = self._server.run(frame, self._progress)
        with self._sending:
            self._running = False
            try:
                self._send(answer)
            except ControlError as error:
                self._send(Frame(error_to_header(error)))
        return True

    def _send(self, frame: Frame) -> None:
        data = pack_frame(frame)
        self._socket.settimeout(STOP_TIMEOUT_S if self._server.stopping else SEND_TIMEOUT_S)
        self._socket.sendall(data)

    def _progress(self, what: str, done: int, total: int) -> None:
        """Report progress now and then, and never wait for the client: a report may be lost."""
        if not self._sending.acquire(blocking=False):
            return
        try:
            now = time.monotonic()
            if self._running and now - self._sent_at.get(what, -PROGRESS_S) >= PROGRESS_S:
                self._sent_at[what] = now
                data = pack_frame(Frame({"progress": [what, done, total]}))
                if self._socket.send(data) < len(data):
                    self.hang_up()  # half a frame is out
        except OSError:
            pass  # the client has gone, or reads too slowly
        finally:
            self._sending.release()

    def beat(self) -> None:
        """Tell the client of a command that has reported nothing for a while that it is at work."""
        if self._running and time.monotonic() - max(self._sent_at.values(), default=0.0) >= BEAT_S:
            self._progress(HEARTBEAT, 0, 0)

    def refuse(self, error: StratalogError) -> None:
        """Send an error if there is room for it, and close."""
        with suppress(OSError):
            self._socket.setblocking(False)
            self._socket.send(pack_frame(Frame(error_to_header(error))))
        self.close()

    def hang_up(self) -> None:
        """Wake the thread that receives or sends; it closes the connection."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def stop(self, thread: threading.Thread) -> None:
        """Receive nothing more; wait for the command that is running, but not long for the client."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)
        if not self._running:
            thread.join(STOP_TIMEOUT_S)
            if not self._running:
                self.hang_up()
        thread.join()

    def close(self) -> None:
        self._socket.close()
