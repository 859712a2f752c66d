"""Several steps from a file: checked before the first, ended by the first that fails, resumed after it."""

from __future__ import annotations

import fcntl
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from stratalog import errors
from stratalog.cli.app import app
from stratalog.cli.pipelines import COMMANDS
from stratalog.cli.pipelines.common import Run
from stratalog.cli.pipelines.quiet import SparkLog
from stratalog.cli.session import Session
from stratalog.errors import ConfigError, CorruptionError, NotFoundError
from stratalog.spark.pipelines import NAMES, steps
from stratalog.spark.pipelines.failures import is_unknown, ours
from stratalog.spark.pipelines.result import PipelineResult
from stratalog.spark.pipelines.steps import Plan, Step, pipeline, read_plan, run_plan
from tests.spark.direct import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS = """
[session]
master = "local[1]"
conf = { "spark.ui.enabled" = false }
[defaults]
path = "here"
[[step]]
pipeline = "stats"
keys = false
[[step]]
pipeline = "check"
label = "fresh"
since = 2026-01-01T00:00:00Z
limits = { max_age = "1h" }
"""


def test_a_plan_is_read() -> None:
    plan = read_plan(STEPS, "plan.toml", {"path": "elsewhere", "archive": "cold"})
    assert (plan.master, plan.conf) == ("local[1]", {"spark.ui.enabled": "false"})
    stats, check = plan.steps
    assert stats.arguments == {"path": "here", "archive": "cold", "keys": False}
    assert (check.label, check.arguments["since"]) == ("fresh", "2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("step", "not TOML"),
        ("", "there is no step"),
        ("steps = 1", "there is no 'steps'"),
        ("[session]\nmaste = 1\n[[step]]\npipeline='stats'", "'maste', takes master and conf"),
        ("[[step]]\nkeys = true", "step 1: pipeline is None"),
        ("[[step]]\npipeline = 'stat'", "step 1: there is no pipeline 'stat' .did you mean stats"),
        ("[[step]]\npipeline = 'stats'\nkey = 1", "step 1: stats has no 'key' .did you mean keys"),
        ("[defaults]\nx = 1\n[[step]]\npipeline = 'stats'", "has 'x', which no step takes"),
    ],
)
def test_a_plan_that_cannot_be(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"plan.toml: .*{told}"):
        read_plan(text, "plan.toml")


def test_every_pipeline_is_a_function_of_its_name() -> None:
    with pytest.raises(ConfigError, match="there is no pipeline 'nope'"):
        pipeline("nope")
    for name in NAMES:
        first, *others = inspect.signature(pipeline(name)).parameters.values()
        assert (first.name, first.kind) == ("spark", inspect.Parameter.POSITIONAL_OR_KEYWORD), name
        assert {each.kind for each in others} == {inspect.Parameter.KEYWORD_ONLY}, name
        assert {"path", "progress"} <= {each.name for each in others}, name
    assert (*NAMES, "run") == COMMANDS


class Recorder:
    """Stands for the pipelines; those in ``failing`` raise, those in ``broken`` are not ok."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.failing: set[str] = set()
        self.broken: set[str] = set()

    def __call__(self, name: str) -> Any:
        def run(spark: object, *, progress: object, n: int) -> PipelineResult:
            self.ran.append(name)
            if name in self.failing:
                raise CorruptionError("bad", path="x.log", position=3)
            return PipelineResult(name, {"n": n}, ok=name not in self.broken)

        return run


def plan_of(*names: str) -> Plan:
    return Plan("plan.toml", tuple(Step(at, name, name, {"n": at}) for at, name in enumerate(names, 1)))


def test_steps_stop_and_resume(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recorder, state = Recorder(), str(tmp_path / "plan.state")
    monkeypatch.setattr(steps, "pipeline", recorder)
    session: Any = object()

    def run(plan: Plan, *, resume: bool = False) -> list[str]:
        recorder.ran.clear()
        run_plan(lambda: session, plan, state=state, resume=resume)
        return list(recorder.ran)

    recorder.failing = {"b"}
    with pytest.raises(CorruptionError) as caught:
        run(plan_of("a", "b", "c"))
    assert caught.value.__notes__ == ["plan.toml: step 2 (b)"]
    assert recorder.ran == ["a", "b"]
    recorder.failing, recorder.broken = set(), {"c"}
    assert run(plan_of("a", "b", "c"), resume=True) == ["b", "c"]
    assert run(plan_of("a", "b", "c"), resume=True) == ["c"], "a limit that was broken is looked at again"
    recorder.broken = set()
    assert run(plan_of("a", "x", "c"), resume=True) == ["x", "c"], "a step that changed, and all behind it"
    assert not os.path.exists(state), "done: the next run begins anew"
    assert run(plan_of("a", "b"), resume=True) == ["a", "b"]
    recorder.broken = {"b"}
    run(plan_of("a", "b"))
    assert run(plan_of("a", "b")) == ["a", "b"], "not asked to resume"
    Path(state).write_text("{}")
    with pytest.raises(CorruptionError, match="remove it to begin anew"):
        run(plan_of("a"), resume=True)


def test_run_a_file(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "log")
    file = tmp_path / "steps.toml"
    text = """
    [[step]]
    pipeline = "stats"
    keys = false
    [[step]]
    pipeline = "check"
    label = "volume"
    limits = { min_records = 100 }
    """
    file.write_text(text)
    line = ["pipeline", "run", str(file), "--data", str(tmp_path / "log")]
    told = CliRunner().invoke(app, [*line, "--json"])
    assert told.exit_code == 1, told.output
    stats, check = json.loads(told.stdout)
    assert (stats["counts"]["records"], check["ok"], check["step"]) == (80, False, "volume")
    file.write_text(text.replace("100", "80"))
    again = CliRunner().invoke(app, [*line, "--resume"])
    assert again.exit_code == 0, again.output
    assert "step 1 (stats): done by the last run, skipped" in again.stderr
    assert "all kept" in again.stderr
    file.write_text(text.replace("stats", "check"))
    wrong = CliRunner().invoke(app, line)
    assert wrong.exit_code == 2
    assert "check has no 'keys'" in wrong.stderr
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        file.write_text(text)
        assert CliRunner().invoke(app, line).exit_code == 6


def test_a_pipelines_own_arguments_reach_it(
    monkeypatch: pytest.MonkeyPatch, spark: SparkSession, tmp_path: Path
) -> None:
    taken: dict[str, object] = {}

    def ingest(session: object, **arguments: object) -> PipelineResult:
        taken.update(arguments)
        return PipelineResult("ingest", {"records": 1, "dead_letter_bytes": 2048})

    monkeypatch.setattr(steps, "pipeline", lambda name: ingest)
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
    assert "pip install 'stratalog[spark]'" in missing.stderr


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
