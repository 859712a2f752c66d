"""Shipped tools for testing programs that keep their data in Stratalog, or talk to Kafka.

    LocalBroker, ProcessBroker         a real broker on a free port: in a thread, or a process to be killed
    find_anomalies, Send, Poll, …      what producers and consumers saw of a broker, and what is wrong with it
    MemoryFileSystem, SimulatedCrash   a filesystem that can be crashed at any call
    FailingFileSystem, Fault           one that fails on request
    ManualClock                        a clock that moves when the test moves it
    LogHistory, HistoryError           what was acknowledged, and the check that it is still there
    read_raw, committed                the log as its bytes say, by a plain second reader
    LockChecker, LockViolationError    locks that check their order and the I/O under them

pytest has the brokers as fixtures: `stratalog_broker` and `stratalog_broker_process` (`plugin`). Everything
is imported with its first use, so that the plugin costs other test runs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratalog.fs import FailingFileSystem, Fault, MemoryFileSystem, SimulatedCrash
    from stratalog.testing.anomalies import (
        Anomaly,
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
    from stratalog.testing.brokers import LocalBroker, ProcessBroker
    from stratalog.testing.clock import ManualClock
    from stratalog.testing.history import Fact, HistoryError, LogHistory
    from stratalog.testing.locks import LockChecker, LockViolationError
    from stratalog.testing.raw import RawBatch, committed, read_raw

_MODULES = {
    "stratalog.fs": ("FailingFileSystem", "Fault", "MemoryFileSystem", "SimulatedCrash"),
    "stratalog.testing.anomalies": (
        *("Anomaly", "Commit", "CommitFetch", "LogEnd", "Operation", "Poll", "Polled", "Seek", "Send"),
        *("TransactionEnd", "find_anomalies"),
    ),
    "stratalog.testing.brokers": ("LocalBroker", "ProcessBroker"),
    "stratalog.testing.clock": ("ManualClock",),
    "stratalog.testing.history": ("Fact", "HistoryError", "LogHistory"),
    "stratalog.testing.locks": ("LockChecker", "LockViolationError"),
    "stratalog.testing.raw": ("RawBatch", "committed", "read_raw"),
}
_FROM = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Anomaly",
    "Commit",
    "CommitFetch",
    "Fact",
    "FailingFileSystem",
    "Fault",
    "HistoryError",
    "LocalBroker",
    "LockChecker",
    "LockViolationError",
    "LogEnd",
    "LogHistory",
    "ManualClock",
    "MemoryFileSystem",
    "Operation",
    "Poll",
    "Polled",
    "ProcessBroker",
    "RawBatch",
    "Seek",
    "Send",
    "SimulatedCrash",
    "TransactionEnd",
    "committed",
    "find_anomalies",
    "read_raw",
]


def __getattr__(name: str) -> Any:
    if name in _FROM:
        return getattr(import_module(_FROM[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
