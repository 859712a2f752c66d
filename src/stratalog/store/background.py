"""The one background thread of a writable store: the control socket, and what time makes due."""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from stratalog.errors import StratalogError
from stratalog.log.context import logger
from stratalog.store.commands import SLOW_COMMANDS, run_command
from stratalog.store.control import (
    HEARTBEAT,
    Frame,
    Progress,
    error_to_header,
    listen,
    pack_frame,
    remove_address,
    take_frame,
)

if TYPE_CHECKING:
    from stratalog.store.store import Store

SEND_TIMEOUT_S = 10.0
PROGRESS_S = 0.2
BEAT_S = 5.0


class Background:
    """Runs until `stop`. Errors of the work itself are logged; they never end the thread."""

    def __init__(self, store: Store, *, control: bool) -> None:
        self._store = store
        self._stopping = False
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._wake_lock = threading.Lock()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._connections: dict[socket.socket, bytearray] = {}
        self._served: deque[socket.socket] = deque()
        self._workers: set[threading.Thread] = set()
        self._beats: dict[threading.Thread, Callable[[], None]] = {}
        self._listener: socket.socket | None = None
        self.address: str | None = None
        if control:
            self._listen()
        self._thread = threading.Thread(target=self._run, name="stratalog-background", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        for each in self._store._partitions.online():
            try:
                self._listener, self.address = listen(each.path)
            except OSError as error:
                logger.warning("no control socket in %s: %s", each.path, error)
                continue
            self._selector.register(self._listener, selectors.EVENT_READ)
            return

    def wake(self) -> None:
        """Look now: something was rolled and wants to be synced."""
        with self._wake_lock, suppress(OSError):
            if self._wake_write >= 0:
                os.write(self._wake_write, b"w")

    def stop(self) -> None:
        """End the thread, waiting for what it is doing."""
        self._stopping = True
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        for worker in list(self._workers):
            worker.join()
        for connection in self._connections:
            connection.close()
        if self._listener is not None:
            self._listener.close()
        if self.address is not None:
            remove_address(self.address)
        self._selector.close()
        with self._wake_lock:  # a number that was given back may be anybody's file by the next wake
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_write = -1

    def _run(self) -> None:
        next_tick = time.monotonic()
        while not self._stopping:
            timeout = max(0.0, next_tick - time.monotonic())
            for key, _ in self._selector.select(timeout):
                if key.fileobj == self._wake_read:
                    with suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                    self._take_back()
                    next_tick = 0.0
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    self._serve(key.fileobj)  # type: ignore[arg-type]
            if self._stopping:
                return
            for beat in list(self._beats.values()):
                beat()
            if time.monotonic() >= next_tick:
                self._tick()
                next_tick = time.monotonic() + self._store._partitions.tick_interval_s()

    def _tick(self) -> None:
        try:
            self._store.tick()
        except Exception:  # noqa: BLE001 - the thread must live
            logger.exception("background work failed")

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        self._connections[connection] = bytearray()
        self._selector.register(connection, selectors.EVENT_READ)

    def _serve(self, connection: socket.socket) -> None:
        buffer = self._connections[connection]
        try:
            data = connection.recv(1 << 20)
            if not data:
                self._drop(connection)
                return
            buffer += data
            self._answer_frames(connection, buffer)
        except BlockingIOError:
            return
        except (OSError, StratalogError) as error:
            logger.warning("control connection dropped: %s", error)
            self._drop(connection)

    def _answer_frames(self, connection: socket.socket, buffer: bytearray) -> None:
        while (frame := take_frame(buffer)) is not None:
            if frame.header.get("command") in SLOW_COMMANDS:
                self._serve_aside(connection, frame)
                return
            self._send(connection, self._answer(frame, None))

    def _send(self, connection: socket.socket, frame: Frame) -> None:
        connection.settimeout(SEND_TIMEOUT_S)
        connection.sendall(pack_frame(frame))
        connection.setblocking(False)

    def _serve_aside(self, connection: socket.socket, frame: Frame) -> None:
        """Run long work in a thread of its own, which has the connection to itself until it has answered."""
        self._selector.unregister(connection)
        one_at_a_time = threading.Lock()  # several partitions at work may tell at once
        began = time.monotonic()
        sent_at: dict[str, float] = {}
        gone = False

        def progress(what: str, done: int, total: int) -> None:
            nonlocal gone
            now = time.monotonic()
            with one_at_a_time:
                if gone or now - sent_at.get(what, -PROGRESS_S) < PROGRESS_S:
                    return
                sent_at[what] = now
                try:
                    self._send(connection, Frame({"progress": [what, done, total]}))
                except OSError:
                    gone = True  # what it asked for is done all the same

        def beat() -> None:
            """Work that tells nothing for a while is still at work: the asker must not give up."""
            newest = max(sent_at.values(), default=began)
            if time.monotonic() - newest >= BEAT_S:
                progress(HEARTBEAT, 0, 0)

        def work() -> None:
            answer = self._answer(frame, progress)
            self._beats.pop(threading.current_thread(), None)
            try:
                with one_at_a_time:
                    if not gone:
                        self._send(connection, answer)
            except OSError as error:
                logger.warning("control connection dropped: %s", error)
            self._served.append(connection)
            self.wake()
            self._workers.discard(threading.current_thread())  # last: `stop` waits for those it finds here

        worker = threading.Thread(target=work, name="stratalog-command", daemon=True)
        self._workers.add(worker)
        self._beats[worker] = beat
        worker.start()

    def _take_back(self) -> None:
        """Listen again on connections whose long work is done; what they asked meanwhile is answered now."""
        while self._served:
            connection = self._served.popleft()
            self._selector.register(connection, selectors.EVENT_READ)
            try:
                self._answer_frames(connection, self._connections[connection])
            except (OSError, StratalogError) as error:
                logger.warning("control connection dropped: %s", error)
                self._drop(connection)

    def _answer(self, frame: Frame, progress: Progress | None) -> Frame:
        try:
            command, arguments = str(frame.header.get("command")), frame.header.get("arguments") or {}
            return Frame({"result": run_command(self._store, command, arguments, frame.payload, progress)})
        except StratalogError as error:
            return Frame(error_to_header(error))
        except Exception as error:  # noqa: BLE001 - the thread must live, the asker be told
            logger.exception("control command failed")
            return Frame(error_to_header(error))

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        self._connections.pop(connection, None)
        connection.close()
