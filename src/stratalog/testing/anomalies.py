"""What clients saw of a broker, and what is wrong with it: the checks of Jepsen's Kafka workload.

A history is a list of operations, those of one client in the order in which it began them. `find_anomalies`
is pure: operations in, anomalies out. Values must be unique over the history, so that a record can be told
from every other. Times are those of one clock, such as ``time.monotonic()`` of one machine; they decide only
what happened wholly before what.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

Log = tuple[str, int]
"""A topic and a partition."""
FOREVER = float("inf")
SHOWN = 5
"""How many examples the text of an anomaly has."""

Kind = Literal[
    "lost write",
    "unseen write",
    "duplicate",
    "inconsistent offset",
    "invented read",
    "failed read",
    "aborted read",
    "precommitted read",
    "torn transaction",
    "skipped poll",
    "non-monotonic poll",
    "non-monotonic send",
    "forgotten commit",
    "end beyond the data",
]


@dataclass(frozen=True, slots=True)
class Send:
    """One record that a producer sent."""

    client: str
    log: Log
    value: str
    offset: int | None = None
    """Where it was acknowledged."""
    outcome: Literal["acknowledged", "failed", "unknown"] = "acknowledged"
    """``failed`` means certainly not written; a time-out is ``unknown``."""
    idempotent: bool = True
    """False for a producer that may write a record twice when it retries."""
    transaction: str | None = None
    key: str | None = None
    """What compaction goes by."""


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """The end of a transaction. ``began`` and ``ended`` are when the client asked and was answered."""

    transaction: str
    outcome: Literal["committed", "aborted", "unknown"]
    began: float = 0.0
    ended: float = 0.0


class Polled(NamedTuple):
    """One record as a consumer got it."""

    log: Log
    offset: int
    value: str


@dataclass(frozen=True, slots=True)
class Poll:
    """What one call of a consumer returned."""

    client: str
    records: tuple[Polled, ...]
    committed_only: bool = True
    """True for ``isolation.level=read_committed``."""
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class Seek:
    """A consumer was assigned partitions, or moved: its next poll need not go on where its last one ended."""

    client: str
    logs: tuple[Log, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """A group's committed offset was set."""

    group: str
    log: Log
    offset: int
    outcome: Literal["acknowledged", "failed", "unknown"] = "acknowledged"
    began: float = 0.0
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class CommitFetch:
    """A fetch of a group's committed offset; None if the group had none."""

    group: str
    log: Log
    offset: int | None
    began: float = 0.0
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class LogEnd:
    """A partition after everything else, read from its start until nothing more came.

    ``position`` is where the reader ended, ``high_watermark`` where the broker said that it would.
    """

    log: Log
    log_start: int
    high_watermark: int
    position: int
    compacted: bool = False


Operation = Send | TransactionEnd | Poll | Seek | Commit | CommitFetch | LogEnd


class Anomaly(NamedTuple):
    """One kind of thing that is wrong in one place, with how often and a few examples."""

    kind: Kind
    where: str
    times: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {self.times - len(self.examples)} more" if self.times > len(self.examples) else ""
        return f"{self.kind} in {self.where}: {'; '.join(self.examples)}{more}"


