"""A real Kafka 4.3.1, started and asked by tests: its jars, its broker, its dump tool.

The jars come from Maven Central once and stay in ``.cache/`` of the project; running this file fetches them,
which ``make interop`` does first. Everything the broker writes lives in the directory it is given. It listens
on loopback only, and a broker that is not stopped dies with the test process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

KAFKA_VERSION = "4.3.1"
ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / f"kafka-{KAFKA_VERSION}"
# for tests: a JVM that starts quickly and stays small
QUICK_START = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
CLUSTER_ID = "c3RyYXRhbG9nLXRlc3Rz"

# prctl(PR_SET_PDEATHSIG, SIGKILL), then the command: no broker outlives the test process
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
)
_LOG4J = """\
Configuration:
  Appenders:
    Console:
      name: STDOUT
      PatternLayout: {pattern: "[%d] %p %m (%c)%n"}
  Loggers:
    Root:
      level: LEVEL
      AppenderRef: {ref: STDOUT}
"""
_SERVER_DEFAULTS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # a killed broker is only let in again when its old session has run out
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "auto.create.topics.enable": "false",
    "log.cleaner.dedupe.buffer.size": str(16 * 2**20),
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
}
# Every line the dump tool prints about sound files. What it finds wrong it says in other words.
_GOOD_LINE = re.compile(
    r"Dumping .+"
    r"|Log starting offset: \d+"
    r"|baseOffset: \d+ .* isvalid: true"
    r"|\| offset: \d+ .*"
    r"|offset: \d+ position: \d+"
    r"|timestamp: -?\d+ offset: \d+"
    r"|.+ passed sanity check\."
    r"|.+ is empty\."
    r"|version: \d+ producerId: .*"
    r"|producerId: \d+ .*"
    # said of every segment that does not begin at offset 0, the broker's own too
    r"|Non-consecutive offsets in .+"
    r"|  -1 is followed by \d+",
    re.ASCII,
)


class KafkaError(Exception):
    """Kafka's jars could not be had, or a broker or tool did not do its part."""


def fetch() -> Path:
    """The directory with Kafka's jars, downloaded on first use; safe to call from several processes."""
    return fetch_jars(CACHE, "pom.xml", f"kafka_2.13-{KAFKA_VERSION}.jar", "Kafka's jars")


def fetch_jars(cache: Path, pom_name: str, proof: str, what: str, attempts: int = 3) -> Path:
    """What a pom beside this file names, in ``cache``; there when a file like ``proof`` is."""
    libs, ready = cache / "libs", cache / ".ready"
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / ".fetching", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pom = Path(__file__).with_name(pom_name)
        if ready.exists() and ready.stat().st_mtime >= pom.stat().st_mtime:
            return libs
        if shutil.which("mvn") is None:
            raise KafkaError(f"Maven (mvn) is needed to fetch {what}; run `make interop`")
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        command.append(f"-DoutputDirectory={libs}")
        for attempt in range(attempts):
            shutil.rmtree(libs, ignore_errors=True)
            done = subprocess.run(
                command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
            )
            if done.returncode == 0 and any(libs.glob(proof)):
                ready.touch()
                return libs
            time.sleep(2 * (attempt + 1))
        raise KafkaError(f"fetching {what} failed {attempts} times:\n{done.stdout[-2000:]}")


def java(*arguments: str, flags: Sequence[str] = QUICK_START, log_level: str = "WARN") -> list[str]:
    """The command line of a JVM with Kafka's jars; ``arguments`` begin with the class."""
    if shutil.which("java") is None:
        raise KafkaError("a JDK 17 or later (java) is needed; run `make interop`")
    libs = fetch()
    log4j = CACHE / f"log4j2-{log_level.lower()}.yaml"
    if not log4j.exists():
        draft = log4j.with_name(f"{log4j.name}.{os.getpid()}")
        draft.write_text(_LOG4J.replace("LEVEL", log_level))
        draft.replace(log4j)
    return ["java", *flags, f"-Dlog4j2.configurationFile={log4j}", "-cp", f"{libs}/*", *arguments]


def dump_log(files: Iterable[os.PathLike[str] | str], *flags: str, timeout_s: float = 120) -> str:
    """What Kafka's dump tool prints for ``files``, in the order given.

    It exits 0 on a bad CRC: judge the text. Any other exit status is its last line.
    """
    names = ",".join(os.fspath(file) for file in files)
    command = java("org.apache.kafka.tools.DumpLogSegments", "--files", names, *flags)
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout_s, check=False
    )
    text = done.stdout.decode("utf-8", "replace")
    return text if done.returncode == 0 else f"{text}\nexit status {done.returncode}\n"


