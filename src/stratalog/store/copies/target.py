"""A new store in the making: a directory that gets its name when everything in it is there.

It grows as `<target>.building`, whose lock is held meanwhile; then its root files are written, everything
is synced, and one rename gives it its name. A crash leaves the `.building` directory, which the next
attempt removes, and no store.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from stratalog.errors import InvalidArgumentError, StoreLockedError
from stratalog.format.metadata import id_to_text, new_id
from stratalog.format.settings import Settings, TopicSettings
from stratalog.fs import FileSystem
from stratalog.log.context import LogContext
from stratalog.log.names import partition_dir
from stratalog.store import logdir
from stratalog.store.copies.registry import BUILDING
from stratalog.store.copies.reports import PartitionCopy
from stratalog.store.logdir import LogDir


class NewStore:
    """The directory while it grows. Made by `new_store`."""

    def __init__(self, context: LogContext, building: str, target: str) -> None:
        self.context = context
        self.building = building
        self.target = target

    def partition_dir(self, topic: str, partition: int) -> str:
        return f"{self.building}/{partition_dir(topic, partition)}"

    def write_root(self, topics: Mapping[str, TopicSettings], copies: list[PartitionCopy]) -> None:
        """The settings, Kafka's checkpoints, and last of all that the store was closed in order."""
        where = LogDir(self.context, self.building)
        where.write_settings(Settings(1, dict(topics), {}))
        where.ensure_meta_properties(id_to_text(new_id()))
        ends = {(copy.topic, copy.partition): copy.end_offset for copy in copies}
        starts = {
            (copy.topic, copy.partition): copy.log_start_offset
            for copy in copies
            if copy.log_start_offset > 0
        }
        where.checkpoints.recovery_point.write(ends)
        where.checkpoints.log_start.write(starts)
        where.checkpoints.high_watermark.write(ends)
        where.read_state()
        where.mark_clean()


def check_target(fs: FileSystem, target: str) -> None:
    """A target is a name that is free, or an empty directory."""
    try:
        if fs.exists(target) and (not fs.stat(target).is_dir or fs.list_dir(target)):
            raise InvalidArgumentError(
                f"{target} is already there and not empty; give a new name, or move it away first"
            )
    except NotADirectoryError as error:
        raise InvalidArgumentError(f"{target}: a part of the path is not a directory") from error


@contextmanager
def new_store(context: LogContext, target: str) -> Iterator[NewStore]:
    """Build a store; on leaving the block in order it gets its name, else nothing of it is left."""
    fs = context.fs
    check_target(fs, target)
    building = target + BUILDING
    fs.make_dir(building)
    try:
        lock = fs.lock(f"{building}/{logdir.LOCK}", {"pid": os.getpid(), "started": int(time.time())})
    except StoreLockedError as error:
        raise StoreLockedError(
            f"{target} is being made by another process: {error}", pid=error.pid, control=error.control
        ) from error
    try:
        _clear(context, building)
        yield NewStore(context, building, target)
        fs.sync_dir(building)
        fs.rename(building, target)
        LogDir(context, target).sync_ancestors()
    except BaseException:
        if fs.exists(building):
            _clear(context, building)
            fs.remove_tree(building)
        raise
    finally:
        lock.release()


def _clear(context: LogContext, building: str) -> None:
    """Remove what an earlier attempt left; the lock file stays."""
    for name in context.fs.list_dir(building):
        path = f"{building}/{name}"
        if name == logdir.LOCK:
            continue
        if context.fs.stat(path).is_dir:
            for each in context.fs.list_dir(path):
                context.handles.forget(f"{path}/{each}")
            context.fs.remove_tree(path)
        else:
            context.fs.remove(path)