@dataclass(slots=True)
class _Log:
    """The facts about one partition in the whole history."""

    values: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By offset: every value that was acknowledged or polled there."""
    polled: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """By value: every offset at which it was polled."""
    sends: list[Send] = field(default_factory=list)
    end: LogEnd | None = None

    @property
    def start(self) -> int:
        return 0 if self.end is None else self.end.log_start


def find_anomalies(operations: Iterable[Operation]) -> list[Anomaly]:
    """Return what is wrong with a history, the worst first; an empty list if nothing is."""
    return _Check(list(operations)).run()


class _Check:
    """One history while it is checked."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations
        self._logs: dict[Log, _Log] = defaultdict(_Log)
        self._sends: dict[str, Send] = {}
        self._ends: dict[str, TransactionEnd] = {}
        self._polls: list[Poll] = []
        self._found: dict[tuple[Kind, str], list[str]] = defaultdict(list)
        for each in operations:
            if isinstance(each, Send):
                if each.value in self._sends:
                    raise ValueError(f"the value {each.value!r} was sent twice: values must be unique")
                self._sends[each.value] = each
                self._logs[each.log].sends.append(each)
                if each.offset is not None and each.outcome == "acknowledged":
                    self._logs[each.log].values[each.offset].add(each.value)
            elif isinstance(each, TransactionEnd):
                self._ends[each.transaction] = each
            elif isinstance(each, Poll):
                self._polls.append(each)
                for record in each.records:
                    log = self._logs[record.log]
                    log.values[record.offset].add(record.value)
                    log.polled[record.value].add(record.offset)
            elif isinstance(each, LogEnd):
                self._logs[each.log].end = each

    def run(self) -> list[Anomaly]:
        """Make every check."""
        for log, facts in self._logs.items():
            self._missing(log, facts)
            self._offsets(log, facts)
        self._duplicates()
        self._reads()
        self._torn()
        self._order_of_polls()
        self._order_of_sends()
        self._commits()
        order = list(Kind.__args__)  # type: ignore[attr-defined]
        found = [
            Anomaly(kind, where, len(texts), tuple(texts[:SHOWN]))
            for (kind, where), texts in self._found.items()
        ]
        return sorted(found, key=lambda each: (order.index(each.kind), each.where))

    def _note(self, kind: Kind, where: str, text: str) -> None:
        self._found[kind, where].append(text)

    # -- writes ----------------------------------------------------------------------------------------

    def _outcome(self, send: Send) -> str:
        """Return what became of a record: a record of a transaction shares its fate."""
        if send.transaction is None or send.outcome == "failed":
            return send.outcome
        end = self._ends.get(send.transaction)
        if end is None or end.outcome == "unknown":
            return "unknown"
        if end.outcome == "aborted":
            return "aborted"
        return send.outcome

    def _missing(self, log: Log, facts: _Log) -> None:
        """Find acknowledged records that no reader got, and an end that no reader reaches."""
        seen = {offset for offsets in facts.polled.values() for offset in offsets}
        last = max(seen, default=-1)
        replaced = self._replaced(facts)
        for send in facts.sends:
            if self._outcome(send) != "acknowledged" or send.value in facts.polled or send.value in replaced:
                continue
            if send.offset is not None and send.offset < facts.start:
                continue  # deleted by retention
            kind: Kind = "lost write" if send.offset is not None and send.offset < last else "unseen write"
            self._note(kind, _name(log), f"{send.value!r}, acknowledged at {send.offset} to {send.client}")
        if facts.end is not None and facts.end.position < facts.end.high_watermark:
            told = f"the high watermark is {facts.end.high_watermark}, readers end at {facts.end.position}"
            self._note("end beyond the data", _name(log), told)

    def _replaced(self, facts: _Log) -> set[str]:
        """Return the values that compaction may have removed: a later record has their key."""
        if facts.end is None or not facts.end.compacted:
            return set()
        last: dict[str, int] = {}
        for offset, values in facts.values.items():
            for key in {self._sends[value].key for value in values if value in self._sends}:
                if key is not None:
                    last[key] = max(last.get(key, -1), offset)
        return {
            send.value
            for send in facts.sends
            if send.key is not None and send.offset is not None and send.offset < last.get(send.key, -1)
        }

    def _offsets(self, log: Log, facts: _Log) -> None:
        for offset, values in sorted(facts.values.items()):
            if len(values) > 1:
                told = f"{offset} holds {' and '.join(map(repr, sorted(values)))}"
                self._note("inconsistent offset", _name(log), told)

    def _duplicates(self) -> None:
        places: dict[str, set[tuple[Log, int]]] = defaultdict(set)
        for log, facts in self._logs.items():
            for value, offsets in facts.polled.items():
                places[value] |= {(log, offset) for offset in offsets}
        for value, found in places.items():
            send = self._sends.get(value)
            if send is None:
                continue
            if send.offset is not None and self._outcome(send) == "acknowledged":
                found = found | {(send.log, send.offset)}
            if len(found) > 1 and (send.idempotent or send.transaction is not None):
                told = (
                    f"{value!r} is at {', '.join(f'{_name(log)}:{offset}' for log, offset in sorted(found))}"
                )
                self._note("duplicate", _name(send.log), told)

    # -- reads -----------------------------------------------------------------------------------------

    def _reads(self) -> None:
        for poll in self._polls:
            for record in poll.records:
                send = self._sends.get(record.value)
                told = f"{record.value!r} at {record.offset}, to {poll.client}"
                if send is None or send.log != record.log:
                    self._note("invented read", _name(record.log), told)
                elif send.outcome == "failed":
                    self._note("failed read", _name(record.log), told)
                elif send.transaction is not None and poll.committed_only:
                    end = self._ends.get(send.transaction)
                    if end is None or end.outcome == "aborted":
                        self._note("aborted read", _name(record.log), told)
                    elif poll.ended < end.began:
                        self._note("precommitted read", _name(record.log), told)

    def _torn(self) -> None:
        """Find transactions of unknown end that readers of committed records saw in part, at the end."""
        whole: dict[str, list[Send]] = defaultdict(list)
        for send in self._sends.values():
            if send.transaction is not None and send.outcome == "acknowledged":
                whole[send.transaction].append(send)
        seen = {each.value for poll in self._polls if poll.committed_only for each in poll.records}
        for transaction, sends in whole.items():
            end = self._ends.get(transaction)
            if end is None or end.outcome == "aborted":
                continue
            kept = [each for each in sends if self._is_kept(each)]
            missing = [each.value for each in kept if each.value not in seen]
            if missing and len(missing) < len(kept):
                there = len(kept) - len(missing)
                told = f"{transaction}: {there} of {len(kept)} records, without {missing[0]!r}"
                self._note("torn transaction", _name(kept[0].log), told)

    def _is_kept(self, send: Send) -> bool:
        facts = self._logs[send.log]
        known_end = facts.end is not None and not facts.end.compacted
        return known_end and send.offset is not None and send.offset >= facts.start

    # -- order -----------------------------------------------------------------------------------------

    def _order_of_polls(self) -> None:
        position: dict[tuple[str, Log], int] = {}
        known = {log: sorted(facts.values) for log, facts in self._logs.items()}
        for each in self._operations:
            if isinstance(each, Seek):
                for log in each.logs:
                    position.pop((each.client, log), None)
            elif isinstance(each, Poll):
                inside: set[Log] = set()
                for record in each.records:
                    how = "within a poll" if record.log in inside else "between polls"
                    inside.add(record.log)
                    before = position.get((each.client, record.log))
                    position[each.client, record.log] = record.offset
                    if before is None:
                        continue
                    told = f"{before} → {record.offset} {how}, {each.client}"
                    if record.offset <= before:
                        self._note("non-monotonic poll", _name(record.log), told)
                    elif self._skipped(record.log, known[record.log], before, record.offset, each):
                        self._note("skipped poll", _name(record.log), told)

    def _skipped(self, log: Log, known: list[int], before: int, after: int, poll: Poll) -> bool:
        """Return whether a record that this consumer was to get lies between two offsets that it got."""
        facts = self._logs[log]
        if facts.end is not None and facts.end.compacted:
            return False
        for offset in _between(known, max(before + 1, facts.start), after):
            for value in facts.values[offset]:
                send = self._sends.get(value)
                if send is None:
                    continue
                if not poll.committed_only or self._outcome(send) == "acknowledged":
                    return True
        return False

    def _order_of_sends(self) -> None:
        sends: dict[tuple[str, Log], list[Send]] = defaultdict(list)
        for each in self._sends.values():
            if each.outcome == "acknowledged" and each.offset is not None and each.idempotent:
                sends[each.client, each.log].append(each)
        for (client, log), those in sends.items():
            for one, other in pairwise(those):
                if other.offset <= one.offset:  # type: ignore[operator]
                    told = f"{one.value!r} at {one.offset}, then {other.value!r} at {other.offset}, {client}"
                    self._note("non-monotonic send", _name(log), told)

    # -- groups ----------------------------------------------------------------------------------------

    def _commits(self) -> None:
        """Find answers that no order of the commits explains: an offset is a register of its group."""
        commits: dict[tuple[str, Log], list[Commit]] = defaultdict(list)
        for each in self._operations:
            if isinstance(each, Commit) and each.outcome != "failed":
                commits[each.group, each.log].append(each)
        for each in self._operations:
            if isinstance(each, CommitFetch):
                made = commits[each.group, each.log]
                done = [one for one in made if one.outcome == "acknowledged" and one.ended < each.began]
                latest = max((one.began for one in done), default=-FOREVER)
                possible: set[int | None] = {
                    one.offset
                    for one in made
                    if one.began <= each.ended and (one.outcome == "unknown" or one.ended >= latest)
                }
                if not done:
                    possible.add(None)
                if each.offset not in possible:
                    wanted = " or ".join(map(str, sorted(map(str, possible))))
                    told = f"group {each.group} was told {each.offset}, not {wanted}"
                    self._note("forgotten commit", _name(each.log), told)


def _between(known: list[int], low: int, high: int) -> Iterator[int]:
    for at in range(bisect_left(known, low), len(known)):
        if known[at] >= high:
            return
        yield known[at]


def _name(log: Log) -> str:
    return f"{log[0]}-{log[1]}"
