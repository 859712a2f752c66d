"""Moving a partition to another log directory.

The copy grows in a `-future` directory and is synced. Then the old directory is marked with
`stratalog.moved`, the copy gets its name by one rename, and the old directory is removed. A crash before
the rename leaves the old partition (its mark is taken off again) and a `-future` directory that the next
start removes; a crash after it leaves two directories of one name, of which the marked one goes.
"""

from __future__ import annotations

import uuid

from stratalog.fs import FileSystem
from stratalog.log.context import LogContext
from stratalog.store.logdir import LogDir

COPY_BYTES = 4 << 20
MOVED = "stratalog.moved"


def is_moved(fs: FileSystem, directory: str) -> bool:
    """Whether this partition was being moved elsewhere: where it has a twin, the twin counts."""
    return fs.exists(f"{directory}/{MOVED}")


def take_mark_off(fs: FileSystem, directory: str) -> None:
    """The move never happened: this is the partition after all."""
    fs.remove(f"{directory}/{MOVED}")
    fs.sync_dir(directory)


def move_partition(context: LogContext, directory: str, source: LogDir, target: LogDir) -> str:
    """Copy ``directory`` to ``target`` and give it its name there; returns the new directory."""
    fs = context.fs
    name = directory.rsplit("/", 1)[-1]
    future = target.file(f"{name[:200]}.{uuid.uuid4().hex}-future")
    final = target.file(name)
    target.mark_dirty()
    source.mark_dirty()
    fs.make_dir(future)
    for each in fs.list_dir(directory):
        context.handles.forget(f"{directory}/{each}")
        _copy(context, f"{directory}/{each}", f"{future}/{each}")
    fs.sync_dir(future)
    fs.sync_dir(target.path)
    fs.write_atomic(f"{directory}/{MOVED}", f"{final}\n".encode())
    fs.rename(future, final)
    fs.sync_dir(target.path)
    source.delete_partition(directory)
    return final


def _copy(context: LogContext, source: str, target: str) -> None:
    with context.fs.open(source, "r") as reading, context.fs.open(target, "x") as writing:
        size, at = reading.size(), 0
        while at < size:
            data = reading.pread(min(COPY_BYTES, size - at), at)
            if not data:
                break
            writing.pwrite(data, at)
            at += len(data)
        writing.sync()
