"""docs/FORMAT.md against the code: every field table, every size, and records read by the page alone."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import struct
from pathlib import Path

import pytest

import stratalog.format
from stratalog.format import codecs, settings

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "FORMAT.md").read_text()
GOLDEN = ROOT / "tests" / "golden" / "kafka-4.3.1" / "log-dir"
INTEGERS = {"int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint16": 2, "uint32": 4, "uint64": 8}


def tables(marker: str) -> list[tuple[str, list[list[str]]]]:
    """What follows the colon of each such marker, and the rows of the table behind it."""
    found = []
    for match in re.finditer(rf"<!-- {marker}(?:: ([^ ]+))? -->\n\n((?:\|.*\n)+)", DOC):
        lines = match[2].splitlines()
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        found.append((match[1], rows[2:]))
    assert found, marker
    return found


def resolve(name: str) -> object:
    module, attribute = name.split(":")
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize(
    ("name", "rows"), tables("layout"), ids=lambda value: value if isinstance(value, str) else ""
)
def test_field_tables_are_the_layouts_of_the_code(name: str, rows: list[list[str]]) -> None:
    layout = resolve(name)
    assert isinstance(layout, tuple)
    position = 0
    expected = []
    for field, kind, size in layout:
        expected.append([str(position), field, kind, str(size)])
        assert kind == "bytes" or INTEGERS[kind] == size
        position += size
    assert [row[:4] for row in rows] == expected


def test_every_layout_of_the_code_is_in_the_page() -> None:
    documented = {id(resolve(name)) for name, _ in tables("layout")}
    for module_info in pkgutil.iter_modules(stratalog.format.__path__):
        module = importlib.import_module(f"stratalog.format.{module_info.name}")
        for name, value in vars(module).items():
            if re.fullmatch(r"([A-Z_]+_)?LAYOUT", name):
                assert id(value) in documented, f"{module.__name__}:{name}"


def test_tables_without_a_layout_add_up() -> None:
    for total, rows in tables("fields"):
        position = 0
        for byte, _, kind, size, _ in rows:
            assert int(byte) == position
            assert INTEGERS[kind] == int(size)
            position += int(size)
        assert position == int(total)


def test_sizes() -> None:
    [(_, rows)] = tables("constants")
    for name, value in rows:
        assert resolve(name.strip("`")) == int(value), name


# -- records, read by nothing but the tables of the page


class Walker:
    """Reads fields by their documented type."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, size: int) -> bytes:
        self.position += size
        assert self.position <= len(self.data)
        return self.data[self.position - size : self.position]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return (value >> 1) ^ -(value & 1)

    def record(self, rows: list[list[str]]) -> dict[str, object]:
        record: dict[str, object] = {}
        for field, kind, _ in rows:
            if kind in ("varint", "varlong"):
                record[field] = self.varint()
                if field == "length":
                    end = self.position + self.varint_value(record, "length")
            elif kind == "bytes":
                size = self.varint_value(record, f"{field}Length")
                record[field] = None if size < 0 else self.take(size)
            elif kind == "header":
                record[field] = [self.header() for _ in range(self.varint_value(record, "headerCount"))]
            else:
                record[field] = int.from_bytes(self.take(INTEGERS[kind]), "big", signed=True)
        assert self.position == end, "the record is as long as it says"
        return record

    def header(self) -> tuple[bytes, bytes | None]:
        key = self.take(self.varint())
        size = self.varint()
        return key, None if size < 0 else self.take(size)

    @staticmethod
    def varint_value(record: dict[str, object], field: str) -> int:
        value = record[field]
        assert isinstance(value, int)
        return value


def header_fields(data: bytes, position: int) -> dict[str, int]:
    rows = dict(tables("layout"))["stratalog.format.batch:LAYOUT"]
    return {
        field: int.from_bytes(
            data[position + int(byte) : position + int(byte) + int(size)],
            "big",
            signed=not kind.startswith("u"),
        )
        for byte, field, kind, size, _ in rows
    }


@pytest.mark.parametrize("partition", ["codec-none-0", "codec-zstd-0", "transactions-0", "compacted-0"])
def test_a_real_log_can_be_read_by_the_page_alone(partition: str) -> None:
    [(_, rows)] = tables("record")
    markers = 0
    offsets: list[int] = []
    for path in sorted((GOLDEN / partition).glob("*.log")):
        data = path.read_bytes()
        position = 0
        while position < len(data):
            header = header_fields(data, position)
            payload = data[position + 61 : position + 12 + header["length"]]
            walker = Walker(codecs.decompress(header["attributes"] & 7, payload) if payload else b"")
            for _ in range(header["count"]):
                record = walker.record(rows)
                if header["attributes"] & 32:
                    markers += 1
                    assert isinstance(record["key"], bytes)
                    assert isinstance(record["value"], bytes)
                    version, kind = struct.unpack(">hh", record["key"])
                    assert (version, kind in (0, 1)) == (0, True)
                    assert len(record["value"]) == 6
                else:
                    offsets.append(header["baseOffset"] + Walker.varint_value(record, "offsetDelta"))
            assert walker.position == len(walker.data)
            position += 12 + header["length"]
        assert position == len(data)
    lines = (GOLDEN.parent / "records" / f"{partition}.jsonl").read_text().splitlines()[1:]
    assert offsets == [json.loads(line)["offset"] for line in lines]
    assert bool(markers) == (partition == "transactions-0")


def test_the_settings_example_is_one() -> None:
    example = re.search(r"### `stratalog.settings`.*?```\n(.*?)```", DOC, re.DOTALL)
    assert example is not None
    assert settings.pack(settings.parse(example[1].encode())).decode() == example[1]
