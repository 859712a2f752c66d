"""`stratalog inspect`: a dead broker's directory, whole, damaged and half missing; nothing in it changes."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import stratalog
from stratalog import Record
from stratalog.cli.app import app
from tests.cli.test_cli_reports_write_nothing import state

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka-4.3.1" / "log-dir"


def run(*arguments: object):
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


def facts(*arguments: object, code: int = 0):
    result = run(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def partition(found, name: str):
    return next(each for each in found["partitions"] if f"{each['topic']}-{each['partition']}" == name)


@pytest.fixture
def broker(tmp_path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "broker"))


def logs(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def test_a_brokers_directory(broker):
    before = state(broker)
    found = facts(broker, "--read-only")
    assert state(broker) == before
    (directory,) = found["directories"]
    assert directory["written_by"] == "kafka"
    assert directory["cluster_id"] == "MkU3OEVBNTcwNTJENDM2Qg"
    assert (directory["node_id"], directory["clean"], directory["held"]) == (1, True, False)
    assert list(found["groups"]) == ["readers"]
    gzip = partition(found, "codec-gzip-0")
    assert (gzip["start"], gzip["end"], gzip["records"], gzip["codecs"]) == (0, 600, 600, ["gzip"])
    assert partition(found, "head-deleted-0")["start"] == 138
    assert partition(found, "compacted-0")["cleanup_policy"] == "compact"
    assert partition(found, "idempotent-0")["producers"] > 0
    for each in found["partitions"]:
        expected = GOLDEN.parent / "records" / f"{each['topic']}-{each['partition']}.jsonl"
        if not expected.exists() or each["topic"] in ("head-deleted", "big-records"):
            continue
        rows = [json.loads(line) for line in expected.read_text().splitlines()]
        assert (each["start"], each["end"]) == (rows[0]["low"], rows[0]["high"])
        assert each["records"] == len(rows) - 1
        times = [row["timestamp"] for row in rows[1:]]
        assert each["last_timestamp"] == max(times, default=None)
        if times and each["topic"] == "log-append-time":
            assert each["first_timestamp"] == min(times)


def test_one_screen_for_people(broker):
    result = run(broker)
    assert result.exit_code == 0
    assert "written by a Kafka broker (3.7 or later)" in result.stdout
    assert "clean stop" in result.stdout
    assert "internal: __consumer_offsets (4 partitions" in result.stdout
    assert "1 consumer group: readers" in result.stdout
    assert "no damage found" in result.stdout
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line}
    assert rows["codec-none"][1:4] == ["1", "0–599", "600"], "the last offset, as in errors: inclusive"
    assert rows["empty"][1:4] == ["3", "0", "0"], "no offsets"
    assert len(result.stdout.splitlines()) < 25
    assert facts(broker, "--full")["ok"]


def test_one_topic_with_its_partitions(broker):
    found = facts(broker, "--topic", "idempotent")
    assert [each["partition"] for each in found["partitions"]] == [0, 1]
    assert run(broker, "--topic", "none-such").exit_code == 3
    shown = run(broker, "--topic", "__consumer_offsets").stdout.splitlines()
    assert sum(line.startswith("__consumer_offsets") for line in shown) == 4


def test_a_store_of_ours(tmp_path):
    with stratalog.open(tmp_path / "data") as store:
        topic = store.create_topic("orders", 2, {"cleanup.policy": "compact"})
        topic.append_many([Record(b"v", b"k%d" % n) for n in range(50)])
        found = facts(tmp_path / "data")
        assert found["directories"][0]["held"]
        assert found["directories"][0]["holder_pid"] == os.getpid()
    found = facts("--data", tmp_path / "data")
    (directory,) = found["directories"]
    assert (directory["written_by"], directory["clean"], directory["stray"]) == ("stratalog", True, [])
    assert sum(each["records"] for each in found["partitions"]) == 50
    assert partition(found, "orders-0")["cleanup_policy"] == "compact"


def test_several_directories_and_a_partition_in_two(broker, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(broker / "meta.properties", other)
    shutil.move(broker / "idempotent-1", other)
    found = facts(broker, other)
    assert len(found["directories"]) == 2
    assert partition(found, "idempotent-1")["directory"] == str(other / "idempotent-1")
    shutil.copytree(other / "idempotent-1", broker / "idempotent-1")
    assert "also found in" in next(
        each["error"] for each in facts(broker, other, code=5)["partitions"] if each["error"]
    )


def test_an_unclean_stop_and_a_torn_tail_are_not_damage(broker):
    (broker / ".kafka_cleanshutdown").unlink()
    (broker / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    last = logs(broker / "codec-none-0")[-1]
    size = last.stat().st_size
    os.truncate(last, size - 10)
    found = facts(broker)
    assert found["directories"][0]["clean"] is False
    torn = partition(found, "codec-none-0")
    assert torn["torn_bytes"] > 0
    assert torn["end"] < 600
    assert "torn tail, not damage" in run(broker).stdout
    (broker / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":5}')
    (damage,) = partition(facts(broker, code=5), "codec-none-0")["damages"]
    assert (damage["path"], damage["first_offset"]) == (str(last), torn["end"])


def test_a_log_in_the_middle_cut_short(broker):
    log = logs(broker / "codec-none-0")[0]
    os.truncate(log, log.stat().st_size - 10)
    found = facts(broker, code=5)
    paths = {damage["path"] for damage in partition(found, "codec-none-0")["damages"]}
    assert str(log) in paths
    assert partition(found, "codec-gzip-0")["damages"] == []
    assert str(log) in run(broker).stdout


def test_a_segment_that_is_gone(broker):
    gone = logs(broker / "codec-none-0")[1]
    base = int(gone.stem)
    for path in gone.parent.glob(f"{gone.stem}.*"):
        path.unlink()
    damages = partition(facts(broker, code=5), "codec-none-0")["damages"]
    assert any(damage["first_offset"] == base for damage in damages)


def test_a_header_overwritten_names_the_offsets_between_its_neighbours(broker):
    log = logs(broker / "codec-gzip-0")[0]
    data = bytearray(log.read_bytes())
    data[16] = 99
    log.write_bytes(data)
    (damage,) = partition(facts(broker, code=5), "codec-gzip-0")["damages"]
    assert (damage["path"], damage["start"], damage["first_offset"]) == (str(log), 0, 0)
    assert 0 < damage["end"] < len(data)
    assert damage["last_offset"] > 0


def test_a_flipped_byte_of_a_value_needs_full(broker):
    log = logs(broker / "codec-none-0")[0]
    data = bytearray(log.read_bytes())
    data[100] ^= 0xFF
    log.write_bytes(data)
    assert facts(broker)["ok"]
    damages = partition(facts(broker, "--full", code=5), "codec-none-0")["damages"]
    assert damages[0]["path"] == str(log)


def test_missing_and_garbled_small_files_are_named(broker):
    logs(broker / "codec-none-0")[0].with_suffix(".index").unlink()
    (broker / "meta.properties").write_bytes(b"\xff\xfe")
    (broker / "log-start-offset-checkpoint").write_text("0\nmany\n")
    (broker / "codec-gzip-0" / "partition.metadata").write_text("nonsense")
    found = facts(broker, code=5)
    named = {
        os.path.basename(damage["path"])
        for each in (*found["directories"], *found["partitions"])
        for damage in each["damages"]
    }
    assert {"meta.properties", "log-start-offset-checkpoint", "partition.metadata"} <= named
    assert any(name.endswith(".index") for name in named)
    assert partition(found, "codec-gzip-0")["records"] == 600


def test_a_partition_that_cannot_be_read_is_a_row(broker):
    for path in (broker / "codec-none-0").iterdir():
        path.unlink()
    log = logs(broker / "codec-lz4-0")[0]
    log.unlink()
    log.mkdir()
    shutil.rmtree(broker / "codec-zstd-0")
    (broker / "codec-zstd-0").write_text("a file in place of a directory")
    (broker / "codec-snappy-0").rename(broker / "moved")
    (broker / "codec-snappy-0").symlink_to(broker / "nowhere")
    found = facts(broker, code=5)
    assert "no log" in partition(found, "codec-none-0")["error"]
    assert partition(found, "codec-gzip-0")["error"] is None
    lz4 = partition(found, "codec-lz4-0")
    assert lz4["error"] or lz4["damages"]
    assert {"codec-zstd-0", "codec-snappy-0", "moved"} <= set(found["directories"][0]["stray"])
    assert "codec-none-0" in run(broker).stdout


def test_directories_aside_and_stray_files(broker):
    shutil.copytree(broker / "codec-none-0", broker / "codec-none-0.4f1b-delete")
    shutil.copytree(broker / "codec-none-0", broker / "codec-none-1.4f1c-future")
    (broker / "notes.txt").write_text("mine")
    (broker / "codec-gzip-0" / "core.1234").write_text("dump")
    (directory,) = facts(broker)["directories"]
    assert directory["deleting"] == ["codec-none-0.4f1b-delete"]
    assert directory["future"] == ["codec-none-1.4f1c-future"]
    assert set(directory["stray"]) == {"notes.txt", "codec-gzip-0/core.1234"}
    assert "being deleted: codec-none-0.4f1b-delete" in run(broker).stdout


def test_what_is_not_a_log_directory(broker, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "etc" / "dbus-1").mkdir(parents=True)
    (tmp_path / "etc" / "dbus-1" / "session.conf").touch()
    for path, code, says in (
        (tmp_path / "none", 3, "no such directory"),
        (tmp_path / "empty", 3, "not a log directory"),
        (tmp_path / "etc", 3, "not a log directory"),
        (broker / "codec-none-0", 2, f"inspect its log directory, {broker}"),
        (broker / "meta.properties", 2, "is a file"),
    ):
        result = run(path)
        assert (result.exit_code, result.stdout) == (code, "")
        assert says in result.stderr
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("seed", range(6))
def test_a_hostile_directory_never_breaks_it(broker, seed):
    dice = random.Random(seed)
    files = [path for path in sorted(broker.rglob("*")) if path.is_file()]
    for path in dice.sample(files, 40):
        data = bytearray(path.read_bytes())
        match dice.randrange(5):
            case 0:
                path.unlink()
            case 1:
                path.write_bytes(b"")
            case 2:
                path.write_bytes(data[: dice.randrange(len(data) + 1)])
            case 3:
                path.write_bytes(dice.randbytes(200))
            case 4 if data:
                for _ in range(10):
                    data[dice.randrange(len(data))] = dice.randrange(256)
                path.write_bytes(data)
    for options in ((), ("--full",)):
        result = run(broker, "--json", *options)
        assert result.exit_code in (0, 5), result.output
        assert len(json.loads(result.stdout)["partitions"]) == 25
    assert run(broker).exit_code in (0, 5)
