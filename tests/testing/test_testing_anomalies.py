"""Each check of the history checker on a tiny history: what it finds, and what it must not take for a bug."""

from __future__ import annotations

import pytest

from stratalog.testing import (
    Commit,
    CommitFetch,
    LogEnd,
    Operation,
    Poll,
    Polled,
    Seek,
    Send,
    TransactionEnd,
    find_anomalies,
)

LOG = ("orders", 0)


def send(value: str, offset: int | None = None, **more) -> Send:
    outcome = more.pop("outcome", "unknown" if offset is None else "acknowledged")
    return Send(more.pop("client", "p"), more.pop("log", LOG), value, offset, outcome, **more)


def poll(*records: tuple[int, str], client: str = "c", **more) -> Poll:
    return Poll(client, tuple(Polled(LOG, offset, value) for offset, value in records), **more)


def end(
    high_watermark: int, *, start: int = 0, position: int | None = None, compacted: bool = False
) -> LogEnd:
    position = high_watermark if position is None else position
    return LogEnd(LOG, start, high_watermark, position, compacted)


def kinds(*history: Operation) -> list[str]:
    return [each.kind for each in find_anomalies(history)]


A, B, C = send("a", 0), send("b", 1), send("c", 2)
ALL = poll((0, "a"), (1, "b"), (2, "c"))
TXN = send("t", 1, transaction="x")
SEEK = Seek("c", (LOG,))


@pytest.mark.parametrize(
    ("history", "wanted"),
    [
        pytest.param((A, B, C, ALL, end(3)), [], id="all is well"),
        pytest.param((A, B, C, poll((0, "a"), (2, "c"))), ["lost write", "skipped poll"], id="lost"),
        pytest.param((A, B, poll((0, "a"))), ["unseen write"], id="unseen"),
        pytest.param((A, B, poll((1, "b")), end(2, start=1)), [], id="deleted by retention is not lost"),
        pytest.param(
            (send("a", 0, key="k"), send("b", 1, key="k"), poll((1, "b")), end(2, compacted=True)),
            [],
            id="compacted is not lost",
        ),
        pytest.param(
            (send("a", 0, key="k"), send("b", 1, key="j"), poll((1, "b")), end(2, compacted=True)),
            ["lost write"],
            id="compaction may not remove the last of a key",
        ),
        pytest.param((A, send("u"), poll((0, "a"))), [], id="an unknown write may be missing"),
        pytest.param((A, send("u"), poll((0, "a"), (1, "u"))), [], id="an unknown write may be there"),
        pytest.param((A, poll((0, "a"), (1, "a"))), ["duplicate"], id="twice"),
        pytest.param((send("a", 5), poll((4, "a"))), ["duplicate"], id="acknowledged elsewhere than it is"),
        pytest.param(
            (send("a", 0, idempotent=False), poll((0, "a"), (1, "a"))), [], id="a retry without idempotence"
        ),
        pytest.param((A, send("b", 0, client="q"), poll((0, "a")), poll((0, "b"), client="d")),
                     ["inconsistent offset"], id="an offset given twice"),
        pytest.param((A, poll((0, "a"), (1, "z"))), ["invented read"], id="nobody sent it"),
        pytest.param(
            (send("a", 0, log=("other", 0)), poll((0, "a"))),
            ["unseen write", "duplicate", "invented read"],
            id="in another topic",
        ),
        pytest.param((send("f", outcome="failed"), poll((0, "f"))), ["failed read"], id="refused and there"),
        pytest.param((A, B, C, poll((0, "a"), (2, "c")), poll((1, "b"), client="d")), ["skipped poll"],
                     id="skipped within a poll"),
        pytest.param((A, B, C, poll((0, "a")), poll((2, "c")), poll((1, "b"), client="d")), ["skipped poll"],
                     id="skipped between polls"),
        pytest.param((A, C, poll((0, "a"), (2, "c"))), [], id="a gap in which nothing is"),
        pytest.param((A, B, C, poll((0, "a")), SEEK, poll((2, "c")), poll((1, "b"), client="d")), [],
                     id="a seek ahead"),
        pytest.param((A, B, poll((1, "b"), (0, "a"))), ["non-monotonic poll"], id="back within a poll"),
        pytest.param((A, B, poll((0, "a"), (1, "b")), poll((1, "b"))), ["non-monotonic poll"], id="again"),
        pytest.param((A, B, poll((0, "a"), (1, "b")), SEEK, poll((0, "a"))), [], id="a seek back"),
        pytest.param((B, A, poll((0, "a"), (1, "b"))), ["non-monotonic send"], id="sends in another order"),
        pytest.param((B, send("a", 0, client="q"), poll((0, "a"), (1, "b"))), [], id="two producers"),
        pytest.param((A, poll((0, "a")), end(9, position=1)), ["end beyond the data"], id="nothing to reach"),
    ],
)  # fmt: skip
def test_records(history: tuple[Operation, ...], wanted: list[str]) -> None:
    assert kinds(*history) == wanted


