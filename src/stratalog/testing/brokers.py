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
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self

import stratalog
from stratalog.broker import Broker
from stratalog.errors import ClosedError, StratalogError
from stratalog.store import AdminClient, Store, Topic
from stratalog.testing.faults import Faults

HOST = "127.0.0.1"
STOP_S = 30.0
"""How long the end of a broker's process is waited for before it is killed."""


class LocalBroker:
    """A broker in a thread of this process, on a directory; it runs until `stop`, or to the end of ``with``.

    ``config`` has broker settings by Kafka's names; ``options`` are those of `stratalog.serve`.
    """

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
        self._options = options
        self._janitor = janitor
        self._port = port
        self._clones: list[LocalBroker] = []
        self._broker: Broker | None = None
        self._store: Store | None = None
        self._faults: Faults | None = None
        self._paused: threading.Event | None = None
        self._start()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {HOST}:{self._port} {self.directory}>"

    def _start(self) -> None:
        store = stratalog.open(self.directory, self._config, janitor=self._janitor)
        try:
            broker = Broker(store, HOST, self._port, **self._options)
        except BaseException:
            store.close()
            raise
        self._store, self._broker, self._faults = store, broker.start(), Faults(broker)
        self._port = broker.address.port

    @property
    def bootstrap_servers(self) -> str:
        """What clients are given as ``bootstrap.servers``."""
        return f"{HOST}:{self._port}"

    @property
    def broker(self) -> Broker:
        """The broker itself."""
        if self._broker is None:
            raise ClosedError(f"the broker on {self.directory} is stopped")
        return self._broker

    @property
    def store(self) -> Store:
        """The store that is served: a test may append to it and read from it directly."""
        if self._store is None:
            raise ClosedError(f"the broker on {self.directory} is stopped")
        return self._store

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, object] | None = None
    ) -> Topic:
        """Create a topic with settings by Kafka's names."""
        return self.store.create_topic(name, partitions, config)

    def clone(self, directory: str | os.PathLike[str] | None = None) -> LocalBroker:
        """Start another broker on a copy of this one as it is now.

        It has the same topics, records and committed offsets, and changes neither way are seen by the other.
        Without a directory it is beside this one. It stops with this one unless it is stopped before.
        """
        if directory is None:
            directory = f"{self.directory}-clone-{len(self._clones) + 1}"
        self.store.clone(directory)
        made = LocalBroker(directory, self._config, janitor=self._janitor, **self._options)
        self._clones.append(made)
        return made

    def stop(self) -> None:
        """Stop the broker and close its store; clones stop too. Do nothing if it is stopped."""
        while self._clones:
            self._clones.pop().stop()
        self.resume()
        broker, store = self._broker, self._store
        self._broker = self._store = None
        if broker is not None and store is not None:
            if self._faults is not None:
                self._faults.clear()
            broker.stop()
            store.close()

    def restart(self) -> None:
        """Stop and start again on the same port and directory; faults that were asked for are forgotten."""
        clones, self._clones = self._clones, []
        self.stop()
        self._clones = clones
        self._start()

    def pause(self) -> None:
        """Answer nobody until `resume`: connections stay open, and what is sent waits."""
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

    def fail_next(
        self,
        api: str,
        error: str,
        *,
        times: int | None = 1,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None:
        """Answer the next requests of an API with an error of Kafka's, without doing what they ask for.

        ``broker.fail_next("Produce", "NOT_ENOUGH_REPLICAS", times=2, topic="orders", partition=0)`` fails the
        records for one partition in the next two requests with some. ``times=None``: until `clear_faults`.
        """
        self._running_faults.fail_next(api, error, times=times, topic=topic, partition=partition)

    def delay_next(self, api: str, seconds: float, *, times: int | None = 1) -> None:
        """Do what the next requests of an API ask for after a time. Other connections go on."""
        self._running_faults.delay_next(api, seconds, times=times)

    def drop_next(
        self, api: str, *, when: Literal["before", "after"] = "before", times: int | None = 1
    ) -> None:
        """Close the connection of the next requests of an API, before or after doing what they ask for."""
        self._running_faults.drop_next(api, when=when, times=times)

    def clear_faults(self) -> None:
        """Forget all faults; requests that wait go on now."""
        self._running_faults.clear()

    @property
    def _running_faults(self) -> Faults:
        if self._broker is None or self._faults is None:
            raise ClosedError(f"the broker on {self.directory} is stopped")
        return self._faults

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class ProcessBroker:
    """A broker in a process of its own, so that `kill` is a real SIGKILL and `pause` a real SIGSTOP.

    It has no ``store``: records go through a client, topics through `create_topic` or `connect`. The process
    ends with the one that started it. ``module`` is what it runs, with the arguments of this one's `main`.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        config: Mapping[str, object] | None = None,
        *,
        port: int = 0,
        janitor: bool = False,
        module: str = "stratalog.testing.brokers",
        **options: Any,
    ) -> None:
        self.directory = Path(directory)
        """The store's directory: partitions as Kafka has them on disk."""
        self._config = config
        self._janitor = janitor
        self._options = options
        self._module = module
        self._port = port
        self._process: subprocess.Popen[str] | None = None
        self._clones: list[ProcessBroker] = []
        self._start()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {HOST}:{self._port} {self.directory}>"

    def _start(self) -> None:
        order = {
            "directory": str(self.directory),
            "config": None if self._config is None else dict(self._config),
            "port": self._port,
            "janitor": self._janitor,
            "options": self._options,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module, json.dumps(order)],
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

    @property
    def bootstrap_servers(self) -> str:
        """What clients are given as ``bootstrap.servers``."""
        return f"{HOST}:{self._port}"

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

    def clone(self, directory: str | os.PathLike[str] | None = None) -> ProcessBroker:
        """Start another broker, in another process, on a copy of this one as it is now."""
        if directory is None:
            directory = f"{self.directory}-clone-{len(self._clones) + 1}"
        if self._process is None:
            shutil.copytree(self.directory, directory, ignore=_sockets)
        else:
            self._ask("clone", str(directory))
        made = ProcessBroker(
            directory, self._config, janitor=self._janitor, module=self._module, **self._options
        )
        self._clones.append(made)
        return made

    def kill(self) -> None:
        """End the process with SIGKILL, at whatever it does."""
        process = self._running
        process.kill()
        process.wait()
        self._forget()

    def stop(self) -> None:
        """Stop the broker and close its store; clones stop too. Do nothing if it does not run."""
        while self._clones:
            self._clones.pop().stop()
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

    def restart(self) -> None:
        """Start again on the same port and directory; stop first if it runs. After a `kill` it recovers."""
        clones, self._clones = self._clones, []
        self.stop()
        self._clones = clones
        self._start()

    def pause(self) -> None:
        """Stop the process with SIGSTOP: connections stay open, and what is sent waits."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Go on after a `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def fail_next(
        self,
        api: str,
        error: str,
        *,
        times: int | None = 1,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None:
        """Answer the next requests of an API with an error of Kafka's; see `LocalBroker.fail_next`."""
        self._ask("fail_next", api, error, times=times, topic=topic, partition=partition)

    def delay_next(self, api: str, seconds: float, *, times: int | None = 1) -> None:
        """Do what the next requests of an API ask for after a time. Other connections go on."""
        self._ask("delay_next", api, seconds, times=times)

    def drop_next(
        self, api: str, *, when: Literal["before", "after"] = "before", times: int | None = 1
    ) -> None:
        """Close the connection of the next requests of an API, before or after doing what they ask for."""
        self._ask("drop_next", api, when=when, times=times)

    def clear_faults(self) -> None:
        """Forget all faults; requests that wait go on now."""
        self._ask("clear_faults")

    def _ask(self, call: str, *arguments: object, **named: object) -> None:
        """Have the process do something, and raise its error here."""
        stdin = self._pipe("stdin")
        stdin.write(json.dumps([call, arguments, named]) + "\n")
        stdin.flush()
        line = self._pipe("stdout").readline()
        if not line:
            raise ClosedError(f"the broker's process ended before it did {call}")
        if line != "\n":
            error: StratalogError = pickle.loads(bytes.fromhex(line))
            raise error

    def _forget(self) -> None:
        for name in ("stdin", "stdout"):
            with contextlib.suppress(BrokenPipeError):
                getattr(self._process, name).close()
        self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _sockets(directory: str, names: list[str]) -> list[str]:
    """Return what a killed process leaves that cannot be copied."""
    return [name for name in names if Path(directory, name).is_socket()]


def main(order: str) -> None:
    """Be the process of a `ProcessBroker`: serve until the other end of stdin is closed."""
    told = json.loads(order)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test, which closes stdin
    with LocalBroker(
        told["directory"], told["config"], port=told["port"], janitor=told["janitor"], **told["options"]
    ) as broker:
        print(json.dumps({"port": broker.broker.address.port}), flush=True)
        for line in sys.stdin:
            call, arguments, named = json.loads(line)
            try:
                if call == "clone":
                    broker.store.clone(*arguments)
                else:
                    getattr(broker, call)(*arguments, **named)
                answer = b""
            except StratalogError as error:
                answer = pickle.dumps(error)
            print(answer.hex(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
