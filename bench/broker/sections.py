"""What is measured, each with the bars it must hold."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from bench.broker.bench import Bench, Config
from bench.broker.servers import KAFKA, OURS, Server, resident_mb
from bench.broker.sizes import PARTITIONS
from bench.harness import Bar, MismatchError, Row, Sample, Section
from tests.interop.kafka import java

Shape = tuple[str, int, int, str]
"""A name, records in thousandths of a size's, bytes of a record, codec."""
SHAPES: Sequence[Shape] = (
    ("1 KiB", 1000, 1024, "none"),
    ("100 B", 3000, 100, "none"),
    ("1 KiB, lz4", 1000, 1024, "lz4"),
)
MOVED = (("mb_s", "MB/s", ",.0f"), ("cpu_per_gb", "server CPU s/GB", ".2f"))
ASKED = (
    ("rate", "requests/s", ",.0f"),
    ("cpu_us", "server CPU µs a request", ".1f"),
    ("p50_us", "p50 µs", ",.0f"),
    ("p99_us", "p99 µs", ",.0f"),
)
FRAME_RECORDS = 64
"""Records of 1 KiB in each of our own frames: the 64 KiB of a busy producer's batch."""


def at_least(section: Section, figure: str, needed: float, what: str) -> Bar:
    """The bar "ours is at least so many times Kafka's", judged on medians."""
    return _bar(section, figure, needed, what, "at least", lambda ratio: ratio >= needed)


def at_most(section: Section, figure: str, allowed: float, what: str, told: str = "") -> Bar:
    """The bar "ours is at most so much of Kafka's", judged on medians."""
    return _bar(section, figure, allowed, what, "at most", lambda ratio: ratio <= allowed, told)


def _bar(
    section: Section,
    figure: str,
    limit: float,
    what: str,
    how: str,
    met: Callable[[float], bool],
    told: str = "",
) -> Bar:
    text = f"{what}: {how} {told or f'{limit:g}×'}"
    ours, theirs = section.figure(OURS, figure), section.figure(KAFKA, figure)
    if ours is None or not theirs:
        return Bar(text, "–", None)
    ratio = ours / theirs
    return Bar(text, f"{ratio:.2f}×" if ratio >= 0.1 else f"{ratio:.3f}×", met(ratio))


def _moved(sample: Sample) -> Sample:
    return {"mb_s": sample["mb_s"], "cpu_per_gb": sample["cpu_s"] / (sample["bytes"] / 1e9)}


def _asked(sample: Sample) -> Sample:
    figures = {name: sample[name] for name in ("rate", "p50_us", "p99_us")}
    return {**figures, "cpu_us": sample["cpu_s"] / sample["requests"] * 1e6}


# -- start ------------------------------------------------------------------------------------------------


def start(bench: Bench) -> Iterator[Section]:
    """From the command to a client that has its metadata, over data that is there."""
    section = Section("start", "Start to ready", (("seconds", "s", ".2f"),))
    bench.say(section.title)

    def run(server: Server) -> Sample:
        return {"seconds": bench.start_again(server)}

    section.rows = bench.turns(run, bench.sizes.starts)
    section.bars = [at_most(section, "seconds", 0.1, "start to ready")]
    yield section


# -- librdkafka -------------------------------------------------------------------------------------------


def produce(bench: Bench) -> Iterator[Section]:
    """By librdkafka in C, ``acks=all``."""
    yield from (_produce(bench, shape) for shape in SHAPES)


def _produce(bench: Bench, shape: Shape) -> Section:
    name, thousandths, size, codec = shape
    section = Section(f"produce, {name}", f"Produce by librdkafka, records of {name}", MOVED)
    bench.say(section.title)
    records = bench.sizes.kib_records * thousandths // 1000

    def run(server: Server) -> Sample:
        with bench.topic(server) as topic:
            found = bench.client(server, "produce", topic, records, size, codec)
            bench.check(server, topic, records)
        return _moved(found)

    section.rows = bench.turns(run)
    section.equal.append("each topic has as many records as were sent, after each run")
    if codec != "none":
        section.bars = [at_least(section, "mb_s", 1.0, "produce with librdkafka, lz4")]
    elif size >= 1024:
        section.bars = [
            at_least(section, "mb_s", 1.5, f"produce with librdkafka, {name}"),
            at_most(section, "cpu_per_gb", 0.35, "server CPU seconds for a GB produced"),
        ]
    else:
        section.bars = [at_least(section, "mb_s", 1.0, f"produce with librdkafka, {name}")]
    return section


