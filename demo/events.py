"""The events of the demonstration: each follows from its number, so that what is read can be checked.

Keys, times and amounts look random and are not. Times go up by a step and jump back and forth within a
second, as clocks of several machines would. Nothing here touches a disk.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.model import Record

DAY_MS = 86_400_000
JITTER_MS = 1_000
ACTIONS = (b"viewed", b"added to cart", b"ordered", b"paid", b"shipped", b"returned")
_ID = slice(7, 15)


@dataclass(frozen=True, slots=True)
class Events:
    """``count`` events spread over the day that ended at ``end_ms``, by ``customers`` customers."""

    count: int
    end_ms: int

    @property
    def customers(self) -> int:
        """About twenty events each."""
        return max(1, self.count // 20)

    def customer(self, number: int) -> int:
        return (number * 2_654_435_761 >> 9) % self.customers

    def key(self, number: int) -> bytes:
        return b"customer-%06d" % self.customer(number)

    def timestamp(self, number: int) -> int:
        """Never past the end: an event beyond the last one begins the day anew."""
        step = number % self.count * (DAY_MS - JITTER_MS) // self.count
        return self.end_ms - DAY_MS + step + number * 40_503 % JITTER_MS

    def record(self, number: int) -> Record:
        action = ACTIONS[number % 6]
        value = b'{"id":"%08d","action":"%s","article":%d,"cents":%d}' % (
            number,
            action,
            number * 48_271 % 99_991,
            number * 16_807 % 50_000,
        )
        return Record(value, self.key(number), (), self.timestamp(number))

    def batch(self, start: int, size: int, end: int) -> list[Record]:
        return [self.record(number) for number in range(start, min(start + size, end))]

    def of_customer(self, customer: int) -> list[int]:
        """The numbers of one customer's events, in order."""
        return [number for number in range(self.count) if self.customer(number) == customer]

    def between(self, since_ms: int, until_ms: int) -> list[int]:
        """The numbers of the events with times in [since, until), in order."""
        return [number for number in range(self.count) if since_ms <= self.timestamp(number) < until_ms]


def number_of(value: bytes) -> int:
    """The number an event carries."""
    return int(value[_ID])
