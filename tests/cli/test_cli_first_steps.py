"""What somebody new tries first: refused commands leave nothing behind, and hints fit the command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.cli.guard import ExitCode
from tests.cli.shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path / "data")
    shell.ok("topic", "create", "orders")
    shell.ok("append", "orders", "--key-delimiter", ":", stdin="a:1\nb:2\na:3\n")
    return shell


@pytest.mark.parametrize(
    "arguments",
    [
        ["bad/name"],
        ["t", "--config", "retention.mss=7d"],
        ["t", "--config", "retention.ms=soon"],
        ["t", "--partitions", "1000000"],
        ["t", "--config", "cleanup.policy=compact", "--config", "segment.bytes=1"],
    ],
)
def test_a_refused_topic_makes_no_store(tmp_path: Path, arguments: list[str]) -> None:
    result = Shell(tmp_path / "new")("topic", "create", *arguments)
    assert result.exit_code == ExitCode.USAGE, result.output
    assert not (tmp_path / "new").exists()


def test_a_trial_adoption_into_a_new_store(shell: Shell, tmp_path: Path) -> None:
    other = Shell(tmp_path / "new")
    trial = other("adopt", "orders", *shell.paths, "--dry-run")
    assert trial.exit_code == 0, trial.output
    assert "would adopt orders" in trial.stderr
    assert not (tmp_path / "new").exists()
    assert other("adopt", "nope", *shell.paths, "--dry-run").exit_code == ExitCode.NOT_FOUND
    assert other("adopt", "bad/name", *shell.paths).exit_code != 0
    other.ok("adopt", "orders", *shell.paths)
    again = other("adopt", "orders", *shell.paths, "--dry-run")
    assert again.exit_code == ExitCode.TOPIC_EXISTS
    assert "--name" in again.stderr


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_a_store_does_not_adopt_its_own_topics(shell: Shell, dry_run: list[str]) -> None:
    result = shell("adopt", "orders", *shell.paths, *dry_run)
    assert result.exit_code == ExitCode.USAGE
    assert "the store itself" in result.stderr
    assert "broker first" not in result.stderr


def test_dump_of_what_is_not_there(shell: Shell, tmp_path: Path) -> None:
    for name in ("nothing", "nothing.log"):
        result = dump(tmp_path / name)
        assert result.returncode == ExitCode.NOT_FOUND, result.stderr
        assert f"{tmp_path / name}: no such file or directory" in result.stderr


def test_dump_of_a_store(shell: Shell, tmp_path: Path) -> None:
    result = dump(tmp_path / "data")
    assert result.returncode == ExitCode.NOT_FOUND
    assert f"{tmp_path / 'data'}/orders-0" in result.stderr
    assert result.stdout == ""


def dump(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stratalog", "dump", str(path)], capture_output=True, text=True, check=False
    )


def test_the_package_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stratalog", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("stratalog ")


PYTHON = re.compile(r"\w+=(True|False|…)|alter_topic|create_topic|\w+\(\)")


def test_hints_fit_the_command_line(shell: Shell, tmp_path: Path) -> None:
    exported, cut = tmp_path / "orders.x", tmp_path / "cut.x"
    shell.ok("export", "orders", str(exported))
    cut.write_bytes(exported.read_bytes()[: exported.stat().st_size // 2])
    clone = tmp_path / "clone"
    shell.ok("clone", str(clone))
    other = Shell(tmp_path / "other")
    said = {
        "exists": shell("topic", "create", "orders").stderr,
        "collides": [shell.ok("topic", "create", "a.b"), shell("topic", "create", "a_b").stderr][1],
        "import": shell("import", str(exported)).stderr,
        "cut": other("import", str(cut)).stderr,
        "check": other("import", str(cut), "--check").stderr,
        "graduate": shell("graduate", "orders", str(clone)).stderr,
        "adopt": other("adopt", "orders", *shell.paths).stderr,
    }
    for what, text in said.items():
        assert not PYTHON.search(text), (what, text)
    assert "--if-not-exists" in said["exists"]
    assert "topic alter" not in said["collides"]
    assert "--name" in said["import"]
    for what in ("cut", "check"):
        assert "stratalog verify" not in said[what]
        assert "export" in said[what].partition("—")[2], said[what]
    assert "--dry-run" in said["graduate"]
    assert "topic alter" in said["adopt"] or "--config" in said["adopt"]


@pytest.mark.parametrize(
    ("command", "shown"), [([], "topic"), (["pipeline"], "ingest"), (["topic"], "create")]
)
def test_no_arguments_show_the_help(command: list[str], shown: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stratalog", *command], check=False, capture_output=True, text=True
    )
    assert done.returncode == ExitCode.USAGE
    assert shown in done.stdout
    assert "Usage" in done.stdout


def test_a_refused_import_makes_no_store(tmp_path: Path) -> None:
    result = Shell(tmp_path / "new")("import", str(tmp_path / "missing"))
    assert result.exit_code == ExitCode.NOT_FOUND
    assert not os.path.exists(tmp_path / "new")
