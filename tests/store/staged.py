"""Staging by hand, as the tasks of a job would, for the tests of the journal."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import pyarrow as pa

import stratalog
from stratalog.format.journal import StagedFile
from stratalog.store.journal import staging

LIVE = staging.owner_of(os.getpid())
DEAD = f"{staging.host_name()}@{2**22 + 7}@1"
"""A number past the largest a process can have."""


def stage(
    store: stratalog.Store,
    query: str,
    batch: int,
    rows: Mapping[tuple[str, int], Sequence[bytes]],
    *,
    owner: str = LIVE,
    number: int = 0,
    timestamp: int | None = None,
) -> list[StagedFile]:
    """Stage values for partitions; the key of each is its value's first byte."""
    context = store.partitions.context
    attempt = staging.Attempt(
        context.fs,
        staging.Place(query, batch, owner),
        lambda topic: staging.facts_of(store, topic),
        number=number,
        now_ms=context.clock.now_ms,
    )
    for (topic, partition), values in rows.items():
        attempt.add(topic, partition, table(values, timestamp))
    return attempt.finish()


def table(values: Sequence[bytes], timestamp: int | None = None) -> pa.RecordBatch:
    columns = {
        "key": pa.array([value[:1] for value in values], pa.binary()),
        "value": pa.array(values, pa.binary()),
        "timestamp": pa.array([timestamp] * len(values), pa.timestamp("ms", "UTC")),
    }
    return pa.RecordBatch.from_pydict(columns)


def values(store: stratalog.Store, topic: str, partition: int = 0) -> list[bytes]:
    return [record.value or b"" for record in store.topic(topic).read(partition)]


def staged_files(store: stratalog.Store) -> list[str]:
    """Everything that lies in a staging directory, the directories too."""
    fs, found = store.partitions.context.fs, []
    for each in store.partitions.dirs.all:
        root = staging.root_of(each.path)
        if fs.exists(root):
            found.append(root)
            for name in fs.list_dir(root):
                found += [
                    f"{root}/{name}",
                    *(f"{root}/{name}/{file}" for file in fs.list_dir(f"{root}/{name}")),
                ]
    return found
