"""One run of the benchmark: both servers, the client that loads them, and topics that come and go."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

import confluent_kafka
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from bench.broker.servers import Server, admin
from bench.broker.sizes import PARTITIONS, Sizes
from bench.harness import Case, MismatchError, Row, Sample, take_turns
from bench.spark.cpu import process_seconds

Config = Mapping[str, object]
HERE = Path(__file__).parent
CLIENT_S = 180.0
_numbers = count()


@dataclass(slots=True)
class Bench:
    """``directory`` is where both servers keep their data, on one filesystem."""

    sizes: Sizes
    repeat: int
    directory: Path
    servers: Sequence[Server]
    minutes: float = 10.0
    load: Path = field(init=False)
    librdkafka: str = field(init=False)
    _warm: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.load = build(self.directory)
        self.librdkafka = bundled_librdkafka()

    def say(self, text: str) -> None:
        """Progress, for people, on stderr."""
        print(f"bench: {text}", file=sys.stderr, flush=True)

    def turns(self, run: Callable[[Server], Sample], repeat: int | None = None) -> list[Row]:
        """Run one measurement on every server in turn."""
        cases = [Case(server.name, partial(run, server)) for server in self.servers]
        return take_turns(cases, repeat or self.repeat)

    def warm_up(self) -> None:
        """Warm the servers that were started since the last time."""
        for server in self.servers:
            if server.name not in self._warm:
                self.say(f"warming {server.name} up")
                self.warm(server)

    def start_again(self, server: Server) -> float:
        """Stop and start a server, also one that hangs or is gone; return how long it took to start."""
        self._warm.discard(server.name)
        server.stop()
        return server.start()

    def warm(self, server: Server) -> None:
        """Let a server serve every kind of load once: a JVM compiles what it runs often."""
        records = self.sizes.kib_records // 4
        with self.topic(server) as topic:
            for codec in ("none", "lz4"):
                self.client(server, "produce", topic, records, 1024, codec)
            self.client(server, "consume", topic, PARTITIONS, records)
            self.client(server, "requests", topic, PARTITIONS, 16, self.sizes.seconds, 1, 100)
        self._warm.add(server.name)

    def client(self, server: Server, what: str, *words: object) -> Sample:
        """Run our client; return its figures and the server's CPU seconds meanwhile."""
        where = [server.port] if what in ("requests", "fetch") else [self.librdkafka, server.port]
        return self.command(server, [self.load, what, *where, *words], json.loads)

    def command(
        self, server: Server, command: Sequence[object], figures: Callable[[str], Mapping[str, float]]
    ) -> Sample:
        """Run any client; return its figures and the server's CPU seconds meanwhile."""
        before = process_seconds(server.pid)
        done = subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, check=False, timeout=CLIENT_S
        )
        used = process_seconds(server.pid) - before
        if done.returncode:
            raise MismatchError(f"{server.name}: {done.stderr.strip() or done.stdout.strip()}")
        return {**figures(done.stdout), "cpu_s": used}

    @contextmanager
    def topic(
        self, server: Server, partitions: int = PARTITIONS, config: Config | None = None
    ) -> Iterator[str]:
        """A new topic, deleted afterwards."""
        name = f"bench-{next(_numbers)}"
        self.create(server, name, partitions, config or {})
        try:
            yield name
        finally:
            client = admin(server.port)  # ends what it does when it goes
            for done in client.delete_topics([name], operation_timeout=60).values():
                done.result(60)

    def create(self, server: Server, name: str, partitions: int, config: Config) -> None:
        """Create a topic; return when a client can write to all of its partitions."""
        settings = {key: str(value) for key, value in config.items()}
        client = admin(server.port)
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        for done in client.create_topics([new], operation_timeout=60, request_timeout=60).values():
            done.result(70)
        asked = {TopicPartition(name, number): OffsetSpec.latest() for number in range(partitions)}
        until_s = time.monotonic() + CLIENT_S
        while True:  # Kafka tells of leaders before they lead
            try:
                for found in client.list_offsets(asked, request_timeout=60).values():
                    found.result(70)
            except KafkaException as error:
                if time.monotonic() > until_s:
                    raise MismatchError(
                        f"{server.name}: {partitions} partitions are not led: {error}"
                    ) from error
                time.sleep(0.05)
            else:
                return

    def check(self, server: Server, topic: str, records: int, partitions: int = PARTITIONS) -> None:
        """MismatchError unless the topic has so many records."""
        client = Consumer({"bootstrap.servers": f"127.0.0.1:{server.port}", "group.id": "check"})
        try:
            ends = [
                client.get_watermark_offsets(TopicPartition(topic, each), timeout=30, cached=False)
                for each in range(partitions)
            ]
        finally:
            client.close()
        found = sum(end - start for start, end in ends)
        if found != records:
            raise MismatchError(f"{server.name}: {found:,} records in the topic, {records:,} were sent")


def build(directory: Path) -> Path:
    """Compile the client."""
    program = directory / "load"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise MismatchError("a C compiler is needed for the client")
    subprocess.run([compiler, "-O2", "-o", str(program), str(HERE / "load.c"), "-ldl"], check=True)
    return program


def bundled_librdkafka() -> str:
    """Return the library that confluent-kafka's wheel brings along."""
    beside = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    found = sorted(beside.glob("librdkafka-*.so*"))
    return str(found[0]) if found else "librdkafka.so.1"
