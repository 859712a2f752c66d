"""Brokers for tests: one in a thread of this process, one in a process of its own that can be killed.

Both serve a real store in a directory, which is a Kafka directory, on a free port that they keep over
restarts. What a broker promises after a crash is what the store promises: nothing is changed here.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import IO, Any, Literal, Self, TypeVar

import stratalog
from stratalog.broker import Broker
from stratalog.errors import ClosedError, InvalidArgumentError, StratalogError
from stratalog.store import AdminClient, Store, Topic
from stratalog.testing.faults import Faults

T = TypeVar("T")

HOST = "127.0.0.1"
STOP_S = 30.0
"""How long `stop` waits for a broker's process before it kills it."""


class _TestBroker(ABC):
    """What both brokers have: a directory, a port that stays over restarts, clones and faults."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        config: Mapping[str, object] | None = None,
        *,
        port: int = 0,
        janitor: bool = False,
        **options: Any,
    ) -> None:
        self.directory = Path(directory)
        """The store's directory: partitions as Kafka has them on disk."""
        self._config = config
        self._janitor = janitor
        self._options = options
        self._port = port
        self._clones: list[Self] = []
        self._start()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {HOST}:{self._port} {self.directory}>"

    @abstractmethod
    def _start(self) -> None:
        """Start the broker and note its port."""

    @abstractmethod
    def _stop(self) -> None:
        """Stop the broker without its clones; do nothing if it does not run."""

    @abstractmethod
    def _copy_to(self, directory: str | os.PathLike[str]) -> None:
        """Copy the store as it is now to another directory."""

    @abstractmethod
    def _fault(self, method: str, *arguments: object, **named: object) -> None:
        """Call a method of the running broker's `Faults`."""

    @property
    def bootstrap_servers(self) -> str:
        """The value of ``bootstrap.servers`` for clients."""
        return f"{HOST}:{self._port}"

    def clone(self, directory: str | os.PathLike[str] | None = None) -> Self:
        """Start another broker on a copy of this one as it is now.

        It has the same topics, records and committed offsets; later changes to one of them do not affect the
        other. The default directory is beside this one. It stops with this one unless it is stopped before.
        """
        if directory is None:
            names = (f"{self.directory}-clone-{number}" for number in count(1))
            directory = next(name for name in names if not os.path.lexists(name))
        self._copy_to(directory)
        made = type(self)(directory, self._config, janitor=self._janitor, **self._options)
        self._clones.append(made)
        return made

    def stop(self) -> None:
        """Stop the broker and close its store; clones stop too. Do nothing if it does not run."""
        while self._clones:
            self._clones.pop().stop()
        self._stop()

    def restart(self) -> None:
        """Stop it if it runs, and start it on the same port and directory, without faults.

        After `ProcessBroker.kill` the store recovers.
        """
        self._stop()
        self._start()

    def fail_next(
        self,
        api: str,
        error: str,
        *,
        times: int | None = 1,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None:
        """Answer the next requests of an API with one of Kafka's errors, without doing what they ask for.

        ``broker.fail_next("Produce", "NOT_ENOUGH_REPLICAS", times=2, topic="orders", partition=0)`` fails the
        records for one partition in the next two requests that have some. ``times=None``: until
        `clear_faults`.
        """
        self._fault("fail_next", api, error, times=times, topic=topic, partition=partition)

    def delay_next(self, api: str, seconds: float, *, times: int | None = 1) -> None:
        """Delay the next requests of an API. Other connections go on."""
        self._fault("delay_next", api, seconds, times=times)

    def drop_next(
        self, api: str, *, when: Literal["before", "after"] = "before", times: int | None = 1
    ) -> None:
        """Close the connection of the next requests of an API, before or after doing what they ask for."""
        self._fault("drop_next", api, when=when, times=times)

    def clear_faults(self) -> None:
        """Remove all faults; delayed requests go on now."""
        self._fault("clear_faults")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class LocalBroker(_TestBroker):
    """A broker in a thread of this process, on a directory; it runs until `stop`, or to the end of ``with``.

    ``config`` has broker settings by Kafka's names; ``options`` are those of `stratalog.serve`.
    """

    _broker: Broker | None = None
    _store: Store | None = None
    _faults: Faults | None = None
    _paused: threading.Event | None = None

    def _start(self) -> None:
        store = stratalog.open(self.directory, self._config, janitor=self._janitor)
        try:
            broker = Broker(store, HOST, self._port, **self._options)
        except BaseException:
            store.close()
            raise
        self._store, self._broker, self._faults = store, broker.start(), Faults(broker)
        self._port = broker.address.port

    def _stop(self) -> None:
        self.resume()
        broker, store, faults = self._broker, self._store, self._faults
        self._broker = self._store = self._faults = None
        if broker is not None and store is not None and faults is not None:
            faults.clear_faults()
            broker.stop()
            store.close()

    def _copy_to(self, directory: str | os.PathLike[str]) -> None:
        self.store.clone(directory)

    def _fault(self, method: str, *arguments: object, **named: object) -> None:
        getattr(self._running(self._faults), method)(*arguments, **named)

    def _running(self, part: T | None) -> T:
        if part is None:
            raise ClosedError(f"the broker on {self.directory} is stopped")
        return part

    @property
    def broker(self) -> Broker:
        """The broker itself."""
        return self._running(self._broker)

    @property
    def store(self) -> Store:
        """The store that is served: a test may append to it and read from it directly."""
        return self._running(self._store)

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, object] | None = None
    ) -> Topic:
        """Create a topic with settings by Kafka's names."""
        return self.store.create_topic(name, partitions, config)

    def pause(self) -> None:
        """Stop answering until `resume`: connections stay open, and requests wait."""
        if self._paused is None:
            self._paused, reached = threading.Event(), threading.Event()
            paused = self._paused

            def wait() -> None:
                reached.set()
                paused.wait()

            self.broker.loop.call_soon(wait)
            reached.wait()

    def resume(self) -> None:
        """Go on after a `pause`."""
        if self._paused is not None:
            self._paused.set()
            self._paused = None


