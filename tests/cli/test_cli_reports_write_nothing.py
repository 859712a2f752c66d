"""Commands that only look leave every file as it was; with --read-only no command changes one."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import stratalog
from stratalog import Record
from stratalog.cli.app import app
from tests.cli.shell import Shell

REPORTS = (
    ("verify",),
    ("read", "t"),
    ("read", "t", "--key", "k3", "--last"),
    ("segments", "t"),
    ("topic", "list"),
    ("topic", "describe", "t"),
    ("config", "t"),
    ("log-dirs",),
    ("lifecycle",),
    ("lifecycle", "t", "--json"),
    ("retain", "--preview"),
    ("compact", "--preview"),
    ("compact", "--preview", "--force"),
    ("archive", "--preview"),
    ("archive", "--list"),
    ("janitor", "--preview", "--json"),
    ("erase", "t", "--key", "k1", "--dry-run"),
    ("repair", "t", "--dry-run"),
    ("repair", "t", "--action", "drop-damaged", "--dry-run"),
    ("repair", "t", "--action", "truncate", "--dry-run"),
    ("import", "--check", "{export}"),
    ("adopt", "a", "{broker}", "--dry-run"),
    ("graduate", "t", "{broker}", "--dry-run"),
    ("export", "t", "{other}"),
)
CHANGES = (
    ("topic", "create", "u"),
    ("topic", "alter", "t", "--config", "retention.ms=1d"),
    ("topic", "delete", "t", "--yes"),
    ("append", "t"),
    ("roll", "t"),
    ("repair", "t", "--action", "truncate", "--yes"),
    ("retain",),
    ("compact",),
    ("janitor",),
    ("erase", "t", "--key", "k1", "--yes"),
    ("clone", "{other}"),
    ("restore", "{other}", "--to-time", "-1m"),
)


def state(root: Path) -> dict[str, tuple[int, int, str]]:
    """Every file and directory: inode, time of the last change, content."""
    found = {}
    for path in [root, *sorted(root.rglob("*"))]:
        stat = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(root))] = (stat.st_ino, stat.st_mtime_ns, content)
    return found


def both(root: Path) -> list[dict[str, tuple[int, int, str]]]:
    """The store and the broker's directory beside it."""
    return [state(root), state(root.parent / "broker")]


def given(arguments: tuple[str, ...], root: Path) -> list[str]:
    beside = root.parent
    paths = {"{other}": beside / "other", "{export}": beside / "export", "{broker}": beside / "broker"}
    return [str(paths.get(each, each)) for each in arguments]


def fill(store: stratalog.Store) -> None:
    topic = store.create_topic("t", 2, {"key.index.enable": True, "cleanup.policy": "compact,delete"})
    for partition in (0, 1):
        for first in (0, 5):
            topic.append_many(
                [Record(b"v", b"k%d" % n) for n in range(first, first + 5)], partition=partition, sync=True
            )
            if not first:
                topic.roll()


@pytest.fixture(params=["clean", "unclean"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    root = tmp_path / "data"
    with stratalog.open(root, background=False) as store:
        fill(store)
        if request.param == "unclean":
            shutil.copytree(root, tmp_path / "killed", ignore=shutil.ignore_patterns(".lock", "*.sock"))
            root = tmp_path / "killed"
            with max((root / "t-0").glob("*.log")).open("ab") as file:
                file.write(b"half a batch")
    return root


def broker(path: Path) -> None:
    """Log directories as a broker's: a topic that can be adopted, and an empty one to hand a topic to."""
    with stratalog.open(path, background=False) as store:
        store.create_topic("a").append(b"v", sync=True)
        store.create_topic("t", 2)


@pytest.fixture(autouse=True)
def others(tmp_path: Path) -> None:
    """A file that `export` made, and a broker's log directory."""
    broker(tmp_path / "broker")
    Shell(tmp_path / "broker").ok("export", "a", str(tmp_path / "export"))


@pytest.mark.parametrize("arguments", REPORTS, ids=" ".join)
def test_a_report_leaves_every_byte_as_it_was(root: Path, arguments: tuple[str, ...]) -> None:
    before = both(root)
    done = Shell(root)(*given(arguments, root), "--read-only")
    assert done.exit_code == 0, done.output
    assert both(root) == before


@pytest.mark.parametrize("arguments", REPORTS[:-1], ids=" ".join)
def test_a_report_or_preview_leaves_every_byte_as_it_was_without_being_told(
    root: Path, arguments: tuple[str, ...]
) -> None:
    before = both(root)
    done = Shell(root)(*given(arguments, root))
    assert done.exit_code == 0, done.output
    assert both(root) == before


@pytest.mark.parametrize("by", ["switch", "environment"])
def test_a_change_is_refused(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    other = tmp_path / "other"
    before = both(root)
    if by == "environment":
        monkeypatch.setenv("STRATALOG_READ_ONLY", "1")
    for arguments in CHANGES:
        done = Shell(root)(*given(arguments, root), *(["--read-only"] if by == "switch" else []), stdin="x\n")
        assert done.exit_code == 7, (arguments, done.output)
        assert isinstance(done.exception, SystemExit)
        assert not other.exists()
    assert both(root) == before


@pytest.mark.parametrize("background", [False, True], ids=["out of reach", "asked"])
def test_a_report_writes_nothing_beside_the_holder_or_through_it(tmp_path: Path, background: bool) -> None:
    root = tmp_path / "data"
    with stratalog.open(root, background=background) as store:
        fill(store)
        store.flush()
        before = both(root)
        for arguments in REPORTS:
            done = Shell(root)(*given(arguments, root), "--read-only")
            assert done.exit_code == 0, (arguments, done.output)
        assert both(root) == before
    assert os.environ.get("STRATALOG_READ_ONLY") is None


def test_a_dump_leaves_every_byte_as_it_was(root: Path) -> None:
    before = state(root)
    done = CliRunner().invoke(app, ["dump", str(root / "t-0"), "--print-data-log", "--read-only"])
    assert done.exit_code == 0, done.output
    assert state(root) == before
