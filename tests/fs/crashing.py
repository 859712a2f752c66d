"""What the crash tests of this room share: a durable file to start from, and every outcome of a crash."""

from __future__ import annotations

import random
from collections.abc import Callable

from stratalog.fs import MemoryFileSystem, SurvivorMode

POWER_CUTS: tuple[SurvivorMode, ...] = ("drop", "torn", "reorder")
EVERY: tuple[SurvivorMode, ...] = ("kill", *POWER_CUTS)
ROUNDS = 300


def outcomes(fs: MemoryFileSystem, mode: SurvivorMode, look: Callable[[MemoryFileSystem], object]) -> set:
    """Everything ``look`` sees in many survivors."""
    return {look(fs.survivor(mode, random.Random(seed))) for seed in range(ROUNDS)}


def contents(path: str) -> Callable[[MemoryFileSystem], bytes | None]:
    return lambda fs: fs.read_file(path) if fs.exists(path) else None


def durable_file(data: bytes = b"", path: str = "/d/f") -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.make_dir("/d")
    fs.sync_dir("/")
    fs.write_file(path, data, sync=True)
    fs.sync_dir("/d")
    return fs
