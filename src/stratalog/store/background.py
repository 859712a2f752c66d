"""The one background thread of a writable store: the control socket, and what time makes due."""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from stratalog.errors import StratalogError
from stratalog.log.context import logger
from stratalog.store.commands import run_command
from stratalog.store.control import (
    Frame,
    error_to_header,
    listen,
    pack_frame,
    remove_address,
    take_frame,
)

if TYPE_CHECKING:
    from stratalog.store.store import Store

SEND_TIMEOUT_S = 10.0


class Background:
    """Runs until `stop`. Errors of the work itself are logged; they never end the thread."""

    def __init__(self, store: Store, *, control: bool) -> None:
        self._store = store
        self._stopping = False
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._connections: dict[socket.socket, bytearray] = {}
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
        with suppress(OSError):
            os.write(self._wake_write, b"w")

    def stop(self) -> None:
        """End the thread, waiting for what it is doing."""
        self._stopping = True
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        for connection in self._connections:
            connection.close()
        if self._listener is not None:
            self._listener.close()
        if self.address is not None:
            remove_address(self.address)
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        next_tick = time.monotonic()
        while not self._stopping:
            timeout = max(0.0, next_tick - time.monotonic())
            for key, _ in self._selector.select(timeout):
                if key.fileobj == self._wake_read:
                    with suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                    next_tick = 0.0
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    self._serve(key.fileobj)  # type: ignore[arg-type]
            if self._stopping:
                return
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
            while (frame := take_frame(buffer)) is not None:
                answer = pack_frame(self._answer(frame))
                connection.settimeout(SEND_TIMEOUT_S)
                connection.sendall(answer)
                connection.setblocking(False)
        except BlockingIOError:
            return
        except (OSError, StratalogError) as error:
            logger.warning("control connection dropped: %s", error)
            self._drop(connection)

    def _answer(self, frame: Frame) -> Frame:
        try:
            command, arguments = str(frame.header.get("command")), frame.header.get("arguments") or {}
            return Frame({"result": run_command(self._store, command, arguments, frame.payload)})
        except StratalogError as error:
            return Frame(error_to_header(error))
        except Exception as error:  # noqa: BLE001 - the thread must live, the asker be told
            logger.exception("control command failed")
            return Frame(error_to_header(error))

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        self._connections.pop(connection, None)
        connection.close()