class ProcessBroker(_TestBroker):
    """A broker in a process of its own, so that `kill` is a real SIGKILL and `pause` a real SIGSTOP.

    It has no ``store``: records go through a client, topics through `create_topic` or `connect`. The process
    ends with the one that started it. ``module=`` names the module that it runs, with the arguments of
    `main`.
    """

    _process: subprocess.Popen[str] | None = None
    _paused = False

    def _start(self) -> None:
        options = dict(self._options)
        module = options.pop("module", "stratalog.testing.brokers")
        order = {
            "directory": str(self.directory),
            "config": None if self._config is None else dict(self._config),
            "port": self._port,
            "janitor": self._janitor,
            "options": options,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        line = self._pipe("stdout").readline()
        if not line:
            status = self._process.wait()
            self._forget()
            raise StratalogError(f"the broker's process ended with status {status} before it was ready")
        self._port = json.loads(line)["port"]

    def _stop(self) -> None:
        process = self._process
        if process is None:
            return
        self.resume()
        self._pipe("stdin").close()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._forget()

    def _copy_to(self, directory: str | os.PathLike[str]) -> None:
        if self._process is None:
            shutil.copytree(self.directory, directory, ignore=_sockets)
        else:
            self._ask("clone", str(directory))

    def _fault(self, method: str, *arguments: object, **named: object) -> None:
        self._ask(method, *arguments, **named)

    @property
    def pid(self) -> int:
        """The process; a killed or stopped broker has none."""
        return self._running.pid

    @property
    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise ClosedError(f"the broker on {self.directory} does not run")
        return self._process

    def _pipe(self, name: Literal["stdin", "stdout"]) -> IO[str]:
        pipe: IO[str] = getattr(self._running, name)
        return pipe

    def connect(self) -> AdminClient:
        """Return a client for what the command line does: topics, settings, verify."""
        return stratalog.connect(self.directory)

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, object] | None = None
    ) -> None:
        """Create a topic with settings by Kafka's names."""
        self._ask("create_topic", name, partitions, config)

    def kill(self) -> None:
        """End the process with SIGKILL, whatever it is doing."""
        process = self._running
        process.kill()
        process.wait()
        self._forget()

    def pause(self) -> None:
        """Stop the process with SIGSTOP: connections stay open, and requests wait."""
        self._running.send_signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """Go on after a `pause`."""
        self._running.send_signal(signal.SIGCONT)
        self._paused = False

    def _ask(self, call: str, *arguments: object, **named: object) -> None:
        """Make a call in the process; raise its error here."""
        stdin = self._pipe("stdin")
        if self._paused:
            raise InvalidArgumentError(
                f"the broker on {self.directory} is paused: call resume() before {call}"
            )
        line = ""
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps([call, arguments, named]) + "\n")
            stdin.flush()
            line = self._pipe("stdout").readline()
        if not line:
            status = self._running.wait()
            self._forget()
            raise ClosedError(f"the broker's process ended with status {status} before it did {call}")
        if line != "\n":
            error: Exception = pickle.loads(bytes.fromhex(line))
            raise error

    def _forget(self) -> None:
        for name in ("stdin", "stdout"):
            with contextlib.suppress(BrokenPipeError):
                getattr(self._process, name).close()
        self._process, self._paused = None, False


def _sockets(directory: str, names: list[str]) -> list[str]:
    """Return the sockets that a killed process left: they cannot be copied."""
    return [name for name in names if Path(directory, name).is_socket()]


def main(order: str) -> None:
    """Be the process of a `ProcessBroker`: serve until the other end of stdin is closed."""
    given = json.loads(order)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test, which closes stdin
    options = given.pop("options")
    with LocalBroker(**given, **options) as broker:
        print(json.dumps({"port": broker.broker.address.port}), flush=True)
        for line in sys.stdin:
            call, arguments, named = json.loads(line)
            try:
                if call == "clone":
                    broker.store.clone(*arguments)
                else:
                    getattr(broker, call)(*arguments, **named)
                answer = b""
            except Exception as error:  # noqa: BLE001 - it is raised where the call was made
                answer = pickle.dumps(error)
            print(answer.hex(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
