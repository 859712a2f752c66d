"""Kafka's protocol in the demonstration: the store is served, and a Kafka client produces and consumes.

The client is librdkafka (`confluent-kafka`), as it would talk to any cluster. Spark counts the topic later.
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaException, Producer

import stratalog
from demo.events import Events
from demo.screen import Screen
from demo.steps import Facts
from stratalog.broker import Broker

CLICKS = "clicks"
AT_MOST = 100_000
PATIENCE_S = 60.0


def run(screen: Screen, path: str, events: Events) -> Facts:
    """Serve the store, and let a Kafka client produce to it and read it back as a group."""
    count = min(events.count, AT_MOST)
    began = time.perf_counter()
    with stratalog.open(path) as store, stratalog.serve(store) as broker:
        ready_s = time.perf_counter() - began
        store.create_topic(CLICKS, partitions=2)
        produce_s = _produce(broker, events, count)
        began = time.perf_counter()
        found = _consume(broker, count)
        consume_s = time.perf_counter() - began
        ends = sum(store.topic(CLICKS).log_end_offset(each) for each in range(2))
    sent = sorted((record.key, record.value, record.timestamp) for record in events.batch(0, count, count))
    screen.check(
        "served",
        sorted(found) == sent and ends == count,
        f"{ends:,} records by a Kafka client in {produce_s:.1f} s, read by a group in {consume_s:.1f} s",
    )
    screen.row("a Kafka client", f"{count / produce_s / 1e6:.2f} M/s", f"{count:,} records, lz4, acks=all")
    return {
        "served": ends,
        "serve_ready_s": round(ready_s, 3),
        "serve_produce_s": round(produce_s, 3),
        "serve_consume_s": round(consume_s, 3),
    }


def _produce(broker: Broker, events: Events, count: int) -> float:
    """Return how long it took until all were acknowledged."""
    problems: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 5,
            "queue.buffering.max.messages": count + 1,
        }
    )

    def acknowledged(error: object, _: object) -> None:
        if error is not None:
            problems.append(error)

    began = time.perf_counter()
    for record in events.batch(0, count, count):
        producer.produce(
            CLICKS, record.value, record.key, timestamp=record.timestamp or 0, on_delivery=acknowledged
        )
    left = producer.flush(PATIENCE_S)
    taken_s = time.perf_counter() - began
    if left or problems:
        raise RuntimeError(f"{left} records are not acknowledged, {len(problems)} failed: {problems[:1]}")
    return taken_s


def _consume(broker: Broker, count: int) -> list[tuple[bytes | None, bytes | None, int]]:
    """Read as a group until there are ``count`` records, and commit."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "demo",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    found: list[tuple[bytes | None, bytes | None, int]] = []
    until = time.monotonic() + PATIENCE_S
    try:
        consumer.subscribe([CLICKS])
        while len(found) < count and time.monotonic() < until:
            for message in consumer.consume(10_000, timeout=0.2):
                if message.error() is not None:
                    raise KafkaException(message.error())
                found.append((message.key(), message.value(), message.timestamp()[1]))
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found
