"""The active segment's key index against a plain dictionary."""

from __future__ import annotations

import struct
from array import array
from collections import defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stratalog.log.write.active_keys import ActiveKeyIndex

row = struct.Struct("=QQ").pack
HASHES = st.one_of(st.sampled_from([0, 1, 1024, 2**64 - 1, 1 << 63]), st.integers(0, 2**64 - 1))


def test_empty() -> None:
    index = ActiveKeyIndex()
    assert index.lookup(7) == []
    assert len(index) == 0
    assert index.arrays() == (array("Q"), array("q"))


def test_grows_past_its_first_table() -> None:
    index = ActiveKeyIndex()
    for offset in range(20_000):
        index.add_row(row(offset * 0x9E3779B97F4A7C15 % 2**64, offset))
        if offset in (0, 1500, 1501, 9000):
            assert index.lookup(offset * 0x9E3779B97F4A7C15 % 2**64) == [offset]
    for offset in range(0, 20_000, 37):
        assert index.lookup(offset * 0x9E3779B97F4A7C15 % 2**64) == [offset]


def test_newest_first_is_lazy_and_untroubled_by_later_appends() -> None:
    index = ActiveKeyIndex()
    index.extend(array("Q", [5, 6, 5]), array("q", [10, 11, 12]))
    found = index.newest_first(5)
    assert next(found) == 12
    index.add_row(row(5, 13))
    assert index.lookup(5) == [10, 12, 13]
    assert list(found) == [10]


def test_lengths_must_match() -> None:
    with pytest.raises(ValueError, match="2 hashes for 1 offsets"):
        ActiveKeyIndex().extend(array("Q", [1, 2]), array("q", [1]))


def test_arrays_are_in_log_order() -> None:
    index = ActiveKeyIndex()
    index.extend(array("Q", [9, 2**64 - 1]), array("q", [10, 11]))
    index.add_row(row(1, 13))
    assert index.arrays() == (array("Q", [9, 2**64 - 1, 1]), array("q", [10, 11, 13]))


class KeyIndexMachine(RuleBasedStateMachine):
    """Adds, bulk adds and lookups in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.index = ActiveKeyIndex()
        self.model: defaultdict[int, list[int]] = defaultdict(list)
        self.next_offset = 0

    @rule(hash64=HASHES, gap=st.integers(0, 3))
    def add(self, hash64: int, gap: int) -> None:
        self.next_offset += gap
        self.index.add_row(row(hash64, self.next_offset))
        self.model[hash64].append(self.next_offset)
        self.next_offset += 1

    @rule(hashes=st.lists(HASHES, max_size=40), times=st.sampled_from([1, 80]))
    def extend(self, hashes: list[int], times: int) -> None:
        many = hashes * times
        offsets = range(self.next_offset, self.next_offset + len(many))
        self.index.extend(array("Q", many), array("q", offsets))
        for hash64, offset in zip(many, offsets, strict=True):
            self.model[hash64].append(offset)
        self.next_offset += len(many)

    @rule(hash64=HASHES)
    def lookup(self, hash64: int) -> None:
        assert self.index.lookup(hash64) == self.model.get(hash64, [])

    @rule()
    def lookup_all(self) -> None:
        for hash64, offsets in self.model.items():
            assert self.index.lookup(hash64) == offsets

    @invariant()
    def counts(self) -> None:
        assert len(self.index) == sum(map(len, self.model.values()))


TestKeyIndexMachine = KeyIndexMachine.TestCase
TestKeyIndexMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
