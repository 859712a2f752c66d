"""Checkpoints and metadata files: what Kafka tolerates is read, everything else is a typed error."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptionError, FormatError, UnsupportedFormat
from stratalog.format import checkpoints, metadata
from stratalog.format.metadata import MetaProperties

topics = st.text("abcXYZ019._-", min_size=1, max_size=249)
int31, int63 = st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 63) - 1)

# -- checkpoints


@given(st.dictionaries(st.tuples(topics, int31), int63, max_size=20))
def test_offset_checkpoint_round_trip(offsets: dict[tuple[str, int], int]) -> None:
    assert checkpoints.parse_offsets(checkpoints.pack_offsets(offsets)) == offsets


@given(st.lists(st.tuples(int31, int63), max_size=20))
def test_leader_epoch_round_trip(epochs: list[tuple[int, int]]) -> None:
    assert checkpoints.parse_leader_epochs(checkpoints.pack_leader_epochs(epochs)) == epochs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("0\n", {}),
        ("0", {}),
        ("0\n0\n", {}),
        ("0\n1\na 0 5", {("a", 0): 5}),
        ("0\r\n1\r\na 0 5\r\n", {("a", 0): 5}),
        ("0\n1\na  \t0\t5  \n", {("a", 0): 5}),
        ("0\n2\na 0 5\na 0 6\n", {("a", 0): 6}),
        ("+0\n+1\na +0 -1\n", {("a", 0): -1}),
    ],
)
def test_what_kafka_tolerates_is_read(text: str, expected: dict[tuple[str, int], int]) -> None:
    assert checkpoints.parse_offsets(text.encode()) == expected


@pytest.mark.parametrize(
    "text",
    [
        "x\n",
        "\n",
        "0\nx\n",
        "0\n-1\n",
        "0\n1\n",
        "0\n1\na 0 5\nb 0 5\n",
        "0\n2\na 0 5\n",
        "0\n1\na 0\n",
        "0\n1\na 0 5 6\n",
        "0\n1\n a 0 5\n",
        "0\n1\n\n",
        "0\n1\na x 5\n",
        "0\n1\na 0 1_0\n",
        "0\n1\na 0 9223372036854775808\n",
        "0\n1\na 2147483648 5\n",
        "0\n1\na 0 ٣\n",
        "0\n1\na 0 " + "9" * 10_000 + "\n",
    ],
)
def test_what_kafka_refuses_is_corruption(text: str) -> None:
    with pytest.raises(CorruptionError):
        checkpoints.parse_offsets(text.encode())


def test_another_version_of_a_checkpoint_is_not_damage() -> None:
    with pytest.raises(UnsupportedFormat):
        checkpoints.parse_offsets(b"1\n0\n")
    with pytest.raises(UnsupportedFormat):
        checkpoints.parse_leader_epochs(b"7\n")


def test_checkpoint_that_is_not_text() -> None:
    with pytest.raises(CorruptionError):
        checkpoints.parse_offsets(b"0\n1\n\xff 0 5\n")


@given(st.one_of(st.binary(max_size=100), st.text("0129 \n\r\tab-+", max_size=60).map(str.encode)))
def test_checkpoints_of_hostile_bytes(data: bytes) -> None:
    for parse in (checkpoints.parse_offsets, checkpoints.parse_leader_epochs):
        try:
            parse(data)
        except FormatError:
            continue


# -- ids and partition.metadata


@given(st.uuids())
def test_ids_round_trip(value: uuid.UUID) -> None:
    text = metadata.id_to_text(value)
    assert len(text) == 22
    assert metadata.text_to_id(text) == value
    assert metadata.text_to_id(text + "==") == value
    if value.int:
        assert metadata.parse_partition_metadata(metadata.pack_partition_metadata(value)) == value


def test_a_known_id() -> None:
    text = "roDDSUiMQXS8nx9aJr7Q4w"
    assert metadata.text_to_id(text) == uuid.UUID("ae80c349-488c-4174-bc9f-1f5a26bed0e3")


@pytest.mark.parametrize(
    "text",
    ["", "roDD", "roDDSUiMQXS8nx9aJr7Q4x", "roDDSUiMQXS8nx9aJr7Q4w=", "ro/DSUiMQXS8nx9aJr7Q4w", "é" * 22],
)
def test_what_is_no_id(text: str) -> None:
    with pytest.raises(CorruptionError):
        metadata.text_to_id(text)


def test_new_ids_are_ones_kafka_would_make() -> None:
    made = {metadata.new_id() for _ in range(500)}
    assert len(made) == 500
    assert not any(metadata.id_to_text(value).startswith("-") for value in made)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version: 0",
        "version: 0\n",
        "version: x\ntopic_id: roDDSUiMQXS8nx9aJr7Q4w",
        "topic_id: roDDSUiMQXS8nx9aJr7Q4w\nversion: 0",
        "version: -1\ntopic_id: roDDSUiMQXS8nx9aJr7Q4w",
        "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        "version: 0\ntopic_id:",
    ],
)
def test_partition_metadata_damage(text: str) -> None:
    with pytest.raises(CorruptionError):
        metadata.parse_partition_metadata(text.encode())


def test_partition_metadata_of_a_later_version_is_read_as_kafka_does() -> None:
    data = b"version: 1\ntopic_id: roDDSUiMQXS8nx9aJr7Q4w\nmore: 5\n"
    assert metadata.id_to_text(metadata.parse_partition_metadata(data)) == "roDDSUiMQXS8nx9aJr7Q4w"


# -- meta.properties


@given(
    st.builds(
        MetaProperties,
        cluster_id=st.text(max_size=30).filter(str.isprintable),
        node_id=int31,
        directory_id=st.none() | st.uuids(),
        version=st.just(1),
    ),
    st.text(max_size=20).filter(str.isprintable),
)
def test_meta_properties_round_trip(value: MetaProperties, comment: str) -> None:
    assert metadata.parse_meta_properties(metadata.pack_meta_properties(value, comment)) == value


def test_java_properties_are_read_as_java_reads_them() -> None:
    text = (
        "# a comment\n! another\n\n   \n"
        "plain=1\n  spaced = 2 \ncolon:3\nblank 4\nempty=\nalone\n"
        "long=one \\\n   two\\\n\tthree\n"
        "esc\\=aped\\ key=a\\tb\\u0041\\\\\n"
        "double=x\\\\\nlast=end\\"
    )
    assert metadata.parse_properties(text.encode()) == {
        "plain": "1",
        "spaced": "2 ",
        "colon": "3",
        "blank": "4",
        "empty": "",
        "alone": "",
        "long": "one twothree",
        "esc=aped key": "a\tbA\\",
        "double": "x\\",
        "last": "end",
    }


def test_version_0_calls_the_node_a_broker() -> None:
    value = metadata.parse_meta_properties(b"version=0\nbroker.id=7\n")
    assert value == MetaProperties(None, 7, None, 0)
    assert metadata.parse_meta_properties(metadata.pack_meta_properties(value)) == value
    assert metadata.parse_meta_properties(b"") == MetaProperties(None, None, None, 0)


def test_meta_properties_damage() -> None:
    for text in (
        b"version=x\n",
        b"version=1\n",
        b"version=1\nnode.id=1\n",
        b"version=1\ncluster.id=c\n",
        b"version=1\ncluster.id=c\nnode.id=x\n",
        b"version=1\ncluster.id=c\nnode.id=1\ndirectory.id=x\n",
        b"a=\\u12\n",
        b"\xff=1\n",
    ):
        with pytest.raises(CorruptionError):
            metadata.parse_meta_properties(text)
    with pytest.raises(UnsupportedFormat):
        metadata.parse_meta_properties(b"version=2\n")


# -- .kafka_cleanshutdown


@pytest.mark.parametrize(
    ("data", "epoch"),
    [
        (b"", None),
        (b"junk", None),
        (b"[]", None),
        (b"{}", None),
        (b'{"version":0,"brokerEpoch":null}', None),
        (b'{"version":0,"brokerEpoch":12,"later":1}', 12),
        (b"\xff", None),
        (b"[" * 100_000, None),
    ],
)
def test_clean_shutdown(data: bytes, epoch: int | None) -> None:
    assert metadata.parse_clean_shutdown(data) == epoch


@given(
    st.one_of(st.binary(max_size=100), st.text("version:topic_id= \\\n#u01aA", max_size=60).map(str.encode))
)
def test_metadata_of_hostile_bytes(data: bytes) -> None:
    metadata.parse_clean_shutdown(data)
    for parse in (metadata.parse_partition_metadata, metadata.parse_meta_properties):
        try:
            parse(data)
        except FormatError:
            continue
