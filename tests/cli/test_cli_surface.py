"""The command line itself: errors, exit codes, tables, settings, start-up; no store is opened."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from stratalog import errors
from stratalog.cli import guard
from stratalog.cli.app import app
from stratalog.cli.commands.append import Tally
from stratalog.cli.commands.segments import segment_facts, segment_table
from stratalog.cli.commands.topics import complete_setting
from stratalog.cli.console import Table, counted, progress
from stratalog.cli.guard import ExitCode, exit_code
from stratalog.cli.session import Session
from stratalog.config import SETTINGS
from stratalog.model import SegmentInfo, SegmentState
from tests.cli.shell import Shell

run = CliRunner(env={"STRATALOG_DATA": ""}).invoke

ERRORS = [
    (errors.ConfigError("bad"), ExitCode.USAGE),
    (errors.InvalidTopicError("bad"), ExitCode.USAGE),
    (errors.RecordTooLargeError("big"), ExitCode.RECORD_REFUSED),
    (errors.UnknownTopicError("no topic x"), ExitCode.NOT_FOUND),
    (errors.TopicExistsError("there"), ExitCode.TOPIC_EXISTS),
    (errors.OffsetOutOfRangeError("out", offset=9, first=0, end=5), ExitCode.OFFSET_OUT_OF_RANGE),
    (errors.CorruptionError("bad CRC", path="x.log", position=3), ExitCode.CORRUPTION),
    (errors.UnsupportedFormat("magic 1"), ExitCode.UNSUPPORTED_FORMAT),
    (errors.StoreLockedError("held", pid=7, control="/s"), ExitCode.LOCKED),
    (errors.ControlError("silent"), ExitCode.LOCKED),
    (errors.ClusterError("no broker answered at h:1"), ExitCode.CLUSTER),
    (errors.DiskFullError("full"), ExitCode.STORAGE),
    (errors.ReadOnlyError("read-only"), ExitCode.STORAGE),
    (errors.StratalogError("other"), ExitCode.FAILURE),
    (FileNotFoundError(2, "No such file or directory", "here"), ExitCode.NOT_FOUND),
    (PermissionError(13, "Permission denied", "here"), ExitCode.STORAGE),
    (ZeroDivisionError("a bug"), ExitCode.FAILURE),
]


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=lambda value: type(value).__name__)
def test_every_error_is_one_line_and_a_code(monkeypatch, error, code):
    def fail(self: Session):
        raise error

    monkeypatch.setattr(Session, "read", fail)
    result = run(app, ["topic", "list", "--data", "x"])
    assert result.exit_code == code == exit_code(error)
    assert result.stdout == ""
    assert result.stderr.startswith("stratalog: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr

    for arguments in (
        ["--debug", "topic", "list", "--data", "x"],
        ["topic", "list", "--data", "x", "--debug"],
    ):
        assert run(app, arguments).exception is error


def test_errors_say_the_way_out():
    said = {type(error): guard.explain(error) for error, _ in ERRORS}
    assert said[errors.OffsetOutOfRangeError] == "out", "its own text names the range"
    assert "did not answer" in said[errors.StoreLockedError]
    assert "stratalog topic list" in said[errors.UnknownTopicError]
    assert "stratalog verify" in said[errors.CorruptionError]
    assert "free some disk space" in said[errors.DiskFullError]
    assert "here: Permission denied" in said[PermissionError]
    assert "stop that process" in guard.explain(errors.StoreLockedError("held"))
    assert "only read" in guard.explain(errors.StoreLockedError("held", pid=3))


def test_every_error_class_has_a_code_on_purpose():
    plain = {errors.StratalogError, errors.StoreError, errors.ClosedError, errors.ForkedError}
    plain |= {errors.ConcurrentUseError}  # of a program, never of a command
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.StratalogError):
            expected = kind in plain or issubclass(kind, errors.ProducerError)
            assert (exit_code(kind.__new__(kind)) is ExitCode.FAILURE) == expected, kind


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (BrokenPipeError(), 141)])
def test_quiet_endings(monkeypatch, error, code):
    def fail(self: Session):
        raise error

    monkeypatch.setattr(Session, "read", fail)
    monkeypatch.setattr(guard, "silence_stdout", lambda: None)
    result = run(app, ["topic", "list", "--data", "x"])
    assert (result.exit_code, result.output) == (code, "")


def test_help_lists_the_exit_codes():
    result = run(app, ["--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for code in ExitCode:
        assert str(code.value) in result.stdout
        assert code.meaning.split(",")[0].split()[0] in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["read"],
        ["read", "t", "--from", "soon", "--data", "x"],
        ["read", "t", "--format", "%q", "--data", "x"],
        ["read", "t", "--format", "%s", "--json", "--data", "x"],
        ["read", "t", "--last", "--data", "x"],
        ["read", "t", "--follow", "--to", "5", "--data", "x"],
        ["read", "t", "--limit", "-1", "--data", "x"],
        ["read", "t", "--limit", "9" * 20, "--data", "x"],
        ["topic", "create", "t", "--partitions", "9" * 20, "--data", "x"],
        ["topic", "alter", "t", "--partitions", "9" * 20, "--data", "x"],
        ["topic", "list", "--data", ""],
        ["append", "t", "--jsonl", "--whole", "--data", "x"],
        ["append", "t", "--key", "k", "--key-delimiter", ":", "--data", "x"],
        ["append", "t", "--key-delimiter", "", "--data", "x"],
        ["append", "t", "--header", "=x", "--data", "x"],
        ["append", "t", "--timestamp", "soon", "--data", "x"],
        ["topic", "create", "t", "--config", "segment.bytes", "--data", "x"],
        ["topic", "create", "t", "--config", "segment.byte=1", "--data", "x"],
        ["topic", "create", "t", "-c", "segment.bytes=1MiB", "-c", "segment.bytes=2MiB", "--data", "x"],
        ["topic", "alter", "t", "--data", "x"],
        ["topic", "alter", "t", "-c", "segment.ms=1h", "--unset", "segment.ms", "--data", "x"],
        ["topic", "delete", "t", "--data", "x"],
        ["segments", "--partition", "1", "--data", "x"],
        ["verify", "--partition", "1", "--data", "x"],
        ["repair", "t", "--action", "pray", "--data", "x"],
        ["config", "--changed"],
        ["config", "--find", "nothing.like.it"],
        ["topic", "list"],
    ],
    ids=" ".join,
)
def test_wrong_command_lines_end_with_2(arguments):
    result = run(app, arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1, "one line where stderr is no terminal"
    assert result.stderr.startswith("stratalog: ")
    assert not {"Error", "islice", "create_topic", "None"} & set(result.stderr.replace(":", " ").split())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["read", "t", "--limit", "x"], "'--limit' / '-n': must be a whole number, not 'x'"),
        (["read", "t", "--limit", "1.5"], "must be a whole number, not '1.5'"),
        (["read", "t", "--limit", "-1"], "must be at least 0, not '-1'"),
        (["read", "t", "-p", "0", "-p", "a"], "must be a whole number, not 'a'"),
        (["topic", "create", "t", "--partitions", "0"], "must be at least 1, not '0'"),
        (["topic", "create", "t", "--partitions", "9999999999"], "must be at most 2147483647, not"),
        (["dump", "--max-message-size", "x"], "must be a whole number, not 'x'"),
        (["repair", "t", "--action", "pray"], "'--action' / '-a': 'pray' is not one of 'rebuild-indexes'"),
        (["--json", "topic", "list"], "--json stands behind the command: `stratalog COMMAND … --json`"),
        (["topic", "--read-only", "list"], "`stratalog topic COMMAND … --read-only`"),
        (["topic", "-S", "a=b", "list"], "-S stands behind the command"),
        (["--jsn", "topic", "list"], "No such option: --jsn"),
    ],
)
def test_what_is_wrong_is_told_in_plain_words(arguments, told):
    result = run(app, arguments)
    assert result.exit_code == ExitCode.USAGE
    assert told in result.stderr


def test_the_name_of_a_setting_is_not_taken_for_a_mistyped_topic(tmp_path):
    shell = Shell(tmp_path / "data")
    shell.ok("topic", "create", "t")
    result = shell("config", "retention.ms")
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "`stratalog config --find retention.ms` shows the setting" in result.stderr
    assert "`stratalog topic list`" in shell("config", "retention").stderr


@pytest.mark.parametrize(
    "arguments", [["topic", "list"], ["read", "t"], ["append", "t"], ["verify"], ["log-dirs"], ["segments"]]
)
def test_a_mistyped_path_is_told_and_not_made(tmp_path, arguments):
    result = run(app, [*arguments, "--data", str(tmp_path / "typo")], input="x\n")
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "no store at" in result.stderr
    assert "mounted" in result.stderr, "a directory below a disk that is not mounted is missing too"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["read", "t"],
        ["append", "t"],
        ["verify"],
        ["log-dirs"],
        ["janitor"],
        ["retain", "--preview"],
        ["lifecycle"],
        ["topic", "delete", "t", "--yes"],
    ],
)
def test_an_empty_directory_is_no_store(tmp_path, arguments):
    """A disk that is not mounted, or a path like /etc, must not look like a store, nor be written to."""
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "dbus-1").mkdir()  # the name of a partition, but none of its files
    (tmp_path / "dbus-1" / "session.conf").touch()
    result = run(app, [*arguments, "--data", str(tmp_path)], input="x\n")
    assert result.exit_code == ExitCode.NOT_FOUND
    assert f"no store at {tmp_path}" in result.stderr
    assert "mounted" in result.stderr
    assert {path.name for path in tmp_path.rglob("*")} == {"lost+found", "dbus-1", "session.conf"}


def test_a_store_begins_in_an_empty_directory(tmp_path):
    assert run(app, ["topic", "create", "t", "--data", str(tmp_path)]).exit_code == 0
    assert run(app, ["topic", "delete", "t", "--yes", "--data", str(tmp_path)]).exit_code == 0
    assert run(app, ["topic", "list", "--data", str(tmp_path)]).exit_code == 0


def test_data_by_environment_and_in_front(monkeypatch):
    assert Session(("a", "b")).paths == ["a", "b"]
    monkeypatch.setenv("STRATALOG_DATA", f"c{os.pathsep}d")
    assert Session().paths == ["c", "d"]
    result = run(app, ["--data", "in-front", "topic", "list"])
    assert "in-front" in result.stderr
    result = run(app, ["--data", "in-front", "topic", "list", "--data", "behind"])
    assert "behind" in result.stderr
    result = run(app, ["topic", "list"], env={"STRATALOG_DATA": "by-environment"})
    assert "by-environment" in result.stderr


def test_an_append_without_input_still_needs_its_topic(tmp_path):
    shell = Shell(tmp_path / "data")
    shell.ok("topic", "create", "t", "--partitions", "2")
    result = shell("append", "nope", stdin=b"")
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "nope" in result.stderr
    assert shell("append", "t", "--partition", "2", stdin=b"").exit_code == ExitCode.NOT_FOUND
    assert "appended 0 records to t" in shell("append", "t", stdin=b"").output


def test_a_file_of_another_kind_is_not_imported(tmp_path):
    (tmp_path / "notes.txt").write_text("hello\n" * 500)
    result = Shell(tmp_path / "data")("import", str(tmp_path / "notes.txt"))
    assert result.exit_code == ExitCode.USAGE
    assert "notes.txt is not an exported topic" in result.stderr


def test_flags_have_no_type_in_the_help():
    for arguments in (["--help"], ["append", "--help"], ["topic", "create", "--help"]):
        assert "<bool>" not in run(app, arguments).stdout


def test_a_setting_is_found_by_its_whole_name():
    shown = run(app, ["config", "--find", "retention.ms"]).stdout
    assert shown.startswith("retention.ms")
    assert "delete.retention.ms" not in shown.splitlines()[0]


def test_config_lists_every_setting():
    result = run(app, ["config", "--json"])
    listed = json.loads(result.stdout)
    assert [item["name"] for item in listed] == [setting.name for setting in SETTINGS]
    assert all(item["doc"] for item in listed)
    text = run(app, ["config"]).stdout
    assert all(setting.name in text for setting in SETTINGS)
    assert "1.0 GiB" in text
    assert "createtime" not in text, "values are shown as they are written"
    docs = run(app, ["config", "--docs"]).stdout
    assert all(setting.doc in docs for setting in SETTINGS)
    one = run(app, ["config", "--find", "log.roll.hours"]).stdout
    assert one.startswith("segment.ms (long, topic)")
    assert "604800000 (7d)" in one


def test_tables_in_a_pipe_are_plain_and_uncut():
    table = Table("name", ">size", title="title", footer="footer")
    table.add("a" * 200, "1")
    table.add("b", 1000)
    lines = table.plain().splitlines()
    assert lines[0] == "title"
    assert lines[1] == "name" + " " * 198 + "size"
    assert lines[2] == "a" * 200 + "     1"
    assert lines[3] == "b" + " " * 201 + "1000", "numbers are for programs"
    assert lines[4] == "footer"
    assert Table("x", footer="none").plain() == "none"


def test_numbers_in_a_pipe_have_no_separators(tmp_path):
    shell = Shell(tmp_path / "d")
    shell.ok("topic", "create", "t")
    result = shell("append", "t", stdin="y\n" * 1000)
    assert result.stderr.startswith("appended 1000 records to t ")
    assert " 1000 " in shell.ok("topic", "list")
    assert counted(1000, "segment") == "1000 segments"


def segment(**changes: object) -> SegmentInfo:
    facts: dict = {
        "topic": "orders",
        "partition": 0,
        "base_offset": 0,
        "next_offset": 1000,
        "state": SegmentState.SEALED,
        "size_bytes": 1536,
        "path": "/d/orders-0/00000000000000000000.log",
        "min_timestamp": 1_767_225_600_000,
        "max_timestamp": 1_767_225_690_000,
        "records": 1000,
    }
    return SegmentInfo(**(facts | changes))


def test_segments_for_people():
    newest = segment(base_offset=1000, state=SegmentState.ACTIVE, min_timestamp=None, records=None)
    text = segment_table([segment(), newest], with_topic=False, paths=False).plain().splitlines()
    assert text[1].split() == [
        "0",
        "0",
        "1000",
        "sealed",
        "1000",
        "1.5",
        "KiB",
        "2026-01-01",
        "00:00:00",
        "2026-01-01",
        "00:01:30",
    ]
    assert text[2].endswith("1.5 KiB                       2026-01-01 00:01:30")
    assert text[-1] == "2 segments, 3.0 KiB"
    assert "orders" in segment_table([segment()], with_topic=True, paths=True).plain()
    assert "1 segment, 1.5 KiB" in segment_table([segment()], with_topic=True, paths=True).plain()
    assert segment_table([segment(max_timestamp=-1)], with_topic=False, paths=False).plain()
    assert segment_facts(segment())["state"] == "sealed"


def test_what_was_appended_is_told_shortly():
    tally = Tally("orders")
    assert tally.line() == "appended 0 records to orders"
    tally.add(1, 7, 1)
    assert tally.line() == "appended 1 record to orders (partition:offset 1:7)"
    tally.add(0, 5, 3)
    tally.add(0, 8, 2)
    assert tally.line() == "appended 6 records to orders (partition:offset 0:5-9, 1:7)"
    assert tally.facts()["partitions"] == [
        {"partition": 0, "first_offset": 5, "last_offset": 9, "records": 5},
        {"partition": 1, "first_offset": 7, "last_offset": 7, "records": 1},
    ]
    for partition in range(2, 12):
        tally.add(partition, 0, 1)
    assert "and 4 more partitions" in tally.line()


def test_no_progress_without_a_terminal(capsys):
    with progress("working") as report:
        report(1, 2)
    assert capsys.readouterr() == ("", "")


def stratalog(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "stratalog.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_version_is_quick_and_says_which_kernel():
    used = []
    for _ in range(5):  # processor time, so that a busy machine does not matter
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = stratalog("--version")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert result.returncode == 0
    assert result.stdout.startswith("stratalog ")
    assert "kernel compiled" in result.stdout or "kernel interpreted" in result.stdout
    assert "pyarrow " in result.stdout
    assert "Python " in result.stdout
    assert min(used) < 0.3
    assert run(app, ["--version"]).stdout == result.stdout


def test_starting_up_loads_nothing_heavy():
    code = (
        "import sys; import stratalog.cli.app; "
        "print([m for m in ('pyarrow', 'rich', 'stratalog.store', 'asyncio') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("typed", "offered"), [("se", "segments"), ("topic cr", "create"), ("read --iso", "--isolation")]
)
def test_shell_completion(typed, offered):
    words = f"stratalog {typed}"
    bash = {"_STRATALOG_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert offered in stratalog(env=os.environ | bash).stdout.split()
    fish = {"_STRATALOG_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": words}
    assert offered in stratalog(env=os.environ | fish | {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}).stdout


def test_settings_are_completed():
    assert complete_setting("segment.b") == ["segment.bytes="]
