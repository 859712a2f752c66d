"""What a command passed over or left damaged is named, and its exit code says so."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stratalog
from stratalog import Record
from tests.cli.shell import Shell


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A sealed segment of four batches and an active one, 20 records each."""
    root = tmp_path / "data"
    with stratalog.open(root, background=False) as store:
        topic = store.create_topic("t", 1)
        for base in (0, 20):
            for first in range(base, base + 20, 5):
                topic.append_many([Record(b"%d" % n) for n in range(first, first + 5)])
            if not base:
                topic.roll()
    return root


def log(root: Path, base: int) -> Path:
    return root / "t-0" / f"{base:020d}.log"


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def test_skip_damaged_names_what_it_skipped(root: Path) -> None:
    path = log(root, 0)
    flip(path, path.stat().st_size // 4 + 70)
    done = Shell(root)("read", "t", "--skip-damaged")
    assert done.exit_code == 11
    assert done.stdout.split() == [str(n) for n in range(40) if not 5 <= n <= 9]
    assert str(path) in done.stderr
    assert "offsets lost: 5-9" in done.stderr
    done = Shell(root)("read", "t", "--skip-damaged", "--json")
    assert done.exit_code == 11
    assert len(done.stdout.splitlines()) == 35
    [skipped] = [json.loads(line)["skipped"] for line in done.stderr.splitlines() if '"skipped"' in line]
    assert (skipped["first_offset"], skipped["last_offset"]) == (5, 9)
    assert Shell(root)("read", "t", "--skip-damaged", "--from", "20", "-p", "0").exit_code == 0


def test_repair_that_leaves_damage_says_so(root: Path) -> None:
    flip(log(root, 0), 70)
    done = Shell(root)("repair", "t", "--json")
    assert done.exit_code == 5
    [report] = json.loads(done.stdout)
    assert [(each["first_offset"], each["last_offset"]) for each in report["left"]] == [(0, 4)]
    done = Shell(root)("repair", "t", "--action", "drop-damaged", "--yes", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)[0]["left"] == []


def test_verify_names_garbage_behind_the_end_and_never_prints_unknown_bytes_as_numbers(
    root: Path,
) -> None:
    path = log(root, 20)
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"garbage")
    (root / "t-0" / f"{0:020d}.seal").write_bytes(b"no seal")
    done = Shell(root)("verify", "--json")
    assert done.exit_code == 5
    damages = json.loads(done.stdout)["damages"]
    assert [(each["start"], each["end"]) for each in damages if each["path"] == str(path)] == [
        (size, size + 7)
    ]
    done = Shell(root)("verify")
    assert "-1--1" not in done.stdout
    assert done.exit_code == 5


def test_verify_names_settings_that_cannot_be_read(root: Path) -> None:
    path = root / "stratalog.settings"
    path.write_text("x")
    done = Shell(root)("verify", "--json")
    assert done.exit_code == 5
    [damage] = json.loads(done.stdout)["damages"]
    assert damage["path"] == str(path)
    assert "move it away" in damage["reason"]
    assert Shell(root)("append", "t", stdin="x\n").exit_code == 5


def test_a_missing_partition_that_rebuilding_cannot_bring_back_is_left(root: Path) -> None:
    shutil.rmtree(root / "t-0")
    done = Shell(root)("repair", "t", "--action", "rebuild-indexes", "--json")
    assert done.exit_code == 5
    [left] = json.loads(done.stdout)[0]["left"]
    assert left["path"] == "t-0"
    assert "no log directory holds it" in left["reason"]
    done = Shell(root)("repair", "t", "--action", "drop-damaged", "--yes", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)[0]["left"] == []


def test_what_a_repair_cut_off_is_to_be_kept_until_the_cause_is_known(root: Path) -> None:
    flip(log(root, 0), 70)
    Shell(root).ok("repair", "t", "--action", "drop-damaged", "--yes")
    assert list(root.glob("t-0/*.torn-*"))
    said = Shell(root)("lifecycle").stderr
    assert "1 .torn file, " in said
    assert "a repair cut off: keep them until you know the cause" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("read", "t"),
        ("read", "t", "--read-only"),
        ("read", "t", "--out", "{beside}/t.parquet"),
        ("clone", "{beside}/clone"),
        ("export", "t", "{beside}/export"),
        ("sql", "select count(*) from t"),
    ],
    ids=" ".join,
)
def test_a_missing_segment_in_the_middle_is_named(
    root: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    with stratalog.open(root, background=False) as store:
        store.topic("t").roll()
        store.topic("t").append(b"40")
    for path in log(root, 20).parent.glob(f"{20:020d}.*"):
        path.unlink()
    command = [sys.executable, "-m", "stratalog", *(each.format(beside=tmp_path) for each in arguments)]
    done = subprocess.run(
        [*command, "--data", str(root)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 5, done.stderr
    assert f"{log(root, 20)}: offsets 20-39 are missing" in done.stderr
    assert "stratalog repair" in done.stderr