def complaints(dump: str) -> list[str]:
    """The lines of a dump that are not plain, valid output: bad CRCs, wrong index entries, leftover bytes."""
    return [line for line in dump.split("\n") if line.strip() and not _GOOD_LINE.fullmatch(line)]


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class KafkaBroker:
    """One broker and controller in a JVM over ``data``; ``log_dir`` is its ``log.dirs`` entry.

    ``properties`` go over the defaults of ``server.properties``; ``flags`` are the JVM's. The same object can
    be started again after ``stop`` (clean, as SIGTERM) or ``kill`` (SIGKILL).
    """

    def __init__(
        self,
        data: Path,
        properties: Mapping[str, object] | None = None,
        flags: Sequence[str] = QUICK_START,
    ) -> None:
        self.data = data
        self._flags = flags
        self.log_dir = data / "logs"
        self.output = data / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        data.mkdir(parents=True, exist_ok=True)
        port, controller = free_ports(2)
        self.bootstrap = f"127.0.0.1:{port}"
        settings = {
            **_SERVER_DEFAULTS,
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": str(self.log_dir),
            **{name: str(value) for name, value in (properties or {}).items()},
        }
        self._properties = data / "server.properties"
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def __enter__(self) -> KafkaBroker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.running:
            self.kill()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The broker's process."""
        if self._process is None:
            raise KafkaError("this broker is not running")
        return self._process.pid

    def start(self, timeout_s: float = 60) -> None:
        """Returns when the broker answers with its own metadata; about 3 s."""
        if self.running:
            raise KafkaError("this broker is running already")
        if not (self.log_dir / "meta.properties").exists():
            self._format()
        server = java("kafka.Kafka", str(self._properties), flags=self._flags, log_level="INFO")
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _DIE_WITH_PARENT, *server],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            if not self.running or time.monotonic() > deadline:
                what = "did not answer in time" if self.running else "exited"
                self.kill()
                raise KafkaError(f"the broker {what}:\n{self.log_tail()}")

    def stop(self, timeout_s: float = 60) -> None:
        """A clean stop: the broker flushes, writes its checkpoints and ``.kafka_cleanshutdown``."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise KafkaError(f"the broker did not stop in {timeout_s} s:\n{self.log_tail()}") from None
        self._process = None

    def kill(self) -> None:
        """SIGKILL: nothing is flushed or checkpointed."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def log_tail(self, lines: int = 60) -> str:
        """The end of what the broker logged."""
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])

    def partition_dir(self, topic: str, partition: int = 0) -> Path:
        return self.log_dir / f"{topic}-{partition}"

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, object] | None = None
    ) -> None:
        """Makes the topic and waits until its partitions have directories."""
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        settings = {name: str(value) for name, value in (config or {}).items()}
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings)
        for future in admin.create_topics([new]).values():
            future.result(30)
        wait_until(
            lambda: all(
                (self.partition_dir(topic, p) / "partition.metadata").exists() for p in range(partitions)
            ),
            f"the directories of {topic}",
        )

    def producer(self, **settings: Any) -> Any:
        """A confluent-kafka producer; dots of Kafka's names are written as underscores."""
        from confluent_kafka import Producer

        names = {name.replace("_", "."): value for name, value in settings.items()}
        return Producer(
            {"bootstrap.servers": self.bootstrap, "acks": "all", "log.connection.close": False, **names}
        )

    def consume(
        self, topic: str, partition: int = 0, *, start: int = 0, isolation: str = "read_uncommitted"
    ) -> Iterator[Any]:
        """Every message of a partition from ``start`` to its end, as a consumer sees them."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "interop",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": isolation,
                "check.crcs": True,
                "log.connection.close": False,
            }
        )
        try:
            consumer.assign([TopicPartition(topic, partition, start)])
            deadline = time.monotonic() + 60
            while True:
                if time.monotonic() > deadline:
                    raise KafkaError(f"no messages of {topic}-{partition} in 60 s:\n{self.log_tail()}")
                for message in consumer.consume(10_000, timeout=0.2):
                    deadline = time.monotonic() + 60
                    error = message.error()
                    if error is None:
                        yield message
                    elif error.name() == "_PARTITION_EOF":
                        return
                    else:
                        raise KafkaError(f"consuming {topic}-{partition}: {error}")
        finally:
            consumer.close()

    def _format(self) -> None:
        command = java("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._properties))
        done = subprocess.run(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        if done.returncode != 0:
            raise KafkaError(f"formatting the broker's directories failed:\n{done.stdout[-2000:]}")

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        host, port = self.bootstrap.split(":")
        try:
            socket.create_connection((host, int(port)), 1).close()
        except OSError:
            time.sleep(0.05)
            return False
        try:
            return bool(AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(timeout=2).brokers)
        except KafkaException:
            return False


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    """Returns when ``condition`` holds; raises, naming ``what``, when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise KafkaError(f"waited {timeout_s} s for {what}")
        time.sleep(0.05)


if __name__ == "__main__":
    try:
        fetch()
    except KafkaError as error:
        sys.exit(f"interop: {error}")
    print(f"interop: Kafka {KAFKA_VERSION} is in .cache/kafka-{KAFKA_VERSION}")
