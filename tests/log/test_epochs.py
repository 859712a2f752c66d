"""Leader epochs: where each one ends, as Kafka answers it."""

from __future__ import annotations

import pytest

from stratalog.log.read.list_offsets import end_offset_for_epoch

EPOCHS = [(2, 10), (5, 40), (6, 70)]


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (-1, (-1, -1)),
        (0, (0, 10)),
        (2, (2, 40)),
        (4, (2, 40)),
        (5, (5, 70)),
        (6, (6, 100)),
        (7, (-1, -1)),
    ],
)
def test_the_end_of_an_epoch(epoch: int, answer: tuple[int, int]) -> None:
    assert end_offset_for_epoch(EPOCHS, epoch, 100) == answer


def test_a_log_without_epochs_knows_none() -> None:
    assert end_offset_for_epoch([], 0, 100) == (-1, -1)
