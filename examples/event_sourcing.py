"""Event sourcing: accounts that are never overdrawn, whoever else appends, with snapshots.

    python examples/event_sourcing.py DIRECTORY --threads 4 --transfers 200

Events are the truth: a balance is what they add up to. A transfer is decided on the balances as of an offset
and appended only if the log still ends there; otherwise the new events are read and it is decided again. A
snapshot of all balances, kept in a compacted topic, saves reading the log from its start.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path

import stratalog
from stratalog.errors import ConflictError

ACCOUNTS = ("ann", "bob", "eve", "kim")
EVERY = 50
"""Events between two snapshots."""


@dataclass
class Bank:
    """The balances as of an offset."""

    events: stratalog.Topic
    snapshots: stratalog.Topic
    balances: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ACCOUNTS, 100))
    offset: int = 0

    def load(self) -> None:
        """Begin with the latest snapshot, if there is one."""
        saved = self.snapshots.get(b"bank")
        if saved is not None and saved.value is not None:
            state = json.loads(saved.value)
            self.balances, self.offset = state["balances"], state["offset"]

    def catch_up(self) -> None:
        """Apply the events that are new."""
        for record in self.events.read(partition=0, start=self.offset):
            event = json.loads(record.value or b"")
            self.balances[event["from"]] -= event["amount"]
            self.balances[event["to"]] += event["amount"]
            self.offset = record.offset + 1

    def transfer(self, giver: str, taker: str, amount: int) -> bool:
        """Move money if there is enough of it; False if not."""
        while True:
            self.catch_up()
            if self.balances[giver] < amount:
                return False
            event = json.dumps({"from": giver, "to": taker, "amount": amount}).encode()
            try:
                self.events.append(event, partition=0, expected_offset=self.offset)
            except ConflictError:
                continue  # somebody else was first: the balances may be others now
            if (self.offset + 1) % EVERY == 0:
                self.save()
            return True

    def save(self) -> None:
        self.catch_up()
        state = {"balances": self.balances, "offset": self.offset}
        self.snapshots.append(json.dumps(state).encode(), key=b"bank")


def opened(store: stratalog.Store) -> Bank:
    bank = Bank(
        store.create_topic("transfers", if_not_exists=True, config={"retention.ms": -1}),
        store.create_topic(
            "snapshots", if_not_exists=True, config={"cleanup.policy": "compact", "key.index.enable": True}
        ),
    )
    bank.load()
    bank.catch_up()
    return bank


def work(store: stratalog.Store, seed: int, transfers: int) -> None:
    chance, bank = random.Random(seed), opened(store)
    for _ in range(transfers):
        giver, taker = chance.sample(ACCOUNTS, 2)
        bank.transfer(giver, taker, chance.randint(1, 60))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--transfers", type=int, default=200, help="tried by each thread")
    options = parser.parse_args()
    with stratalog.open(options.directory) as store:
        threads = [
            threading.Thread(target=work, args=(store, seed, options.transfers))
            for seed in range(options.threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        bank = opened(store)
        print(json.dumps({"balances": bank.balances, "events": bank.offset}))


if __name__ == "__main__":
    main()