def consume(bench: Bench) -> Iterator[Section]:
    """By librdkafka in C, from the page cache."""
    yield from (_consume(bench, shape) for shape in SHAPES)


def _consume(bench: Bench, shape: Shape) -> Section:
    name, thousandths, size, codec = shape
    section = Section(f"consume, {name}", f"Consume by librdkafka, records of {name}", MOVED)
    bench.say(section.title)
    records = bench.sizes.kib_records * thousandths // 1000
    with ExitStack() as stack:
        topics = {}
        for server in bench.servers:
            topics[server.name] = topic = stack.enter_context(bench.topic(server))
            bench.client(server, "produce", topic, records, size, codec)

        def run(server: Server) -> Sample:
            found = bench.client(server, "consume", topics[server.name], PARTITIONS, records)
            if found["bytes"] != records * size:
                raise MismatchError(f"{server.name}: {found['bytes']:,.0f} bytes were consumed")
            return _moved(found)

        section.rows = bench.turns(run)
    section.equal.append("every record came back, in each run")
    section.bars = [at_least(section, "mb_s", 1.0, f"consume with librdkafka, {name}")]
    if size >= 1024 and codec == "none":
        section.bars.append(at_most(section, "cpu_per_gb", 0.7, "server CPU seconds for a GB consumed"))
    return section


# -- frames of our own ------------------------------------------------------------------------------------


def frames(bench: Bench) -> Iterator[Section]:
    """Produce and Fetch frames from a client that does nothing else: what the servers can do."""
    made = Section("frames, in", f"Produce frames of {FRAME_RECORDS} × 1 KiB, 4 connections", MOVED)
    taken = Section("frames, out", "Fetch frames of 1 MiB, 4 connections", MOVED)
    bench.say("Produce and Fetch frames")
    sizes = bench.sizes

    def run(server: Server) -> Sample:
        with bench.topic(server) as topic:
            words = (topic, PARTITIONS, PARTITIONS, sizes.seconds, FRAME_RECORDS, 1024)
            found = bench.client(server, "requests", *words)
            sent = found["requests"] * FRAME_RECORDS * 1024
            read = bench.client(server, "fetch", topic, PARTITIONS, sent)
        fetched.setdefault(server.name, []).append(_moved(read))
        return _moved({**found, "bytes": sent})

    fetched: dict[str, list[Sample]] = {}
    made.rows = bench.turns(run)
    for name, samples in fetched.items():
        taken.rows.append(Row(name, {key: [each[key] for each in samples] for key in samples[0]}))
    yield from (made, taken)


# -- Kafka's own tools ------------------------------------------------------------------------------------


def tools(bench: Bench) -> Iterator[Section]:
    """Kafka's perf tools: the Java clients, as they come."""
    if not any(server.name == KAFKA for server in bench.servers):
        return
    made = Section("tools, produce", "Java: ProducerPerformance, records of 1 KiB", MOVED)
    taken = Section("tools, consume", "Java: ConsumerPerformance, records of 1 KiB", MOVED)
    bench.say("Kafka's perf tools")
    records = bench.sizes.java_records
    fetched: dict[str, list[Sample]] = {}

    def run(server: Server) -> Sample:
        where = f"127.0.0.1:{server.port}"
        with bench.topic(server) as topic:
            command = java(
                *("org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--throughput", "-1"),
                *("--num-records", str(records), "--record-size", "1024", "--bootstrap-server", where),
                *("--command-property", "acks=all", "batch.size=65536", "linger.ms=5"),
                flags=("-Xmx512m",),
            )
            found = bench.command(server, command, _producer_figures)
            bench.check(server, topic, records)
            command = java(
                *("org.apache.kafka.tools.ConsumerPerformance", "--topic", topic, "--hide-header"),
                *("--num-records", str(records), "--bootstrap-server", where),
                flags=("-Xmx512m",),
            )
            read = bench.command(server, command, _consumer_figures)
        total = {"bytes": records * 1024}
        fetched.setdefault(server.name, []).append(_moved({**read, **total}))
        return _moved({**found, **total})

    made.rows = bench.turns(run)
    for name, samples in fetched.items():
        taken.rows.append(Row(name, {key: [each[key] for each in samples] for key in samples[0]}))
    made.equal.append("each topic has as many records as were sent, after each run")
    made.bars = [at_least(made, "mb_s", 1.0, "Java's ProducerPerformance")]
    taken.bars = [at_least(taken, "mb_s", 1.0, "Java's ConsumerPerformance")]
    yield from (made, taken)