@pytest.mark.parametrize(
    ("history", "wanted"),
    [
        ((A, TXN, TransactionEnd("x", "committed", 1, 2), poll((0, "a"), (1, "t"), ended=3), end(3)), []),
        ((TXN, TransactionEnd("x", "aborted", 1, 2), poll((1, "t"), ended=3)), ["aborted read"]),
        ((TXN, poll((1, "t"), ended=3)), ["aborted read"]),
        ((TXN, TransactionEnd("x", "aborted", 1, 2), poll((1, "t"), committed_only=False)), []),
        ((TXN, TransactionEnd("x", "committed", 5, 6), poll((1, "t"), ended=3)), ["precommitted read"]),
        ((TXN, TransactionEnd("x", "committed", 2, 6), poll((1, "t"), ended=3)), []),
        ((A, TXN, TransactionEnd("x", "committed", 1, 2), C, poll((0, "a"), (2, "c"), ended=3)),
         ["lost write", "skipped poll"]),
        ((A, TXN, TransactionEnd("x", "aborted", 1, 2), C, poll((0, "a"), (2, "c"), ended=3)), []),
        ((TXN, send("s", 2, transaction="x"), TransactionEnd("x", "unknown", 1, 2), poll((1, "t"), ended=3),
          end(4)), ["torn transaction"]),
        ((TXN, send("s", 2, transaction="x"), TransactionEnd("x", "unknown", 1, 2), end(4)), []),
    ],
)  # fmt: skip
def test_transactions(history: tuple[Operation, ...], wanted: list[str]) -> None:
    assert kinds(*history) == wanted


def commit(offset: int, began: float, ended: float, outcome="acknowledged") -> Commit:
    return Commit("g", LOG, offset, outcome, began, ended)


@pytest.mark.parametrize(
    ("commits", "told", "wrong"),
    [
        ((commit(5, 1, 2),), 5, False),
        ((commit(5, 1, 2),), None, True),
        ((commit(5, 1, 2), commit(7, 3, 4)), 5, True),
        ((commit(5, 1, 2), commit(7, 3, 4)), 7, False),
        ((commit(5, 1, 4), commit(7, 3, 5)), 5, False),  # side by side: either may be the last
        ((commit(7, 1, 2), commit(5, 3, 4)), 5, False),  # a group may go back
        ((commit(5, 1, 2), commit(7, 3, 4, "unknown")), 7, False),
        ((commit(5, 1, 2), commit(7, 3, 4, "unknown")), 5, False),
        ((commit(5, 1, 2), commit(7, 3, 4, "failed")), 7, True),
        ((commit(5, 9, 15),), None, False),  # while it is asked for
        ((commit(5, 9, 15),), 5, False),
        ((commit(5, 20, 21),), 5, True),  # after it was asked for
        ((), None, False),
        ((), 3, True),
    ],
)
def test_commits(commits: tuple[Commit, ...], told: int | None, wrong: bool) -> None:
    found = kinds(*commits, CommitFetch("g", LOG, told, 10, 12), CommitFetch("other", LOG, None, 10, 12))
    assert found == (["forgotten commit"] if wrong else [])


def test_the_text_names_the_place_and_a_few_examples() -> None:
    sends = [send(str(at), at) for at in range(9)]
    [found] = find_anomalies([*sends, poll((8, "8"))])
    assert (found.kind, found.where, found.times) == ("lost write", "orders-0", 8)
    assert str(found).startswith("lost write in orders-0: '0', acknowledged at 0 to p; '1'")
    assert str(found).endswith(" and 3 more")


def test_values_must_tell_records_apart() -> None:
    with pytest.raises(ValueError, match="'a' was sent twice"):
        find_anomalies([A, send("a", 3)])
