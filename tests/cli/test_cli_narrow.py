"""Tables on narrow terminals: whole columns go, the least important first; no cell is cut."""

from __future__ import annotations

import io
import re
import sys

import pytest

import stratalog
from stratalog.cli import console
from stratalog.cli.console import Table
from stratalog.cli.guard import ExitCode
from tests.cli.shell import Shell


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(table: Table, width: int, monkeypatch) -> str:
    screen = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", screen)
        for name, value in (("COLUMNS", str(width)), ("TERM", "xterm"), ("NO_COLOR", "1")):
            patch.setenv(name, value)
        console.show(table)
    return re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())


def table() -> Table:
    made = Table("*topic", ">partition", "->end", ">lag", "--last commit", "~note")
    made.add("orders", 0, 1_234_567, 12, "2026-01-01T00:00:00.000Z", "it was deleted and made again")
    return made


@pytest.mark.parametrize("width", [40, 50, 60, 70, 80, 120, 200])
def test_no_cell_is_cut(width, monkeypatch):
    text = drawn(table(), width, monkeypatch)
    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "orders" in text


def test_the_least_important_goes_first(monkeypatch):
    wide = drawn(table(), 200, monkeypatch)
    assert "last commit" in wide.splitlines()[0]
    assert "1,234,567" in wide
    assert "not shown" not in wide
    narrow = drawn(table(), 60, monkeypatch)
    assert "last commit" not in narrow.splitlines()[0]
    assert "not shown, too narrow: last commit" in narrow
    assert "1,234,567" in narrow
    narrowest = drawn(table(), 42, monkeypatch)
    assert "12" in narrowest
    assert "1,234,567" not in narrowest
    assert "not shown, too narrow: end, last commit" in narrowest


def test_a_long_name_is_wrapped_and_the_rest_stays(monkeypatch):
    made = Table("*topic", ">lag")
    made.add("t" * 200, 12)
    text = drawn(made, 60, monkeypatch)
    assert text.count("t") >= 200
    assert "12" in text


def test_a_pipe_gets_everything():
    assert table().plain().splitlines()[1].split()[:5] == [
        "orders",
        "0",
        "1234567",
        "12",
        "2026-01-01T00:00:00.000Z",
    ]


@pytest.fixture
def shell(tmp_path):
    shell = Shell(tmp_path / "data")
    shell.ok("topic", "create", "t", "--config", "remote.storage.enable=true")
    shell.ok("append", "t", stdin=b"one\ntwo\n")
    shell.ok("roll", "t")
    return shell


@pytest.mark.parametrize("target", ["copy", "t-0/copy", "."])
def test_a_copy_inside_the_store_is_refused(shell, tmp_path, target):
    for command in ("clone", "restore"):
        done = shell(command, str(tmp_path / "data" / target))
        assert done.exit_code == ExitCode.USAGE, done.output
    assert not (tmp_path / "data" / "copy").exists()
    assert not (tmp_path / "data" / "stratalog.clones").exists()
    shell.ok("verify")


def test_a_preview_against_a_wrong_archive_fails(shell, tmp_path):
    (tmp_path / "file").write_text("not an archive")
    done = shell("archive", "--preview", "--store-config", f"log.archive.url={tmp_path / 'file'}")
    assert done.exit_code == ExitCode.STORAGE, done.output
    assert str(tmp_path / "file") in done.stderr
    done = shell("archive", "--preview", "--store-config", f"log.archive.url={tmp_path / 'new'}")
    assert done.exit_code == 0, done.output


def test_dump_of_what_is_not_there_fails(tmp_path):
    done = Shell()("dump", str(tmp_path / "absent"))
    assert done.exit_code == ExitCode.NOT_FOUND
    assert done.stderr == f"{tmp_path / 'absent'}: no such file or directory\n"


def test_messages_have_their_python_apart(tmp_path):
    with stratalog.open(tmp_path) as store:
        topic = store.create_topic("t")
        store.delete_topic("t")
        store.create_topic("t")
        with pytest.raises(stratalog.errors.UnknownTopicError) as deleted:
            topic.append(b"x")
    with (
        stratalog.open(tmp_path, read_only=True) as store,
        pytest.raises(stratalog.errors.ReadOnlyError) as refused,
    ):
        store.create_topic("new")
    assert "(" not in deleted.value.message
    assert "store.topic('t')" in str(deleted.value)
    assert "True" not in refused.value.message
    assert "read_only=True" in str(refused.value)
