"""Files: a contract, the real ones, ones in memory that can be crashed, ones that fail on request; the lock.

The only room that touches a disk. ``contract`` says what is promised about durability and threads.
"""

from __future__ import annotations

from stratalog.fs.contract import (
    Buffer,
    File,
    FileStat,
    FileSystem,
    Lock,
    Mode,
)
from stratalog.fs.failing import FailingFileSystem, Fault
from stratalog.fs.handles import HandleCache, default_limit
from stratalog.fs.lock import DirectoryLock
from stratalog.fs.memory import MemoryFileSystem, SimulatedCrash, SurvivorMode
from stratalog.fs.real import RealFile, RealFileSystem

__all__ = [
    "Buffer",
    "DirectoryLock",
    "FailingFileSystem",
    "Fault",
    "File",
    "FileStat",
    "FileSystem",
    "HandleCache",
    "Lock",
    "MemoryFileSystem",
    "Mode",
    "RealFile",
    "RealFileSystem",
    "SimulatedCrash",
    "SurvivorMode",
    "default_limit",
]
