"""The dump tool file by file: damage, mismatches, odd names, exit codes, JSON, the command itself."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from stratalog.cli.commands.dump import (
    EXIT_NOT_FOUND,
    EXIT_OK,
    EXIT_PIPE,
    EXIT_UNREADABLE,
    EXIT_USAGE,
    DumpOptions,
    dump_command,
    dump_files,
)
from stratalog.cli.commands.dump.indexes import lookup

LOG_DIR = Path(__file__).parent.parent / "golden" / "kafka-4.3.1" / "log-dir"
ZERO = "0" * 20
DATA = DumpOptions(print_data_log=True)


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    target = tmp_path / "codec-none-0"
    shutil.copytree(LOG_DIR / "codec-none-0", target)
    return target


def dump(paths: list[Path] | Path, options: DumpOptions = DATA) -> tuple[int, list[str], list[str]]:
    out, err = io.BytesIO(), io.StringIO()
    names = [str(path) for path in (paths if isinstance(paths, list) else [paths])]
    code = dump_files(names, options, out, err)
    return code, out.getvalue().decode().split("\n")[:-1], err.getvalue().splitlines()


def patch(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


# -- damage ----------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_text_and_not_a_failure(partition: Path) -> None:
    log = partition / f"{ZERO}.log"
    before = dump(log)[1]
    patch(log, 100, b"\x00")
    code, lines, _ = dump(log)
    assert lines[2].endswith("isvalid: false")
    assert len(lines) == len(before)
    assert code == EXIT_OK


def test_a_record_that_cannot_be_read_costs_its_batch_only(partition: Path) -> None:
    log = partition / f"{ZERO}.log"
    before = dump(log)[1]
    patch(log, 61, b"\xff\xff\xff\xff\x0f")  # the length of the first record
    code, lines, errors = dump(log)
    assert lines[2].endswith("isvalid: false")
    assert lines[3:] == [line for line in before if line.startswith("baseOffset: 23 ")] + before[27:]
    reason = "Invalid record size: the batch has fewer bytes left"
    assert errors[0] == f"{log}: batch at position 0: record 1 of 23: {reason}"
    assert code == EXIT_UNREADABLE


@pytest.mark.parametrize(("length", "shown"), [(0, 0), (13, 13), (-1, -1)])
def test_a_length_no_batch_can_have_ends_the_file(partition: Path, length: int, shown: int) -> None:
    log = partition / f"{ZERO}.log"
    patch(log, 8, struct.pack(">i", length))
    code, lines, errors = dump([log, partition / f"{ZERO}.timeindex"], DumpOptions())
    assert lines[:2] == [f"Dumping {log}", "Log starting offset: 0"]
    assert lines[2] == f"Dumping {partition}/{ZERO}.timeindex"
    assert errors[0].startswith(f"Found record size {shown} smaller than minimum record overhead (14)")
    assert code == EXIT_UNREADABLE


def test_a_torn_tail_is_counted(partition: Path) -> None:
    log = partition / f"{ZERO}.log"
    log.write_bytes(log.read_bytes()[: 1370 + 500])
    code, lines, _ = dump(log, DumpOptions())
    assert lines[-1] == f"Found 500 invalid bytes at the end of {ZERO}.log"
    assert code == EXIT_OK
    assert dump(log, DumpOptions(max_bytes=1800))[1][-1].startswith("baseOffset: 0 ")


def test_a_length_past_the_end_costs_no_memory(partition: Path) -> None:
    log = partition / f"{ZERO}.log"
    size = log.stat().st_size
    patch(log, 8, struct.pack(">i", 2**31 - 1))
    assert dump(log)[1][2:] == [f"Found {size} invalid bytes at the end of {ZERO}.log"]


def test_a_compressed_batch_that_does_not_decompress(tmp_path: Path) -> None:
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        log = tmp_path / codec / f"{ZERO}.log"
        log.parent.mkdir()
        shutil.copy(LOG_DIR / f"codec-{codec}-0" / f"{ZERO}.log", log)
        batches = len(dump(log, DumpOptions())[1])
        patch(log, 61, b"\x00" * 40)
        code, lines, errors = dump(log)
        assert len([line for line in lines if not line.startswith("| ")]) >= batches
        assert "batch at position 0" in errors[0]
        assert code == EXIT_UNREADABLE


def test_an_unknown_codec(partition: Path) -> None:
    log = partition / f"{ZERO}.log"
    patch(log, 22, b"\x07")
    code, lines, errors = dump(log)
    assert lines[2].startswith("baseOffset: 23 ")
    assert errors[0] == f"{log}: batch at position 0: Unknown compression type id: 7"
    assert code == EXIT_UNREADABLE


def test_an_old_message_format(tmp_path: Path) -> None:
    body = struct.pack(">bbq", 1, 0, 1234) + struct.pack(">i", -1) + struct.pack(">i2s", 2, b"hi")
    message = struct.pack(">I", zlib.crc32(body)) + body
    log = tmp_path / f"{ZERO}.log"
    log.write_bytes(struct.pack(">qi", 5, len(message)) + message)
    line = (
        f"offset: 5 position: 0 CreateTime: 1234 size: {len(message) + 12} magic: 1 "
        f"compresscodec: none crc: {zlib.crc32(body)} isvalid: true"
    )
    assert dump(log, DumpOptions()) == (EXIT_OK, [f"Dumping {log}", "Log starting offset: 0", line], [])
    code, lines, errors = dump(log)
    assert lines[2] == line
    assert "message format v1 is not supported" in errors[0]
    assert code == EXIT_UNREADABLE


def test_a_control_record_without_a_type(tmp_path: Path) -> None:
    source = (LOG_DIR / "transactions-0" / f"{29:020}.log").read_bytes()
    position = 0
    while not source[position + 22] & 0x20:
        position += int.from_bytes(source[position + 8 : position + 12], "big") + 12
    log = tmp_path / f"{ZERO}.log"
    log.write_bytes(source)
    assert " endTxnMarker: " in "".join(dump(log)[1])
    patch(log, position + 66, b"\xff\xff")  # the version in the marker's key
    code, _, errors = dump(log)
    assert "Invalid version found for control record: -1" in errors[0]
    assert code == EXIT_UNREADABLE


# -- indexes ---------------------------------------------------------------------------------------------


def test_an_index_that_disagrees_with_its_log(partition: Path) -> None:
    index = partition / f"{ZERO}.index"
    patch(index, 0, struct.pack(">i", 44))
    code, lines, errors = dump(index)
    assert lines[1] == "offset: 44 position: 1370"
    assert errors == [f"Mismatches in :{index}", "  Index offset: 44, log offset: 45"]
    assert code == EXIT_OK
    assert dump(index, DumpOptions(verify_index_only=True))[1] == [f"Dumping {index}"]


def test_an_index_entry_that_points_nowhere(partition: Path) -> None:
    index = partition / f"{ZERO}.index"
    patch(index, 4, struct.pack(">i", 1 << 30))
    code, lines, errors = dump(index)
    assert lines[1] == f"offset: 45 position: {1 << 30}"
    assert "entry 0, offset 45: no whole batch" in errors[0]
    assert code == EXIT_UNREADABLE
    assert dump(index, DumpOptions(max_message_size=100))[0] == EXIT_UNREADABLE


def test_preallocated_zeros_are_not_entries(partition: Path) -> None:
    for suffix in ("index", "timeindex"):
        path = partition / f"{ZERO}.{suffix}"
        before = dump(path)
        path.write_bytes(path.read_bytes() + bytes(2400))
        assert dump(path) == before


def test_the_sanity_check(partition: Path) -> None:
    sane = DumpOptions(index_sanity_check=True)
    index, times = partition / f"{ZERO}.index", partition / f"{ZERO}.timeindex"
    code, lines, _ = dump([index, times], sane)
    assert [line for line in lines if "passed" in line] == [
        f"{index} passed sanity check.",
        f"{times} passed sanity check.",
    ]
    assert code == EXIT_OK
    index.write_bytes(index.read_bytes() + b"\0\0\0")
    patch(times, 0, struct.pack(">q", 2**62))
    code, lines, errors = dump([index, times], sane)
    assert "neither positive nor a multiple of 8" in errors[0]
    assert "less than the first timestamp" in errors[1]
    assert len(lines) == 2
    assert code == EXIT_UNREADABLE
    times.write_bytes(struct.pack(">qi", 5, -1))
    assert "less than the first offset 0" in dump(times, sane)[2][0]
    index.write_bytes(struct.pack(">ii", -1, 0))
    assert "less than the base offset 0" in dump(index, sane)[2][0]


def test_a_time_index_that_disagrees_with_its_log(partition: Path) -> None:
    times = partition / f"{ZERO}.timeindex"
    first = struct.unpack(">qi", times.read_bytes()[:12])
    second = struct.unpack(">qi", times.read_bytes()[12:24])
    patch(times, 0, struct.pack(">qi", second[0] + 5, first[1]))
    patch(times, 24, struct.pack(">qi", second[0] + 9, 60))
    patch(times, 36, struct.pack(">qi", second[0] + 10, 10**6))
    code, _, errors = dump(times, DumpOptions(verify_index_only=True))
    assert errors[:9] == [
        f"Found timestamp mismatch in :{times}",
        f"  Index timestamp: {second[0] + 5}, log timestamp: {first[0]}",
        f"Found out of order timestamp in :{times}",
        f"  Index timestamp: {second[0]}, Previously indexed timestamp: {second[0] + 5}",
        f"The following indexed offsets are not found in :{times}",
        "Indexed offset: 60, found log offset: 68",
        "Indexed offset: 1000000, found log offset: -1",
    ]
    assert code == EXIT_OK


def test_a_time_index_does_not_need_its_index(partition: Path) -> None:
    before = dump(partition / f"{ZERO}.timeindex")
    (partition / f"{ZERO}.index").unlink()
    assert dump(partition / f"{ZERO}.timeindex") == before
    assert not (partition / f"{ZERO}.index").exists()


def test_lookup_is_kafkas() -> None:
    entries = [(offset, offset * 100) for offset in range(10, 5000, 10)]
    assert lookup([], 5, 99) == (5, 0)
    assert lookup(entries, 5, 9) == (5, 0)
    for target in (10, 11, 19, 20, 1000, 3999, 4980, 4990, 10**9):
        assert lookup(entries, 5, target)[0] == min(target // 10 * 10, 4990)


# -- the other files -------------------------------------------------------------------------------------


def test_snapshots_that_fail_their_checks(tmp_path: Path) -> None:
    source = next((LOG_DIR / "transactions-0").glob("*192.snapshot"))
    good = source.read_bytes()
    path = tmp_path / source.name
    cases = [
        (good[:-1], "Snapshot failed schema validation: null"),
        (good[:1], "Snapshot failed schema validation: null"),
        (
            b"\0\x02" + good[2:],
            "Snapshot failed schema validation: Snapshot contained an unknown file version 2",
        ),
        (good[:20] + b"\xff" + good[21:], "Snapshot is corrupt (CRC is no longer valid). Stored crc: "),
        (good[:6] + b"\x7f\0\0\0" + good[10:], "Snapshot failed schema validation: Tried to allocate"),
        (good[:6] + b"\xff" * 4 + good[10:], "Snapshot failed schema validation: non-nullable field"),
    ]
    for data, message in cases:
        path.write_bytes(data)
        code, lines, errors = dump(path)
        assert lines == [f"Dumping {path}"]
        assert errors[0].startswith(message)
        assert code == EXIT_UNREADABLE


def test_a_producer_in_a_transaction(tmp_path: Path) -> None:
    from stratalog.format.producer_snapshot import ProducerEntry, pack

    path = tmp_path / f"{ZERO}.snapshot"
    path.write_bytes(
        pack([ProducerEntry(7, 1, 2, 90, 4, 1000, 3, 86), ProducerEntry(8, 0, -1, -1, 0, 5, -1, -1)])
    )
    _, first, second = dump(path)[1]
    assert first == (
        "producerId: 7 producerEpoch: 1 coordinatorEpoch: 3 currentTxnFirstOffset: OptionalLong[86] "
        "lastTimestamp: 1000 firstSequence: 2147483646 lastSequence: 2 lastOffset: 90 offsetDelta: 4 "
        "timestamp: 1000"
    )
    assert second == (
        "producerId: 8 producerEpoch: 0 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong.empty "
        "lastTimestamp: 5"
    )


def test_a_transaction_index_of_the_future(tmp_path: Path) -> None:
    path = tmp_path / f"{ZERO}.txnindex"
    entry = struct.pack(">hqqqq", 0, 1, 2, 3, 4)
    path.write_bytes(entry + b"\0\1" + entry[2:] + entry[:9])
    code, lines, errors = dump(path)
    assert lines[1:] == ["version: 0 producerId: 1 firstOffset: 2 lastOffset: 3 lastStableOffset: 4"]
    assert errors[0].startswith("Unexpected aborted transaction version 1")
    assert code == EXIT_UNREADABLE


def test_names_nobody_knows(tmp_path: Path) -> None:
    stray = tmp_path / "leader-epoch-checkpoint"
    stray.write_text("0\n")
    seal = tmp_path / f"{ZERO}.seal"
    seal.write_bytes(b"")
    assert dump([stray, seal]) == (
        EXIT_OK,
        [f"Dumping {stray}", f"Dumping {seal}"],
        [f"Ignoring unknown file {stray}", f"Ignoring unknown file {seal}"],
    )
    odd = tmp_path / "odd.log"
    odd.write_bytes(b"")
    code, _, errors = dump([odd, tmp_path / f"{ZERO}.log"])
    assert errors[0] == f'{odd}: the name begins with "odd", not with a base offset'
    assert errors[1] == f"{tmp_path / ZERO}.log: no such file or directory"
    assert code == EXIT_UNREADABLE


def test_a_directory_is_its_segment_files_in_name_order(partition: Path) -> None:
    (partition / f"{ZERO}.log.deleted").write_bytes(b"")
    code, lines, _ = dump(Path(f"{partition}//"), DumpOptions())
    named = [line.removeprefix("Dumping ") for line in lines if line.startswith("Dumping ")]
    assert named == sorted(str(path) for path in partition.glob("0*") if path.suffix != ".deleted")
    assert code == EXIT_OK


def test_nothing_is_written(partition: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        return {p.name: (p.stat().st_size, p.stat().st_mtime_ns) for p in partition.iterdir()}

    before = state()
    dump(partition, DumpOptions(print_data_log=True))
    dump(partition, DumpOptions(index_sanity_check=True))
    assert state() == before


# -- JSON ------------------------------------------------------------------------------------------------


def json_lines(paths: list[Path] | Path, options: DumpOptions) -> list[dict[str, Any]]:
    return [json.loads(line) for line in dump(paths, options)[1]]


@pytest.mark.parametrize("name", ["codec-zstd-0", "compacted-0", "transactions-0", "idempotent-0"])
def test_json_says_what_the_text_says(name: str) -> None:
    text = dump(LOG_DIR / name)[1]
    found = json_lines(LOG_DIR / name, DumpOptions(print_data_log=True, json=True))
    kinds = [row["type"] for row in found]
    assert kinds.count("batch") == sum(line.startswith("baseOffset: ") for line in text)
    assert kinds.count("record") == sum(line.startswith("| ") for line in text)
    assert kinds.count("offsetIndexEntry") == sum(line.startswith("offset: ") for line in text)
    assert kinds.count("timeIndexEntry") == sum(line.startswith("timestamp: ") for line in text)
    assert kinds.count("producer") == sum(line.startswith("producerId: ") for line in text)
    assert kinds.count("abortedTxn") == sum(line.startswith("version: ") for line in text)
    batches = [row for row in found if row["type"] == "batch"]
    lines = [line for line in text if line.startswith("baseOffset: ")]
    for row, line in zip(batches, lines, strict=True):
        for field in ("lastOffset", "lastSequence", "producerEpoch", "position", "crc", "compresscodec"):
            assert f"{field}: {row[field]} " in line
        assert row["isvalid"] is True


def test_json_keeps_every_byte(tmp_path: Path) -> None:
    rows = json_lines(
        LOG_DIR / "__consumer_offsets-0" / f"{ZERO}.log", DumpOptions(print_data_log=True, json=True)
    )
    records = [row for row in rows if row["type"] == "record"]
    assert records
    for row in records:
        key = row["key"].encode() if "key" in row else base64.b64decode(row["keyBase64"])
        assert len(key) == row["keySize"]
    decoded = json_lines(
        LOG_DIR / "__consumer_offsets-0" / f"{ZERO}.log", DumpOptions(offsets_decoder=True, json=True)
    )
    first = next(row for row in decoded if row["type"] == "record")
    assert json.loads(first["key"])["data"]["group"] == "readers"
    marker = next(
        row["control"]
        for row in json_lines(LOG_DIR / "transactions-0", DumpOptions(deep_iteration=True, json=True))
        if "control" in row
    )
    assert marker == {"endTxnMarker": "COMMIT", "coordinatorEpoch": 0}


# -- the command -----------------------------------------------------------------------------------------

app = typer.Typer()
app.command()(dump_command)


def test_the_command_takes_files_and_paths() -> None:
    log = LOG_DIR / "empty-0" / f"{ZERO}.log"
    runner = CliRunner()
    result = runner.invoke(app, ["--files", f"{log},{log}", str(log), "--print-data-log"])
    assert result.exit_code == EXIT_OK
    assert result.stdout == f"Dumping {log}\nLog starting offset: 0\n" * 3


@pytest.mark.parametrize(
    "arguments",
    [[], ["--files", ""], ["--max-bytes", "-1", "x"], ["--remote-log-metadata-decoder", "x"], ["--nonsense"]],
)
def test_the_command_refuses_nonsense(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == EXIT_USAGE


def test_the_command_ends_with_the_dumps_code(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [str(tmp_path / f"{ZERO}.log")])
    assert result.exit_code == EXIT_NOT_FOUND


def test_a_reader_that_leaves_is_no_traceback() -> None:
    program = "import typer; from stratalog.cli.commands.dump import dump_command; typer.run(dump_command)"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "--print-data-log", str(LOG_DIR / "big-records-0")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == EXIT_PIPE
    assert b"Traceback" not in error