def _producer_figures(text: str) -> Sample:
    found = re.findall(r"records sent, .*?\(([\d.]+) MB/sec\)", text)
    if not found:
        raise MismatchError(f"ProducerPerformance: {text.strip()}")
    return {"mb_s": float(found[-1]) * (1 << 20) / 1e6}


def _consumer_figures(text: str) -> Sample:
    """The rate of fetching: a group's first rebalance waits longer on one server than on the other."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 10:  # start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, MB/s, …
            return {"mb_s": float(cells[8]) * (1 << 20) / 1e6}
    raise MismatchError(f"ConsumerPerformance: {text.strip()}")


# -- small requests ---------------------------------------------------------------------------------------


def requests(bench: Bench) -> Iterator[Section]:
    """One record of 100 bytes in a request, one request in flight on each connection."""
    needed = {16: 1.4, 64: 1.1}
    for connections in bench.sizes.connections:
        section = _requests(bench, connections)
        what = f"one-record requests, {connections} connections"
        section.bars = [
            at_least(section, "rate", needed.get(connections, 1.0), f"{what}, requests/s"),
            at_most(section, "cpu_us", 0.5, f"{what}, server CPU"),
            at_most(section, "p99_us", 0.8, f"{what}, p99"),
        ]
        yield section


def _requests(bench: Bench, connections: int, config: Config | None = None) -> Section:
    told = ", acknowledged after fsync" if config else ""
    name = f"{'fsync' if config else 'requests'}, {connections}"
    section = Section(name, f"One-record requests{told}, {_connections(connections)}", ASKED)
    bench.say(section.title)

    def run(server: Server) -> Sample:
        with bench.topic(server, config=config) as topic:
            words = (topic, PARTITIONS, connections, bench.sizes.seconds, 1, 100)
            found = bench.client(server, "requests", *words)
            bench.check(server, topic, int(found["requests"]))
        return _asked(found)

    section.rows = bench.turns(run)
    section.equal.append("each topic has as many records as requests were sent, after each run")
    return section


def _connections(count: int) -> str:
    return f"{count:,} connection{'s' * (count != 1)}"


def fsync(bench: Bench) -> Iterator[Section]:
    """The same where the topic asks for a sync before each answer: ``flush.messages=1`` on both."""
    for connections in bench.sizes.fsync_connections:
        section = _requests(bench, connections, {"flush.messages": 1})
        what = f"acknowledged after fsync, {_connections(connections)}, requests/s"
        section.bars = [at_least(section, "rate", 3.0, what)]
        yield section


# -- growth -----------------------------------------------------------------------------------------------


def partitions(bench: Bench) -> Iterator[Section]:
    """A topic of few and of many partitions: made, written by 16 connections, kept over a restart."""
    columns = (
        *(*ASKED[:2], ASKED[3], ("create_s", "created in s", ".2f")),
        *(("start_s", "start to ready, s", ".2f"), ("rss_mb", "resident MB", ",.0f")),
    )
    for count in bench.sizes.grown_partitions:
        section = Section(
            f"partitions, {count}", f"{count:,} partition{'s' * (count > 1)}, 16 connections", columns
        )
        bench.say(section.title)

        def run(server: Server, count: int = count) -> Sample:
            with ExitStack() as stack:
                bench.warm_up()  # it was started again
                began = time.monotonic()
                topic = stack.enter_context(bench.topic(server, count))
                create_s = time.monotonic() - began
                words = (topic, count, 16, bench.sizes.seconds, 1, 100)
                found = _asked(bench.client(server, "requests", *words))
                start_s = bench.start_again(server)
                figures = {"create_s": create_s, "start_s": start_s, "rss_mb": resident_mb(server.pid)}
            return {**found, **figures}

        section.rows = bench.turns(run, 1)
        yield section


def connections(bench: Bench) -> Iterator[Section]:
    """Few and many connections, each with a request in flight."""
    columns = (*ASKED, ("rss_mb", "resident MB", ",.0f"))
    for count in bench.sizes.grown_connections:
        section = Section(f"connections, {count}", f"{_connections(count)}", columns)
        bench.say(section.title)

        def run(server: Server, count: int = count) -> Sample:
            with bench.topic(server) as topic:
                words = (topic, PARTITIONS, count, bench.sizes.seconds, 1, 100)
                found = _asked(bench.client(server, "requests", *words))
            return {**found, "rss_mb": resident_mb(server.pid)}

        section.rows = bench.turns(run)
        yield section


def memory(bench: Bench) -> Iterator[Section]:
    """Resident memory right after loads of every kind."""
    section = Section("memory", "Memory after a load", (("rss_mb", "resident MB", ",.0f"),))
    bench.say(section.title)
    records = bench.sizes.kib_records // 2

    def run(server: Server) -> Sample:
        with bench.topic(server) as topic:
            bench.client(server, "produce", topic, records, 1024, "none")
            bench.client(server, "consume", topic, PARTITIONS, records)
            bench.client(server, "requests", topic, PARTITIONS, 64, bench.sizes.seconds, 1, 100)
            return {"rss_mb": resident_mb(server.pid)}

    section.rows = bench.turns(run)
    section.bars = [at_most(section, "rss_mb", 1 / 15, "resident memory, loaded", "1/15 (0.067×)")]
    section.notes.append("Kafka's heap is 1 GiB, as its scripts have it.")
    yield section


def soak(bench: Bench) -> Iterator[Section]:
    """Ours alone, for ``--minutes``: resident memory at the start, in the middle and at the end of a load."""
    moments = (("first_mb", "after a round"), ("middle_mb", "in the middle"), ("last_mb", "at the end"))
    columns = [(name, f"resident MB {when}", ",.1f") for name, when in moments]
    section = Section("soak", f"Memory over {bench.minutes:g} minutes of load", columns)
    bench.say(section.title)
    ours = bench.servers[0]
    seen: list[float] = []
    with bench.topic(ours, config={"retention.bytes": 64 << 20, "segment.bytes": 16 << 20}) as topic:
        until_s = time.monotonic() + bench.minutes * 60
        while time.monotonic() < until_s:
            bench.client(ours, "requests", topic, PARTITIONS, 64, 2.0, 1, 100)
            bench.client(ours, "requests", topic, PARTITIONS, 4, 1.0, FRAME_RECORDS, 1024)
            with bench.topic(ours) as other:
                bench.client(ours, "produce", other, 100_000, 1024, "lz4")
                bench.client(ours, "consume", other, PARTITIONS, 100_000)
            seen.append(resident_mb(ours.pid))
    figures = {"first_mb": seen[0], "middle_mb": seen[len(seen) // 2], "last_mb": seen[-1]}
    section.rows = [Row(OURS, {name: [value] for name, value in figures.items()})]
    ratio = figures["last_mb"] / figures["middle_mb"]
    text = f"resident memory over {bench.minutes:g} minutes: at the end at most 1.1× the middle"
    section.bars = [Bar(text, f"{ratio:.2f}×", ratio <= 1.1)]
    yield section


SECTIONS = {
    "start": start,
    "produce": produce,
    "consume": consume,
    "frames": frames,
    "tools": tools,
    "requests": requests,
    "fsync": fsync,
    "memory": memory,
    "connections": connections,
    "partitions": partitions,
}
"""In the order they run: what starts the servers again comes first and last."""
ONLY_ASKED = {"soak": soak}
"""What runs only where it is named."""
