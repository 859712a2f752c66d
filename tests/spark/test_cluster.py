"""On a real standalone cluster: a master and two workers as processes, executors that die, true speculation.

One cluster and one driver for the whole module. Executors get nothing but the package and the path.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pytest

import stratalog
from stratalog import Record
from tests.spark.cluster import Cluster, Driver

ROWS = 4_000
SLOW_S = 240.0
"""Never waited for: the twin is done long before."""

ALONE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("rich", "typer", "obstore", "Cython"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
sys.path.insert(0, sys.argv[1])
import stratalog, stratalog.spark
with stratalog.open(sys.argv[2], read_only=True) as store:
    rows = sum(batch.num_rows for batch in store.topic("in").scan())
print(stratalog.__file__, stratalog.kernel.compiled, rows)
"""
"""What an executor does that got the package with ``--py-files``: sources in an archive, no command line."""

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("cluster") / "log"
    with stratalog.open(where, {"log.segment.bytes": 1 << 20}) as store:
        for name in ("in", "out", "twice", "again", "once-more"):
            store.create_topic(name, 2)
        records = [Record(b"%07d" % at + b"." * 40, b"%d" % (at % 97)) for at in range(ROWS)]
        for begin in range(0, ROWS, 100):
            store.topic("in").append_many(records[begin : begin + 100])
    return where


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("spark") / "cluster") as started:
        yield started


@pytest.fixture(scope="module")
def driver(cluster: Cluster, log: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    started = Driver(cluster.url, log, tmp_path_factory.mktemp("driver"))
    yield started
    started.kill()


def noise(cluster: Cluster) -> dict[Path, int]:
    """What each executor has printed, in bytes."""
    return {each: each.stat().st_size for each in cluster.directory.glob("work*/*/*/stderr")}


def values(log: Path, topic: str) -> list[bytes]:
    with stratalog.open(log, read_only=True) as store:
        return [record.value or b"" for at in range(2) for record in store.topic(topic).read(at)]


def nothing_left(log: Path) -> bool:
    """No file of any attempt, after an open: that is when the last of them go."""
    with stratalog.open(log) as store:
        assert stratalog.verify(store).damages == ()
    return not log.with_name("log.staging").exists()


def wait_until(condition: object, limit_s: float = 300) -> None:
    assert callable(condition)
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.long
def test_a_batch_read_is_pythons_scan(driver: Driver, log: Path, tmp_path: Path) -> None:
    answer = driver.ask("read", topic="in", to=str(tmp_path / "rows"))
    assert answer == {"rows": ROWS}
    found = pyarrow.feather.read_table(str(tmp_path / "rows")).sort_by(
        [("partition", "ascending"), ("offset", "ascending")]
    )
    with stratalog.open(log, read_only=True) as store:
        wanted = pa.Table.from_batches(store.topic("in").scan())
    wanted = wanted.sort_by([("partition", "ascending"), ("offset", "ascending")])
    for name in found.column_names:
        assert found[name].to_pylist() == wanted[name].to_pylist(), name


@pytest.mark.long
def test_an_archive_of_sources_will_do(log: Path, tmp_path: Path) -> None:
    package = Path(stratalog.__file__).parent
    archive = tmp_path / "stratalog.zip"
    with zipfile.ZipFile(archive, "w") as made:
        for each in package.rglob("*.py"):
            made.write(each, each.relative_to(package.parent))
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(archive), str(log)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [f"{archive}/stratalog/__init__.py", "False", str(ROWS)], done.stderr


def test_executors_killed_under_a_stream(cluster: Cluster, driver: Driver, log: Path, tmp_path: Path) -> None:
    wait_until(lambda: len(cluster.executors()) == 2)
    driver.tell("stream", checkpoint=str(tmp_path / "checkpoint"), per_batch=500)
    with stratalog.open(log, read_only=True) as store:
        out = store.topic("out")
        for done in (500, 2_000):
            wait_until(lambda done=done: sum(out.high_watermark(at) for at in range(2)) >= done)  # type: ignore[misc]
            before = cluster.executors()
            os.kill(before[0], signal.SIGKILL)
            wait_until(lambda before=before: set(cluster.executors()) - set(before))  # type: ignore[misc]
    assert driver.answer() == {"done": True}
    found = values(log, "out")
    assert (len(found), len(set(found))) == (ROWS, ROWS)
    assert sorted(found) == sorted(values(log, "in"))
    assert nothing_left(log)


def test_a_speculative_twin_wins_and_nothing_is_there_twice(
    cluster: Cluster, driver: Driver, log: Path
) -> None:
    wait_until(lambda: len(cluster.executors()) == 2)
    rows = 80_000
    for topic in ("twice", "again", "once-more"):
        answer = driver.ask("write", topic=topic, rows=rows, slow_s=SLOW_S)
        notes = {each: each.name.split("-")[2] for each in driver.noise.parent.glob("attempt-*")}
        found = values(log, topic)
        assert (len(found), len(set(found))) == (rows, rows)
        assert nothing_left(log)
        if sorted(notes.values()) == ["0", "1"]:
            break
        for each in notes:  # on a busy machine the twin may begin before the first attempt gets slow
            each.unlink()
    else:
        pytest.fail("the slow attempt never got a twin")
    assert answer["seconds"] < SLOW_S, "the slow attempt was waited for"


@pytest.mark.long
def test_a_query_that_stops_early_prints_no_traceback(cluster: Cluster, driver: Driver) -> None:
    before = noise(cluster)
    assert driver.ask("few", topic="twice") == [3, 10, True, False]
    time.sleep(1)  # workers notice a moment later that nobody listens
    for path in noise(cluster):
        said = path.read_bytes()[before.get(path, 0) :].decode(errors="replace")
        assert "Traceback" not in said, said
