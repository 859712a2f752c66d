"""A slice of the fuzzing of the codec, with both kernels; `make fuzz` runs it under AddressSanitizer."""

from __future__ import annotations

import pytest

from stratalog import kernel
from tests.wire.fuzz_wire import Engine, interpreted, one_round

ROUNDS = 6000


@pytest.mark.parametrize("seed", [1, 2026])
def test_hostile_messages_are_refused_and_the_kernels_agree(seed: int) -> None:
    ours, other = Engine(kernel), interpreted()
    try:
        read = sum(one_round(seed * 1_000_003 + i, ours, other) for i in range(ROUNDS))
    finally:
        ours.codec("headers", "RequestHeader")
    assert ROUNDS // 5 < read < ROUNDS, "some can be read and some cannot"
