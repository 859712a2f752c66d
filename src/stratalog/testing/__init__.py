"""Shipped tools for testing programs that keep their data in Stratalog.

    MemoryFileSystem, SimulatedCrash   a filesystem that can be crashed at any call
    FailingFileSystem, Fault           one that fails on request
    ManualClock                        time that moves when told
    LogHistory, HistoryError           what was acknowledged, and the check that it is still there
    read_raw, committed                the log as its bytes say, by a plain second reader
    LockChecker, LockViolationError    locks that check their order and the I/O under them

Touches no disk by itself; everything here works on whatever filesystem it is handed.
"""

from __future__ import annotations

from stratalog.fs import FailingFileSystem, Fault, MemoryFileSystem, SimulatedCrash
from stratalog.testing.clock import ManualClock
from stratalog.testing.history import Fact, HistoryError, LogHistory
from stratalog.testing.locks import LockChecker, LockViolationError
from stratalog.testing.raw import RawBatch, committed, read_raw

__all__ = [
    "Fact",
    "FailingFileSystem",
    "Fault",
    "HistoryError",
    "LockChecker",
    "LockViolationError",
    "LogHistory",
    "ManualClock",
    "MemoryFileSystem",
    "RawBatch",
    "SimulatedCrash",
    "committed",
    "read_raw",
]
