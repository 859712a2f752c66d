"""A scripted life of a store that touches every kind of file: what the crash suite interrupts everywhere."""

from __future__ import annotations

from tests.crash.driver import Driver, Log

PLAIN: Log = ("plain", 0)
OTHER: Log = ("plain", 1)
WAITS: Log = ("waits", 0)
DOOMED: Log = ("doomed", 0)

SMALL = {"segment_bytes": 600, "index_interval_bytes": 100, "file_delete_delay_ms": 1000, "retention_ms": -1}


def run(driver: Driver) -> None:
    """Open, write in every way, roll, delete, close, open again, write again, close."""
    driver.open()
    driver.create_topic("plain", 2, key_index_enable=True, **SMALL)
    driver.create_topic("waits", 1, flush_messages=1, **SMALL)
    first_life(driver)
    driver.close()
    driver.open()
    driver.judge(driver.opened)
    second_life(driver)
    driver.close()
    driver.open()
    driver.judge(driver.opened)
    driver.append(PLAIN, sync=True)
    driver.check_doors()


def first_life(driver: Driver) -> None:
    driver.append(PLAIN, driver.fact(PLAIN, b"a"))
    driver.append(PLAIN, driver.fact(PLAIN, b"b"), sync=True)
    driver.append(WAITS, driver.fact(WAITS, b"a"))
    driver.append_many(PLAIN, [driver.fact(PLAIN, b"a", 40, lag_ms=at * 7) for at in range(6)])
    driver.append_many(PLAIN, [driver.fact(PLAIN, b"c", 90) for _ in range(12)], arrow=True)
    driver.append_many(WAITS, [driver.fact(WAITS, b"k", 60) for _ in range(12)])
    driver.append(OTHER, driver.fact(OTHER, b"a"))
    driver.roll(OTHER)
    driver.tick(5)
    driver.append(OTHER, sync=True)
    driver.append_batch(PLAIN, [driver.fact(PLAIN, b"p") for _ in range(3)], 7, 0)
    driver.append_batch(PLAIN, [driver.fact(PLAIN, b"p")], 7, 3, sync=True)
    driver.append_batch(WAITS, [driver.fact(WAITS, b"t") for _ in range(2)], 8, 0, transactional=True)
    driver.append_batch(PLAIN, [driver.fact(PLAIN, b"t") for _ in range(2)], 8, 0, transactional=True)
    driver.roll(PLAIN)
    driver.append(PLAIN, driver.fact(PLAIN, b"b"))
    driver.end_transaction(PLAIN, 8, commit=False)
    driver.end_transaction(WAITS, 8, commit=True)
    driver.append_many(PLAIN, [driver.fact(PLAIN, b"d", 120) for _ in range(4)], sync=True)
    driver.tick(20)
    driver.delete_records(PLAIN, 9)
    driver.tick(2000)
    driver.append(PLAIN, driver.fact(PLAIN, b"a"))
    driver.create_topic("doomed", 1, **SMALL)
    driver.append_many(DOOMED, [driver.fact(DOOMED, size=100) for _ in range(9)], sync=True)
    driver.delete_records(DOOMED, 5)
    driver.tick(11_000)  # checkpoints
    driver.append_batch(PLAIN, [driver.fact(PLAIN)], 9, 0, transactional=True)
    driver.append_many(OTHER, [driver.fact(OTHER, b"o", 150) for _ in range(9)])  # three segments, not synced


def second_life(driver: Driver) -> None:
    driver.append(PLAIN, driver.fact(PLAIN, b"a"))
    driver.delete_topic("doomed")
    driver.create_topic("doomed", 1, **SMALL)
    driver.append(DOOMED, sync=True)
    driver.end_transaction(PLAIN, 9, commit=False)
    driver.append_batch(PLAIN, [driver.fact(PLAIN, b"p")], 7, 4)
    driver.append(WAITS, driver.fact(WAITS, b"a"))
    driver.roll(WAITS)
    driver.alter_topic("plain", flush_messages=1)
    driver.append_many(PLAIN, [driver.fact(PLAIN, b"e", 80) for _ in range(8)])
    driver.delete_records(PLAIN, driver.logs[PLAIN].end - 1)
    driver.delete_records(WAITS, driver.logs[WAITS].end)
    driver.append(WAITS)
    driver.tick(11_000)
    driver.append(OTHER, driver.fact(OTHER, b"z", 300))
