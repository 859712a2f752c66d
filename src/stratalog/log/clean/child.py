"""A process that carries out cleaning tasks for its parent: a task per line comes in, its outcome goes out.

Both are JSON. The first line out is ``{"ready": version}``; while a task runs, a line a second says how far
it is, so a stopped one is noticed. The other side is `stratalog.store.lifecycle.children`.

Crash policy: it holds no lock and writes only into the directories of its tasks. It ends at once when its
parent closes the pipe or dies; what it leaves is removed with the parent's loan, or at the next start.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from stratalog.fs import HandleCache, RealFileSystem
from stratalog.log.clean.remote_compaction import CleaningTask, clean_elsewhere
from stratalog.log.context import LogContext
from stratalog.version import __version__

NICE = 10
BEAT_S = 1.0
OPEN_FILES = 64
_ATTEMPT = "child"


def main(parent: int) -> None:
    """Work until the parent, a process id, has no more to do."""
    with suppress(OSError):  # a service may not be allowed to
        os.nice(NICE)
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(tasks,), name="stratalog-parent", daemon=True).start()
    _tell({"ready": __version__})
    with ThreadPoolExecutor(1, thread_name_prefix="stratalog-cleaner") as pool:
        while os.getppid() == parent:  # a fork of the parent may hold the pipe open
            with suppress(queue.Empty):
                _carry_out(tasks.get(timeout=BEAT_S), pool, parent)
    os._exit(0)


def _carry_out(line: bytes, pool: ThreadPoolExecutor, parent: int) -> None:
    at = [0, 0]

    def progress(done: int, total: int) -> None:
        at[:] = done, total

    running = pool.submit(_outcome, line, progress)
    while True:
        try:
            _tell(running.result(BEAT_S))
        except TimeoutError:
            if os.getppid() != parent:
                os._exit(0)
            _tell({"at": at})
        else:
            return


def _listen(tasks: queue.SimpleQueue[bytes]) -> None:
    try:
        for line in sys.stdin.buffer:
            tasks.put(line)
    finally:
        os._exit(0)  # what is being written will not be used


def _tell(what: dict[str, Any]) -> None:
    try:
        sys.stdout.buffer.write(json.dumps(what).encode() + b"\n")
        sys.stdout.buffer.flush()
    except OSError:
        os._exit(0)


def _outcome(line: bytes, progress: Callable[[int, int], None]) -> dict[str, Any]:
    try:
        fs = RealFileSystem()
        context = LogContext(fs, HandleCache(fs, OPEN_FILES))
        try:
            task = CleaningTask.from_json(json.loads(line))
            return {"cleaned": clean_elsewhere(task, context, attempt=_ATTEMPT, progress=progress).to_json()}
        finally:
            context.handles.close()
    except Exception as error:  # noqa: BLE001 - the parent tells it
        return {"failed": str(error) or type(error).__name__}
