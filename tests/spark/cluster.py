"""A Spark standalone cluster of real processes: a master, and workers with one core each.

They run on addresses of the loopback interface, every worker on one of its own, because Spark starts a
speculative attempt on another host only. Everything lives in one directory and ends with `stop`; only
processes started here are ever killed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyspark

PROGRAM = Path(__file__).with_name("cluster_driver.py")
CLASS = "org.apache.spark.deploy"
EXECUTOR = "CoarseGrainedExecutorBackend"
_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_SMALL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"


class Cluster:
    """Started when made; a context manager."""

    def __init__(self, directory: Path, *, workers: int = 2, limit_s: float = 240) -> None:
        self.directory = directory
        self._limit_s = limit_s
        self._started: list[subprocess.Popen[bytes]] = []
        try:
            self._start("master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            self.url = self._said("master", _URL)
            for number in range(1, workers + 1):
                where = ("--host", f"127.0.0.{number}", "--port", "0", "--webui-port", "0")
                size = ("--cores", "1", "--memory", "512m", "--work-dir", str(directory / f"work{number}"))
                self._start(f"worker{number}", "worker.Worker", *where, *size, self.url)
            for number in range(1, workers + 1):
                self._said(f"worker{number}", re.compile(r"(Successfully registered)"))
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self, name: str, kind: str, *arguments: str) -> None:
        home = Path(pyspark.__file__).parent
        environment = environment_of(home) | {
            "SPARK_DAEMON_MEMORY": "128m",
            "SPARK_DAEMON_JAVA_OPTS": _SMALL,
            "SPARK_LOCAL_DIRS": str(self.directory / "local"),
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / f"{name}.log", "wb") as log:
            self._started.append(
                subprocess.Popen(
                    [str(home / "bin" / "spark-class"), f"{CLASS}.{kind}", *arguments],
                    env=environment,
                    cwd=self.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _said(self, name: str, what: re.Pattern[str]) -> str:
        end = time.monotonic() + self._limit_s
        log = self.directory / f"{name}.log"
        while (found := what.search(log.read_text(errors="replace"))) is None:
            dead = [each.args for each in self._started if each.poll() is not None]
            assert not dead, f"{name} ended by itself:\n{log.read_text(errors='replace')}"
            assert time.monotonic() < end, f"{name} says nothing:\n{log.read_text(errors='replace')}"
            time.sleep(0.05)
        return found[1]

    def executors(self) -> list[int]:
        """The executors' JVMs that run now."""
        return [pid for pid in self._below() if EXECUTOR in command_of(pid)]

    def pythons(self) -> list[int]:
        """Their Python processes: the daemon of each, and the workers it forked."""
        return [pid for pid in self._below() if "pyspark.daemon" in command_of(pid)]

    def _below(self) -> Iterator[int]:
        return descendants([each.pid for each in self._started])

    def stop(self) -> None:
        """Executors first: their Python processes are in groups of their own."""
        doomed = [*self._below()]
        for each in self._started:
            signal_group(each.pid)
            each.wait(60)
        for pid in doomed:
            signal_one(pid)


class Driver:
    """A driver in a process of its own, told what to do line by line; see `cluster_driver`."""

    def __init__(
        self, master: str, log: Path, scratch: Path, conf: Mapping[str, object] | None = None
    ) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self.noise = scratch / "driver.err"
        with open(self.noise, "ab") as noise:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), master, str(log), str(scratch), json.dumps(dict(conf or {}))],
                env=environment_of(Path(pyspark.__file__).parent),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=noise,
                text=True,
                start_new_session=True,
            )

    def tell(self, what: str, **arguments: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """What it answered; AssertionError, with what it said besides, when it died."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the driver died:\n{self.noise.read_text(errors='replace')[-8000:]}"
        return json.loads(line)

    def ask(self, what: str, **arguments: object) -> Any:
        self.tell(what, **arguments)
        return self.answer()

    def kill(self) -> None:
        """The program, its JVM and its workers, at once."""
        below = [*descendants([self.process.pid])]
        signal_group(self.process.pid)
        for pid in below:
            signal_one(pid)
        self._close()

    def stop(self) -> None:
        """Let it end by itself."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(300)
        self._close()

    def _close(self) -> None:
        self.process.wait(60)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue


def environment_of(home: Path) -> dict[str, str]:
    """This process's, without what would lead Spark elsewhere."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    said = {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return inherited | said | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def descendants(roots: list[int]) -> Iterator[int]:
    """Every process below these, the nearest first."""
    children: dict[int, list[int]] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                parent = int((each / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(each.name))
    waiting = [child for root in roots for child in children.get(root, ())]
    while waiting:
        pid = waiting.pop(0)
        yield pid
        waiting += children.get(pid, ())


def signal_one(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def signal_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
