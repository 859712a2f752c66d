"""Damaged foreign directories: every golden topic, stopped unclean, flipped, cut or robbed of a file.

Each round gives right data or a named error, never silence. The seed of a round is in its test's name and
replays it; ``STRATALOG_DAMAGE_ROUNDS`` sets how many rounds each topic gets.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

import stratalog
from stratalog.errors import FormatError
from stratalog.store.lifecycle.reports import verify

GOLDEN = Path(__file__).parent.parent / "golden" / "kafka-4.3.1" / "log-dir"
LOGS = [log for log in GOLDEN.glob("*/*.log") if log.stat().st_size]
PARTITIONS = sorted({log.parent.name for log in LOGS})
ROUNDS = int(os.environ.get("STRATALOG_DAMAGE_ROUNDS", "4"))

Found = dict[int, tuple[bytes | None, bytes | None]]


def contents(topic: stratalog.Topic, partition: int) -> Found:
    return {record.offset: (record.key, record.value) for record in topic.read(partition, skip_damaged=True)}


def copy_of(name: str, target: Path, rng: random.Random, end: int) -> int:
    """A copy of one partition without the mark of a clean stop; returns its recovery point."""
    target.mkdir()
    shutil.copytree(GOLDEN / name, target / name)
    for root_file in ("meta.properties", "log-start-offset-checkpoint"):
        shutil.copyfile(GOLDEN / root_file, target / root_file)
    for path in [target / name, *(target / name).iterdir()]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    topic, _, number = name.rpartition("-")
    point = rng.choice([0, end // 2, end])
    checkpoint = f"0\n1\n{topic} {number} {point}\n"
    (target / "recovery-point-offset-checkpoint").write_text(checkpoint)
    return point


def harm(directory: Path, rng: random.Random) -> str:
    """Flip a byte, cut a log short, or delete one."""
    log = rng.choice([path for path in sorted(directory.glob("*.log")) if path.stat().st_size])
    data = bytearray(log.read_bytes())
    how = rng.choice(["flip", "cut", "delete"])
    if how == "flip":
        at = rng.randrange(len(data))
        data[at] ^= 1 << rng.randrange(8)
        log.write_bytes(data)
        return f"{log.name}: byte {at}"
    if how == "cut":
        size = rng.randrange(len(data))
        log.write_bytes(data[:size])
        return f"{log.name}: cut to {size}"
    log.unlink()
    return f"{log.name}: deleted"


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.parametrize("name", PARTITIONS)
def test_damage_is_named_or_does_no_harm(name: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"{name} {seed}")
    topic_name, _, number = name.rpartition("-")
    partition = int(number)
    with stratalog.open(GOLDEN, read_only=True) as store:
        whole = contents(store.topic(topic_name), partition)
        end = store.topic(topic_name).log_end_offset(partition)
    root = tmp_path / "root"
    point = copy_of(name, root, rng, end)
    done = harm(root / name, rng)
    with stratalog.open(root, background=False) as store:
        topic = store.topic(topic_name)
        [report] = store.recovery
        found = contents(topic, partition)
        assert found.items() <= whole.items(), f"{done}: what is read was written"
        # A head that is gone looks like retention, and a tail that was never synced may be gone.
        start, seen = topic.log_start_offset(partition), max(found, default=-1)
        lost = sorted(n for n in whole.keys() - found.keys() if start <= n < max(point, seen))
        synced = [offset for offset in lost if offset < point]
        named = bool(report.damages or report.cuts)
        try:
            list(topic.read(partition))
        except FormatError:
            named = True
        named = named or not verify(store).ok
        # Of a compacted log nothing tells whether a whole segment is missing.
        hidden = "deleted" in done and name.startswith(("compacted", "__"))
        assert named or hidden or not lost, f"{done}: {lost} are missing and nothing says so"
        if synced and report.cuts:
            assert report.damages or not verify(store).ok, f"{done}: synced records were cut as a torn tail"
        appended = topic.append(b"after", partition=partition, sync=True).offset
        assert appended >= max([point, *(offset + 1 for offset in found)])
    with stratalog.open(root, background=False) as store:
        again = contents(store.topic(topic_name), partition)
        assert again.pop(appended)[1] == b"after"
        assert again == found, f"{done}: the second start reads the same"
