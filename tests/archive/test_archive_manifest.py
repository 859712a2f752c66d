"""The manifest: what it says comes back, and anything else is told apart from it."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.archive.manifest import (
    LocalCopy,
    Manifest,
    SegmentEntry,
    StoredObject,
    pack,
    pack_local,
    parse,
    parse_local,
)
from stratalog.errors import CorruptionError, FormatError, UnsupportedFormat

numbers = st.integers(0, 2**62)
maybe = st.none() | st.integers(-(2**62), 2**62)
crcs = st.integers(0, 2**32 - 1)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    bases = sorted(draw(st.sets(st.integers(0, 10**9), max_size=6)))
    segments = []
    for base, following in zip(bases, [*bases[1:], 2 * 10**9], strict=False):
        parts = [
            StoredObject(f"log.{at:05d}", draw(st.integers(0, 1000)), draw(crcs))
            for at in range(draw(st.integers(0, 3)))
        ]
        kinds = draw(
            st.sets(st.sampled_from(["index", "timeindex", "txnindex", "seal", "keyindex", "snapshot"]))
        )
        rest = [StoredObject(kind, draw(numbers), draw(crcs)) for kind in sorted(kinds)]
        segments.append(
            SegmentEntry(
                base,
                draw(st.integers(base + 1, following)),
                f"{base:020d}/{draw(st.integers(0, 2**64 - 1)):016x}",
                sum(part.size for part in parts),
                draw(crcs),
                (*parts, *rest),
                draw(st.none() | numbers),
                draw(maybe),
                draw(maybe),
                draw(st.booleans()),
                draw(maybe),
                draw(numbers),
            )
        )
    return Manifest(
        draw(st.text(max_size=20)),
        uuid.UUID(int=draw(st.integers(2, 2**128 - 1))),
        draw(numbers),
        draw(st.text(max_size=20)),
        draw(st.text(max_size=20)),
        draw(numbers),
        draw(st.text(max_size=20)),
        draw(numbers),
        draw(st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=3)),
        draw(numbers),
        tuple(draw(st.lists(st.tuples(numbers, numbers), max_size=3))),
        draw(st.booleans()),
        tuple(segments),
    )


@given(manifests(), numbers)
def test_it_comes_back(manifest: Manifest, local_start: int) -> None:
    data = pack(manifest)
    assert parse(data) == manifest
    assert json.loads(data)["topic"] == manifest.topic, "any JSON tool reads it"
    copy = LocalCopy(manifest, local_start)
    assert parse_local(pack_local(copy)) == copy
    assert json.loads(pack_local(copy))["local_start_offset"] == local_start


@given(manifests(), st.data())
def test_every_flipped_bit_is_seen(manifest: Manifest, data: st.DataObject) -> None:
    for good, read in ((pack(manifest), parse), (pack_local(LocalCopy(manifest, 7)), parse_local)):
        bad = bytearray(good)
        at = data.draw(st.integers(0, len(bad) - 1))
        bad[at] ^= 1 << data.draw(st.integers(0, 7))
        with pytest.raises(FormatError, match="somewhere"):
            read(bytes(bad), "somewhere")


@given(st.binary(max_size=200))
def test_garbage_is_corruption(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        parse(data)


def simple() -> Manifest:
    entry = SegmentEntry(5, 9, f"{5:020d}/{1:016x}", 3, 1, (StoredObject("log.00000", 3, 1),))
    return Manifest("t", uuid.UUID(int=9), 0, "me", segments=(entry,))


def resealed(**changes: object) -> bytes:
    """A manifest with other fields and a right CRC, as a newer or a broken program might write it."""
    from stratalog.archive.manifest import _with_crc

    content = json.loads(pack(simple()))
    content.pop("crc32c")
    content.update(changes)
    return _with_crc(
        {}, json.dumps({key: value for key, value in content.items() if value != "gone"})[1:].encode()
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": -1},
        {"generation": True},
        {"owner": 5},
        {"topic_id": "x"},
        {"segments": {}},
        {"segments": [{}]},
        {"segments": [[]]},
        {"leader_epochs": [[1]]},
        {"config": {"a": 1}},
        {"token": "gone"},
        {"more": 1},
        {"log_start_offset": 2**63},
    ],
)
def test_wrong_fields_are_corruption(changes: dict[str, object]) -> None:
    with pytest.raises(CorruptionError, match="where"):
        parse(resealed(**changes), "where")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "../../etc"),
        ("name", f"{5:020d}/{1:015x}/"),
        ("objects", [["log.00000", 2, "00000001"]]),
        ("objects", [["passwd", 3, "00000001"]]),
        ("crc32c", "zz"),
        ("next", 5),
        ("size", -3),
    ],
)
def test_wrong_segments_are_corruption(field: str, value: object) -> None:
    segment = {**json.loads(pack(simple()))["segments"][0], field: value}
    with pytest.raises(CorruptionError):
        parse(resealed(segments=[segment]))


def test_segments_must_not_overlap() -> None:
    manifest = simple()
    entry = manifest.segments[0]
    later = replace(entry, base_offset=8, next_offset=12, name=f"{8:020d}/{1:016x}")
    with pytest.raises(CorruptionError, match="segment 8 to 12 behind one that ends at 9"):
        parse(pack(replace(manifest, segments=(entry, later))))


def test_another_version_is_not_damage() -> None:
    with pytest.raises(UnsupportedFormat, match="version 2"):
        parse(resealed(version=2))


def test_lookups() -> None:
    manifest = simple()
    entry = manifest.segments[0]
    assert manifest.entry(5) is entry
    assert manifest.entry(6) is None
    assert manifest.overlapping(0, 5) == ()
    assert manifest.overlapping(8, 20) == (entry,)
    assert manifest.next_offset == 9
    assert entry.parts() == entry.objects
    assert entry.object("seal") is None
    assert entry.same_log(3, 1)
    assert not entry.same_log(3, 2)
