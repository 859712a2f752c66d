"""The list of files that wait to be removed, used by several threads at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from stratalog.fs import FileSystem
from stratalog.fs.handles import HandleCache
from stratalog.log.context import LogContext
from stratalog.log.segment.deletion import Deletions
from stratalog.testing import ManualClock, MemoryFileSystem
from tests.store.lifecycle_support import eventually
from tests.store.pausing import PausingFileSystem, Running


class Moment(float):
    """A time that lets something happen when it is first compared."""

    then: Callable[[], object] | None = None

    def __ge__(self, other: object) -> bool:
        if self.then is not None:
            then, self.then = self.then, None
            then()
        return float(self) >= other  # type: ignore[operator]


class Clock(ManualClock):
    """Tells a moment of the test's choice."""

    moment: Moment | None = None

    def monotonic_s(self) -> float:
        return super().monotonic_s() if self.moment is None else self.moment


def test_a_file_that_is_renamed_while_others_are_removed_waits_for_its_turn() -> None:
    fs, deletions, clock = PausingFileSystem(MemoryFileSystem()), Deletions(), Clock()
    context = LogContext(cast(FileSystem, fs), HandleCache(cast(FileSystem, fs)), clock)
    paths = [f"/p/{number:020d}.log" for number in range(3)]
    fs.make_dir("/p")
    for path in paths:
        fs.write_file(path, b"x", sync=True)
    deletions.rename(context, paths[:2], 0.0)
    pause = fs.pause_at("rename", f"{paths[2]}.deleted")
    renaming = Running(deletions.rename, context, paths[2:], 60.0)
    pause.wait_until_reached()

    def finish_renaming() -> None:
        pause.resume()
        eventually(lambda: len(deletions.waiting()) == 3)

    clock.moment = Moment(clock.monotonic_s() + 1)
    clock.moment.then = finish_renaming
    deletions.run(context)
    renaming.result()
    assert fs.list_dir("/p") == [f"{2:020d}.log.deleted"]
    assert deletions.waiting() == [f"{paths[2]}.deleted"]
