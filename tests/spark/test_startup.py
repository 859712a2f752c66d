"""What a local session keeps for the next one: links to modules, and the JVM's class data."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest

from stratalog.spark.startup import ABANDONED_S, cache_directory, class_data, linked_home, quick_start

SESSION = """
import os, stratalog.spark

spark = stratalog.spark.session("local[1]", spark_driver_extraJavaOptions="-Dgiven=1")
worker = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("pyspark").__file__)
print("worker", worker.first())
print("home", os.environ.get("SPARK_HOME"), os.environ.get("SPARK_SUBMIT_OPTS"))
print("given", spark._jvm.java.lang.System.getProperty("given"))
"""


def session(cache: Path, **environment: str) -> dict[str, str]:
    """Run a session in a process of its own, and wait until its JVM has exited too."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    done = subprocess.run(
        [sys.executable, "-c", SESSION],
        env={**plain, "XDG_CACHE_HOME": str(cache), **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "[cds" not in done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def test_the_second_session_takes_what_the_first_left(tmp_path: Path) -> None:
    installed = str(Path(pyspark.__file__).resolve())
    first = session(tmp_path)
    assert Path(first["worker"]).resolve() == Path(installed)
    assert ".zip/pyspark/" in first["worker"]
    assert (first["home"], first["given"]) == ("None None", "1")
    left = tmp_path / "stratalog"
    # The output ends with the JVM: it has written the archive by then.
    assert [path.suffix for path in left.iterdir() if path.is_file()] == [".part"]

    second = session(tmp_path)
    assert second == first
    (archive,) = (path for path in left.iterdir() if path.is_file())
    assert archive.suffix == ".jsa"

    archive.chmod(0o600)
    archive.write_bytes(b"damaged" * 1000)
    assert session(tmp_path) == first, "an archive that is none is ignored"


def test_a_session_works_where_nothing_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "stratalog").write_text("a file where the directory belongs")
    assert session(tmp_path)["given"] == "1"


def test_what_the_user_has_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    before = dict(os.environ)
    with quick_start(sys.executable):
        assert dict(os.environ) == before
    assert not any(tmp_path.iterdir())


def test_others_must_not_write_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache_directory().chmod(0o777)
    with pytest.raises(PermissionError, match="can be written by others"):
        cache_directory()


def test_links_lead_to_the_same_installation(tmp_path: Path) -> None:
    home = Path(pyspark.__file__).resolve().parent
    linked = linked_home(tmp_path, home)
    assert linked_home(tmp_path, home) == linked
    assert [path.name for path in tmp_path.iterdir()] == [linked.name]
    assert (linked / "jars").resolve() == home / "jars"
    assert {path.name for path in linked.iterdir()} == {path.name for path in home.iterdir()}
    zips = {path.name for path in (home / "python" / "lib").iterdir()}
    assert {path.name for path in (linked / "python" / "lib").iterdir()} == zips
    assert (linked / "python" / "lib" / "pyspark.zip" / "pyspark").resolve() == home


def test_archives_are_adopted_when_they_are_whole(tmp_path: Path) -> None:
    home, cache, java = tmp_path / "home", tmp_path / "cache", tmp_path / "java"
    (home / "jars").mkdir(parents=True)
    cache.mkdir()
    java.touch()
    write = class_data(cache, home, java).rpartition("=")[2]
    assert write.endswith(".part")

    part = Path(write)
    part.write_bytes(bytes(100) + b"regions")
    assert "ArchiveClassesAtExit" in class_data(cache, home, java), "the JVM writes the header last"
    long_ago = time.time() - 2 * ABANDONED_S
    os.utime(part, (long_ago, long_ago))
    class_data(cache, home, java)
    assert not part.exists(), "its JVM was killed"

    part.write_bytes(b"head" + bytes(100))
    archive = class_data(cache, home, java).rpartition("=")[2]
    assert archive.endswith(".jsa")
    assert Path(archive).read_bytes() == b"head" + bytes(100)
    part.write_bytes(b"late")
    assert class_data(cache, home, java).rpartition("=")[2] == archive
    assert not part.exists(), "another session was faster"

    os.utime(java, (1, 1))  # upgraded
    newer = Path(class_data(cache, home, java).rpartition("=")[2])
    assert newer.suffix == ".part"
    newer.write_bytes(b"head")
    renewed = Path(class_data(cache, home, java).rpartition("=")[2])
    assert renewed.exists()
    assert not Path(archive).exists()
    assert class_data(tmp_path / "with space", home, java) == ""
