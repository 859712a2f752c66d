"""What every pipeline command has in common: its function, arguments and errors, and Spark's messages."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog import errors
from stratalog.cli.commands.pipelines import COMMANDS
from stratalog.cli.commands.pipelines.run import Run, SparkLog
from stratalog.cli.session import Session
from stratalog.errors import ConfigError, CorruptionError, NotFoundError
from stratalog.spark import pipelines
from stratalog.spark.pipelines import NAMES, PipelineResult, pipeline
from stratalog.spark.pipelines.executors import is_unknown, ours
from tests.spark.direct import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_pipeline_is_a_function_of_its_name() -> None:
    with pytest.raises(ConfigError, match="unknown pipeline .nope."):
        pipeline("nope")
    for name in NAMES:
        first, *others = inspect.signature(pipeline(name)).parameters.values()
        assert (first.name, first.kind) == ("spark", inspect.Parameter.POSITIONAL_OR_KEYWORD), name
        assert {each.kind for each in others} == {inspect.Parameter.KEYWORD_ONLY}, name
        assert {"path", "progress"} <= {each.name for each in others}, name
    assert NAMES == COMMANDS


def test_a_pipelines_own_arguments_reach_it(
    monkeypatch: pytest.MonkeyPatch, spark: SparkSession, tmp_path: Path
) -> None:
    taken: dict[str, object] = {}

    def ingest(session: object, **arguments: object) -> PipelineResult:
        taken.update(arguments)
        return PipelineResult("ingest", {"records": 1, "dead_letter_bytes": 2048})

    monkeypatch.setattr(pipelines, "pipeline", lambda name: ingest)
    line = Run(Session((str(tmp_path / "new"),)), archive="cold")
    line("ingest", create=True, name="nightly")
    assert taken == {
        "path": [str(tmp_path / "new")],
        "archive": "cold",
        "name": "nightly",
        "progress": None,
    }
    with pytest.raises(NotFoundError, match="no store at"):
        line("ingest")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("export OUT --table paper", "table: expected one of"),
        ("export OUT --schema id,,", "schema: expected BOOLEAN"),
        ("export OUT --schema id:INT --on-misfit drop", "on_misfit: expected one of"),
        ("stats --key-sample 2", "key_sample"),
        ("replay into --topic orders --isolation dirty", "isolation"),
        ("materialize orders OUT --as-of-time yesterday", "as_of"),
        ("check", "pass one such as __max_age 15m, or __limits FILE"),
        ("check --max-null-keys some", "max_null_keys"),
        ("ingest orders rows.json --format paper", "format"),
    ],
)
def test_arguments_are_checked_before_spark_starts(tmp_path: Path, line: str, told: str) -> None:
    """Where there is no Java at all, the error is still about the argument."""
    fill(tmp_path / "log", records=1)
    (tmp_path / "rows.json").write_text("{}\n")
    line = line.replace("OUT", str(tmp_path / "out")).replace("rows.json", str(tmp_path / "rows.json"))
    name, *rest = line.split()
    found = subprocess.run(
        [sys.executable, "-m", "stratalog", "--data", str(tmp_path / "log"), "pipeline", name, *rest],
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 2, found.stderr
    assert "JDK" not in found.stderr
    assert told in found.stderr.replace("-", "_"), found.stderr
    assert "`stratalog config`" not in found.stderr, "it does not list the arguments of pipelines"


def test_small_and_header_only_work_needs_no_spark(tmp_path: Path) -> None:
    """Where there is no Java at all; ``--spark`` and a master ask for it."""
    fill(tmp_path / "log", partitions=2)

    def run(*line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "stratalog", "--data", str(tmp_path / "log"), "pipeline", *line, "--json"],
            env={**os.environ, "JAVA_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    for words in (["stats"], ["stats", "--no-keys"], ["check", "--min-records", "1", "--max-null-keys", "0"]):
        done = run(*words)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["counts"]["records"] == 160
        for more in (["--spark"], ["--master", "local[1]"], ["--conf", "spark.ui.enabled=false"]):
            done = run(*words, *more)
            assert done.returncode == 2
            assert "JDK" in done.stderr
            if words != ["stats"]:
                break
    done = run("export", str(tmp_path / "out"), "--schema", "id BIGINT")
    assert "JDK" in done.stderr, "a schema needs no session to be read"


def test_errors_of_executors_are_ours() -> None:
    from py4j.protocol import Py4JError

    words = "x.log at byte 3: bad CRC"
    text = f'An error occurred\n  File "x.py"\nstratalog.errors.CorruptionError: {words}\n\tat org.apache'
    found = ours(Py4JError(text))
    assert type(found) is CorruptionError
    assert str(found) == words
    gone = ours(
        Py4JError("stratalog.errors.OffsetOutOfRangeError: gone\noption 'failOnDataLoss': it is true")
    )
    assert str(gone).splitlines() == ["gone", "option 'failOnDataLoss': it is true"]
    other = ours(Py4JError("at x\njava.lang.OutOfMemoryError: Java heap space\n\tat y"))
    assert str(other) == "Spark failed: OutOfMemoryError: Java heap space"
    assert ours(ValueError("x")) is None
    assert [is_unknown(each) for each in (Py4JError(text), Py4JError("at x"), ValueError("x"))] == [
        False,
        True,
        False,
    ]
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.StratalogError):
            made = ours(Py4JError(f"stratalog.errors.{kind.__name__}: words"))
            assert str(made) == "words"


def test_without_pyspark_the_command_line_works(tmp_path: Path) -> None:
    fill(tmp_path / "log")
    script = "import sys; sys.modules['pyspark'] = None; from stratalog.cli.app import app; app(sys.argv[1:])"

    def run(*line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", script, "pipeline", *line], capture_output=True, text=True, check=False
        )

    told = run("--help")
    assert told.returncode == 0, told.stderr
    assert all(name in told.stdout for name in COMMANDS)
    missing = run("stats", "--data", str(tmp_path / "log"))
    assert missing.returncode == 2
    assert "needs PySpark 4.2 or later — `pip install 'stratalog[spark]'`" in missing.stderr
    assert "see `stratalog config`" not in missing.stderr


@pytest.mark.parametrize("failed", [False, True])
def test_sparks_own_messages_are_kept_apart(capfd: pytest.CaptureFixture[str], failed: bool) -> None:
    log = SparkLog()
    with log.taking():
        subprocess.run("echo noise >&2; echo 'data loss: three' >&2", shell=True, check=True)
    log.close(failed=failed)
    ours, *where = capfd.readouterr().err.splitlines()
    assert ours == "data loss: three"
    assert len(where) == failed
    if failed:
        path = Path(where[0].split(";")[0].rpartition(" ")[2])
        assert path.read_text().startswith("noise")
        path.unlink()
