"""Leader epochs of a partition: where each one ends, by Kafka's rules for OffsetsForLeaderEpoch.

The entries of a `leader-epoch-checkpoint` are (epoch, start offset), both ascending. Reads only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from stratalog.format import checkpoints
from stratalog.fs import FileSystem
from stratalog.log.names import LEADER_EPOCH_CHECKPOINT

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class EpochEnd(NamedTuple):
    """An epoch and the offset after its last record; both are -1 when the log does not know."""

    epoch: int
    end_offset: int


def end_offset_for_epoch(epochs: Sequence[tuple[int, int]], epoch: int, log_end_offset: int) -> EpochEnd:
    """Return the largest known epoch up to ``epoch`` and where it ends.

    The latest epoch ends at ``log_end_offset``. An epoch beyond the latest is unknown. One of the past ends
    where the next one begins; one before the first entry has no records, and ends where the first one begins.
    """
    if not epochs or not 0 <= epoch <= epochs[-1][0]:
        return EpochEnd(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
    if epoch == epochs[-1][0]:
        return EpochEnd(epoch, log_end_offset)
    higher = bisect_right(epochs, epoch, key=lambda entry: entry[0])
    return EpochEnd(epochs[higher - 1][0] if higher else epoch, epochs[higher][1])


def epoch_at(epochs: Sequence[tuple[int, int]], offset: int) -> int:
    """Return the leader epoch that ``offset`` was or will be written in; -1 when the log does not know."""
    later = bisect_right(epochs, offset, key=lambda entry: entry[1])
    return epochs[later - 1][0] if later else UNDEFINED_EPOCH


def read_epochs(fs: FileSystem, directory: str) -> list[tuple[int, int]]:
    """Return the epochs of a partition; none without the file. CorruptionError if it is damaged."""
    try:
        data = fs.read_file(f"{directory}/{LEADER_EPOCH_CHECKPOINT}")
    except FileNotFoundError:
        return []
    return list(checkpoints.parse_leader_epochs(data))
