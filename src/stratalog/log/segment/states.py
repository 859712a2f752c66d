"""The segments of a partition with the states that only its directory tells: being rewritten, or deleted.

A pure reading of one listing beside what the view of the log serves; nothing is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from stratalog.log.context import LogContext
from stratalog.log.segment.directory_state import view_of
from stratalog.log.segment.listing import list_files
from stratalog.model import SegmentInfo, SegmentState


class _Partition(Protocol):
    @property
    def context(self) -> LogContext: ...
    @property
    def directory(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    def segment_infos(self) -> list[SegmentInfo]: ...


def segment_states(log: _Partition, *, deleted: bool = False) -> list[SegmentInfo]:
    """Every segment of the log, in order; with ``deleted`` those that wait for their removal too.

    A segment whose replacement lies beside it, written or half swapped in, is COMPACTING. Where a deleted one
    ended is told by what came next: the following base offset, of a deleted segment or a live one.
    """
    infos = log.segment_infos()
    listing = list_files(log.context.fs, log.directory)
    view = view_of(listing)
    cleaning = set(view.cleaning)
    found = [
        replace(info, state=SegmentState.COMPACTING)
        if info.base_offset in cleaning and info.state in (SegmentState.SEALED, SegmentState.COMPACTED)
        else info
        for info in infos
    ]
    if not deleted or not view.deleted:
        return found
    bases = sorted({file.base_offset for file in view.deleted} | {info.base_offset for info in infos})
    gone = [
        SegmentInfo(
            topic=log.topic,
            partition=log.partition,
            base_offset=file.base_offset,
            next_offset=_following(bases, file.base_offset),
            state=SegmentState.DELETED,
            size_bytes=listing[file.name],
            path=f"{log.directory}/{file.name}",
        )
        for file in view.deleted
    ]
    return sorted(
        [*gone, *found], key=lambda info: (info.base_offset, info.state is not SegmentState.DELETED)
    )


def _following(bases: Sequence[int], base_offset: int) -> int:
    return next((base for base in bases if base > base_offset), base_offset)
