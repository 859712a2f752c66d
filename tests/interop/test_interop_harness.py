"""The harness itself: the dump tool is judged rightly, and brokers start, serve, die and come back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.interop.kafka import KafkaBroker, complaints, dump_log

pytestmark = pytest.mark.interop

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "kafka-4.3.1"
SEGMENT = "00000000000000000000"


def partition_files(directory: Path) -> list[Path]:
    kinds = {".index", ".log", ".snapshot", ".timeindex", ".txnindex"}
    return sorted(path for path in directory.iterdir() if path.suffix in kinds)


@pytest.mark.parametrize("partition", ["codec-lz4-0", "codec-zstd-0", "transactions-0", "idempotent-0"])
def test_dump_of_golden_files_is_the_stored_one(partition: str) -> None:
    directory = GOLDEN / "log-dir" / partition
    expected = (GOLDEN / "dump" / f"{partition}.txt").read_text(errors="replace")
    dump = dump_log(partition_files(directory), "--print-data-log")
    assert complaints(dump) == []
    # the stored dumps are the tool's standard output; what it says of offsets goes to standard error
    lines = [line for line in dump.split("\n") if not line.startswith(("Non-consecutive", "  -1 is"))]
    assert "\n".join(lines).replace(f"{directory.parent}/", "") == expected


def test_dump_complains_of_a_flipped_bit(tmp_path: Path) -> None:
    log = tmp_path / f"{SEGMENT}.log"
    data = bytearray((GOLDEN / "log-dir" / "codec-none-0" / log.name).read_bytes())
    data[200] ^= 0x10
    log.write_bytes(data)
    assert any("isvalid: false" in line for line in complaints(dump_log([log])))


def test_dump_complains_of_a_gap_in_offsets() -> None:
    found = complaints(dump_log(partition_files(GOLDEN / "log-dir" / "compacted-0"), "--print-data-log"))
    assert found
    assert all(" is followed by " in line for line in found)


def test_dump_complains_of_a_torn_tail(tmp_path: Path) -> None:
    log = tmp_path / f"{SEGMENT}.log"
    log.write_bytes((GOLDEN / "log-dir" / "codec-none-0" / log.name).read_bytes()[:-7])
    assert complaints(dump_log([log], "--print-data-log"))


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_dump_complains_of_a_wrong_index(tmp_path: Path, suffix: str) -> None:
    directory = tmp_path / "codec-none-0"
    shutil.copytree(GOLDEN / "log-dir" / "codec-none-0", directory)
    index = directory / f"{SEGMENT}{suffix}"
    data = bytearray(index.read_bytes())
    entry = 8 if suffix == ".index" else 12
    data[entry - 1] ^= 0x01
    index.write_bytes(data)
    assert complaints(dump_log([index], "--verify-index-only"))


def test_broker_keeps_what_it_acknowledged_through_a_kill(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "kafka") as broker:
        broker.create_topic("t", config={"retention.ms": -1})
        producer = broker.producer(compression_type="lz4")
        for n in range(1000):
            producer.produce("t", key=f"k{n}", value=f"v{n}", headers=[("n", str(n).encode()), ("nil", None)])
        assert producer.flush(30) == 0
        broker.kill()
        broker.start()
        served = list(broker.consume("t"))
        assert [message.offset() for message in served] == list(range(1000))
        assert [message.value() for message in served] == [f"v{n}".encode() for n in range(1000)]
        assert served[7].headers() == [("n", b"7"), ("nil", None)]
        broker.stop()
        assert (broker.log_dir / ".kafka_cleanshutdown").exists()
