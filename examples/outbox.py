"""An outbox: every order of an application takes effect once in another database, through kill -9.

    python examples/outbox.py DIRECTORY --orders 500

Three parts, each with a database or log of its own, that may die at any moment:

    application   writes an order and its event into its database, in one transaction
    relay         copies events from there into the log, in order, none twice
    billing       reads the log and adds up what each customer owes, in a database of its own

The relay knows from the last record of the log how far it got. Billing keeps the offset of its next record in
the same transaction as what the record changed. So nothing has to be written to two places at once.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import threading
from pathlib import Path

import stratalog

TOPIC = "orders"
CUSTOMERS = ("ann", "bob", "eve")


def connect(path: Path, schema: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, timeout=30)
    db.execute("PRAGMA journal_mode = WAL")
    db.executescript(schema)
    return db


def application(directory: Path, orders: int) -> None:
    """Take orders until there are enough of them."""
    db = connect(
        directory / "application.db",
        """
        CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT, amount INTEGER);
        CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY, event TEXT);
        """,
    )
    (done,) = db.execute("SELECT count(*) FROM orders").fetchone()
    for number in range(done + 1, orders + 1):
        customer, amount = CUSTOMERS[number % 3], number
        event = json.dumps({"order": number, "customer": customer, "amount": amount})
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO orders VALUES (?, ?, ?)", (number, customer, amount))
        db.execute("INSERT INTO outbox VALUES (?, ?)", (number, event))
        db.execute("COMMIT")
    db.close()


def relay(directory: Path, topic: stratalog.Topic, orders: int) -> None:
    """Copy events into the log; those before the last one in the log are there already."""
    db = connect(directory / "application.db", "")
    end = topic.log_end_offset(0)
    last = topic.at(end - 1) if end else None
    relayed = 0 if last is None else json.loads(last.value or b"")["order"]
    while relayed < orders:
        rows = []
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'outbox'").fetchone():
            rows = db.execute(
                "SELECT id, event FROM outbox WHERE id > ? ORDER BY id LIMIT 50", (relayed,)
            ).fetchall()
        if rows:
            topic.append_many([stratalog.Record(event.encode()) for _, event in rows], partition=0, sync=True)
            relayed = rows[-1][0]
            db.execute("DELETE FROM outbox WHERE id <= ?", (relayed,))
        else:
            threading.Event().wait(0.005)
    db.close()


def billing(directory: Path, topic: stratalog.Topic, orders: int) -> dict[str, int]:
    """Add up what each customer owes; the offset is kept with it."""
    db = connect(
        directory / "billing.db",
        """
        CREATE TABLE IF NOT EXISTS owed (customer TEXT PRIMARY KEY, amount INTEGER, orders INTEGER);
        CREATE TABLE IF NOT EXISTS position (one INTEGER PRIMARY KEY, next INTEGER);
        """,
    )
    saved = db.execute("SELECT next FROM position").fetchone()
    start = saved[0] if saved else 0
    if start < orders:
        for record in topic.read(partition=0, start=start, end=orders, follow=True):
            event = json.loads(record.value or b"")
            db.execute("BEGIN IMMEDIATE")
            db.execute(
                "INSERT INTO owed VALUES (?, ?, 1) ON CONFLICT (customer)"
                " DO UPDATE SET amount = amount + excluded.amount, orders = orders + 1",
                (event["customer"], event["amount"]),
            )
            db.execute("INSERT OR REPLACE INTO position VALUES (1, ?)", (record.offset + 1,))
            db.execute("COMMIT")
    owed = dict(db.execute("SELECT customer, amount FROM owed ORDER BY customer").fetchall())
    db.close()
    return owed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--orders", type=int, default=500)
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    with stratalog.open(options.directory / "log") as store:
        topic = store.create_topic(TOPIC, if_not_exists=True)
        threads = [
            threading.Thread(target=application, args=(options.directory, options.orders), daemon=True),
            threading.Thread(target=relay, args=(options.directory, topic, options.orders), daemon=True),
        ]
        for thread in threads:
            thread.start()
        owed = billing(options.directory, topic, options.orders)
        for thread in threads:
            thread.join()
    print(json.dumps(owed))


if __name__ == "__main__":
    main()
