"""Processes that compact for this one, so that a busy thread does not slow a network server's loop.

A round starts one when it needs one, gives it a task at a time, and ends it. It reads and writes files by
itself (`stratalog.log.clean.child`); what it made is swapped in here, like the result of any loan. One that
is silent for too long, or whose work is no longer needed, is killed: its files go with the loan.

Crash policy: a process holds nothing of the store and ends with its parent.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from stratalog.errors import StorageError
from stratalog.log.clean import child
from stratalog.log.clean.remote_compaction import Cleaned, CleaningTask
from stratalog.version import __version__

START_S = 30.0
"""One that is not ready after so long has not started."""
POLL_S = 0.1
END_S = 5.0
"""How long a killed process is waited for: one that hangs in a disk's driver dies when the disk answers."""
_CHUNK = 1 << 16

Heard = Callable[[bool], bool]
"""Called often, with whether the process was heard of since the last call; False when it should be ended."""


class ChildProcess:
    """One process. StorageError if it cannot be started, fails, or ends by itself."""

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self._received = b""
        with ExitStack() as undo:
            try:
                self._complaints = undo.enter_context(tempfile.TemporaryFile())
                code = (
                    "import json, os, sys; sys.path[:] = json.loads(sys.argv[1]);"
                    f"from {child.main.__module__} import main; main(int(sys.argv[2]))"
                )
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", code, json.dumps(sys.path), str(os.getpid())],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._complaints,
                    bufsize=0,
                    start_new_session=True,  # Ctrl-C is for the parent, which ends it
                )
            except (OSError, ValueError) as error:
                raise StorageError(f"a process that compacts cannot be started: {error}") from error
            undo.callback(self.close)
            os.set_blocking(self._pipes[0], False)  # one that is stopped reads nothing
            until_s = time.monotonic() + START_S
            ready = self._exchange(b"", lambda _: time.monotonic() < until_s and not stopping())
            if ready is None or ready.get("ready") != __version__:
                told = "it is not ready" if ready is None else f"it is another version: {ready.get('ready')}"
                raise StorageError(f"a process that compacts cannot be started: {told}")
            undo.pop_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def _pipes(self) -> tuple[int, int]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        return stdin.fileno(), stdout.fileno()

    def clean(
        self, task: CleaningTask, heard: Heard, progress: Callable[[int, int], None] | None
    ) -> Cleaned | None:
        """Have a task carried out; None as soon as ``heard`` is False: the process must be closed then."""
        order = json.dumps(task.to_json()).encode() + b"\n"
        answer = self._exchange(order, heard)
        while answer is not None and "at" in answer:
            if progress is not None:
                progress(*answer["at"])
            answer = self._exchange(b"", heard)
        if answer is None:
            return None
        if "cleaned" not in answer:
            raise StorageError(str(answer.get("failed", answer)))
        return Cleaned.from_json(answer["cleaned"])

    def _exchange(self, order: bytes, heard: Heard) -> dict[str, Any] | None:
        """Send an order and wait for the next line; None as soon as ``heard`` is False."""
        stdin, stdout = self._pipes
        poll = select.poll()
        poll.register(stdout, select.POLLIN)
        if order:
            poll.register(stdin, select.POLLOUT)
        was_heard = False
        while b"\n" not in self._received:
            if not heard(was_heard):
                return None
            was_heard = False
            ready = dict(poll.poll(POLL_S * 1000))
            if stdin in ready:
                with suppress(BlockingIOError, BrokenPipeError):
                    order = order[os.write(stdin, order[:_CHUNK]) :]
                if not order or not ready[stdin] & select.POLLOUT:
                    poll.unregister(stdin)
            if stdout in ready:
                data = os.read(stdout, _CHUNK)
                if not data:
                    raise StorageError(f"the process that compacts ended: {self._end()}")
                self._received += data
                was_heard = True
        heard(True)
        line, _, self._received = self._received.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise StorageError(f"the process that compacts answered {line[:200]!r}")
        return answer

    def _end(self) -> str:
        """Return how it ended: the last line it wrote as an error, or its status."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        status = self._process.returncode
        self._complaints.seek(0)
        said = self._complaints.read().decode(errors="replace").strip().rpartition("\n")[2]
        return f"status {status}" + (f": {said}" if said else "")

    def close(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._complaints.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)


class Children:
    """The processes of one round, as many as partitions are compacted at a time. Thread-safe."""

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self._stopping = stopping
        self._idle: list[ChildProcess] = []

    def take(self) -> ChildProcess:
        """Return a process that has nothing to do; StorageError if none can be started."""
        try:
            return self._idle.pop()
        except IndexError:
            return ChildProcess(self._stopping)

    def put_back(self, process: ChildProcess) -> None:
        """Keep a process for the next task of the round."""
        self._idle.append(process)

    def close(self) -> None:
        """End them all."""
        while self._idle:
            self._idle.pop().close()
