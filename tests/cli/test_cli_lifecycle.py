"""The life of segments from the command line: previews, rounds, numbers, states, erasing, profiles."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time

import pytest

import stratalog
from stratalog.cli.commands import lifecycle
from stratalog.cli.commands.lifecycle import outcome, show_report, steps_table, summary
from stratalog.cli.guard import ExitCode
from stratalog.log.policy.preview import Step
from stratalog.store.lifecycle.reports import LifecycleReport
from tests.cli.shell import Shell

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def shell(tmp_path):
    return Shell(tmp_path / "data")


def hourly(shell, topic: str, ages_h, **settings: str) -> int:
    """One sealed segment of ten records for each age, and an empty active one. Returns now."""
    now = time.time_ns() // 1_000_000
    options = [
        part for name, value in settings.items() for part in ("-c", f"{name.replace('_', '.')}={value}")
    ]
    shell.ok("topic", "create", topic, *options)
    for age_h in ages_h:
        lines = "".join(f"k{n % 3}:value {n}\n" for n in range(10))
        stamp = str(now - int(age_h * HOUR_MS))
        shell.ok("append", topic, "-K", ":", "--timestamp", stamp, stdin=lines)
        shell.ok("roll", topic)
    return now


def test_a_preview_shows_what_goes_when_and_why_and_the_round_does_just_that(shell):
    hourly(shell, "orders", [5, 4, 0.5], retention_ms="1h")
    before = shell.json("segments")
    shown = shell.json("retain", "--preview")
    assert shown["preview"] is True
    due = [step for step in shown["steps"] if step["due"]]
    assert [(s["action"], s["base_offset"], s["next_offset"]) for s in due] == [
        ("delete", 0, 10),
        ("delete", 10, 20),
    ]
    assert [step["first_offset_lost"] for step in due] == [0, 10]
    assert all("retention.ms is 1h" in step["why"] for step in due)
    assert shown["freed_bytes"] == sum(step["size_bytes"] for step in due) > 0
    [later] = [step for step in shown["steps"] if not step["due"]]
    assert (later["action"], later["base_offset"]) == ("delete", 20)
    assert 0 < later["when_ms"] - time.time_ns() // 1_000_000 <= HOUR_MS / 2
    assert shell.json("segments") == before, "a preview changes nothing"

    text = shell("retain", "--preview")
    head, *rows = text.stdout.splitlines()
    assert head.split() == ["partition", "what", "offsets", "size", "when", "lost", "from", "why"]
    assert rows[0].split()[:3] == ["orders-0", "delete", "0-9"]
    assert " now " in rows[0]
    assert " in 29m" in rows[2]
    assert text.stderr.startswith("would delete 2 segments (")
    assert "nothing was changed" in text.stderr

    done = shell.json("retain")
    assert [s for s in done["steps"] if s["due"]] == due
    assert [row["base_offset"] for row in shell.json("segments")] == [20, 30]
    again = shell("retain")
    assert again.stdout == ""
    assert "nothing to do now; next deletion: orders-0 up to offset 29" in again.stderr


def test_only_the_topic_asked_for(shell):
    hourly(shell, "a", [5], retention_ms="1h")
    hourly(shell, "b", [5], retention_ms="1h")
    for name in ("retain", "janitor"):
        assert {step["topic"] for step in shell.json(name, "--preview")["steps"]} == {"a", "b"}
        assert {step["topic"] for step in shell.json(name, "--preview", "--topic", "b")["steps"]} == {"b"}
    shell.ok("janitor", "--topic", "a")
    assert {step["topic"] for step in shell.json("janitor", "--preview")["steps"]} == {"b"}
    for arguments in (["retain"], ["compact"], ["archive"], ["janitor"]):
        assert shell(*arguments, "--topic", "nope").exit_code == ExitCode.NOT_FOUND


def test_by_bytes_and_by_count(shell):
    hourly(shell, "bytes", [3, 2, 1], retention_ms="-1", retention_bytes="400")
    hourly(shell, "count", [3, 2, 1], retention_ms="-1", retention_segments="1")
    whys = {step["topic"]: step["why"] for step in shell.json("retain", "--preview")["steps"]}
    assert "retention.bytes" in whys["bytes"]
    assert "retention.segments" in whys["count"]
    shell.ok("retain")
    assert [row["state"] for row in shell.json("segments", "count")] == ["sealed", "active"]


def test_compaction(shell):
    hourly(shell, "users", [3, 2], cleanup_policy="compact", cleaner_min_segment_age_ms="0")
    preview = shell.json("compact", "--preview")
    [step] = preview["steps"]
    assert (step["action"], step["base_offset"], step["next_offset"]) == ("compact", 0, 20)
    assert "dirty" in step["why"]
    text = shell("compact")
    assert "20 → 3" in text.stdout
    assert text.stderr.startswith("compacted 1 partition")
    assert shell.lines("read", "users") == ["value 7", "value 8", "value 9"]
    assert {row["state"] for row in shell.json("segments", "users")} == {"compacted", "active"}
    assert shell.json("compact")["steps"] == []
    assert shell("compact", "--partition", "0").exit_code == ExitCode.USAGE

    shell.ok("append", "users", "-K", ":", stdin="k0:newest\n")
    shell.ok("roll", "users")
    shell.ok("topic", "alter", "users", "-c", "min.cleanable.dirty.ratio=1")
    assert shell.json("compact")["compactions"] == []
    [done] = shell.json("compact", "--force", "--topic", "users", "--partition", "0")["compactions"]
    assert (done["records_before"], done["records_after"]) == (4, 3)


def test_the_archive_and_back(shell, tmp_path):
    hourly(shell, "t", [3, 2, 1], remote_storage_enable="true", local_retention_bytes="0", retention_ms="-1")
    values = shell.lines("read", "t")
    preview = shell.json("archive", "--preview")
    assert [step["action"] for step in preview["steps"]] == ["archive"] * 3
    assert not (tmp_path / "data.archive").exists(), "a preview copies nothing"
    assert shell("archive").stderr.startswith("archived 3 segments (")
    assert "removed the local copy of 3 segments (" in shell("archive").stderr
    assert [row["state"] for row in shell.json("segments")] == ["archived"] * 3 + ["active"]
    assert shell.lines("read", "t") == values
    states = shell.json("lifecycle")[0]["states"]
    assert (states["archived"]["segments"], states["archived"]["files"]) == (3, 0)

    assert "; 3 more, " in shell.lines("lifecycle")[-1]
    [partition] = shell.json("topic", "describe", "t")["details"]
    assert partition["directory"] == f"{shell.paths[0]}/t-0", "not the archive's"

    [held] = shell.json("archive", "--list")
    assert (held["topic"], held["segments"], held["next_offset"]) == ("t", 3, 30)
    assert "t-0" in shell.ok("archive", "--list")
    assert "no damage in 3 segments" in shell("archive", "--verify").stderr
    assert shell.json("archive", "--list", "--topic", "other") == []
    victim = next(path for path in (tmp_path / "data.archive").rglob("log*") if path.is_file())
    victim.write_bytes(b"x" + victim.read_bytes()[1:])
    broken = shell("archive", "--verify")
    assert broken.exit_code == ExitCode.CORRUPTION
    assert len(broken.stdout.splitlines()) == 1
    assert shell("archive", "--verify", "--list").exit_code == ExitCode.USAGE


def test_a_store_takes_an_archive_over(shell, tmp_path):
    """The machine died, its directory came back from a backup, and the store has another id now."""
    hourly(shell, "t", [3, 2, 1], remote_storage_enable="true", retention_ms="-1")
    shell.ok("archive")
    meta = tmp_path / "data" / "meta.properties"
    meta.write_text(re.sub(r"cluster\.id=.*", "cluster.id=AAAAAAAAAAAAAAAAAAAAAA", meta.read_text()))
    shell.ok("append", "t", stdin="one more\n")
    with stratalog.open(shell.paths[0]) as store:
        store.topic("t").roll()
    refused = shell("archive")
    assert refused.exit_code == ExitCode.UNFINISHED
    assert "take it over if that one is gone" in refused.stderr
    assert refused.stderr.endswith("1 partition not finished, see the notes\n")
    assert shell("archive", "--take-over").exit_code == ExitCode.USAGE
    shell.ok("archive", "--topic", "t", "--take-over")
    assert shell.json("archive", "--list")[0]["segments"] == 4


def test_the_archive_lies_where_the_store_is_told(shell, tmp_path, monkeypatch):
    hourly(shell, "t", [1], remote_storage_enable="true")
    url = f"log.archive.url={tmp_path / 'elsewhere'}"
    shell.ok("archive", "--store-config", url)
    assert (tmp_path / "elsewhere").is_dir()
    assert shell("archive", "--list").exit_code == ExitCode.CORRUPTION, "the default archive is another one"
    monkeypatch.setenv("STRATALOG_CONFIG", f" {url} ; log.retention.ms=1d")
    assert [each["topic"] for each in shell.json("archive", "--list")] == ["t"]
    described = {each["name"]: each for each in shell.json("config", "t")}
    assert described["retention.ms"]["source"] == "broker"
    monkeypatch.setenv("STRATALOG_CONFIG", "log.archive.ulr=x")
    assert "did you mean log.archive.url" in shell("topic", "list").stderr
    assert shell("topic", "list", "--store-config", "nonsense").exit_code == ExitCode.USAGE


def test_the_numbers_that_show_a_leak(shell):
    hourly(shell, "orders", [5, 4, 0.5], retention_ms="1h")
    hourly(shell, "audit", [5], retention_ms="-1")
    numbers = {each["topic"]: each for each in shell.json("lifecycle")}
    orders = numbers["orders"]
    assert orders["oldest_deletable"] == 0
    assert abs(orders["overdue_ms"] - 4 * HOUR_MS) < 600_000
    assert {state: row["segments"] for state, row in orders["states"].items()} == {"sealed": 3, "active": 1}
    assert orders["states"]["sealed"]["files"] >= 9
    assert (numbers["audit"]["oldest_deletable"], numbers["audit"]["overdue_ms"]) == (None, None)
    lines = shell.lines("lifecycle")
    assert lines[0].split()[:6] == ["topic", "partition", "state", "segments", "size", "files"]
    assert "1 partition past due: `stratalog retain --preview`" in lines[-1]
    assert {line.split()[0] for line in shell.lines("lifecycle", "audit")[1:-1]} == {"audit"}
    assert shell("lifecycle", "nope").exit_code == ExitCode.NOT_FOUND
    shell.ok("retain")
    assert "past due" not in shell.lines("lifecycle")[-1]


def test_deleted_segments_are_shown_while_their_files_wait(shell):
    hourly(shell, "t", [5, 4, 3], retention_ms="1h")
    with stratalog.open(shell.paths[0]) as store:
        store.retain()
        rows = shell.json("segments", "t", "--all")
        assert [(r["base_offset"], r["next_offset"], r["state"]) for r in rows] == [
            (0, 10, "deleted"),
            (10, 20, "deleted"),
            (20, 30, "deleted"),
            (30, 30, "active"),
        ]
        assert all(row["path"].endswith(".log.deleted") and row["size_bytes"] for row in rows[:3])
        assert [row["state"] for row in shell.json("segments", "t")] == ["active"]
        assert shell.ok("segments", "t", "--all").count(" deleted ") == 3
        assert store.topic("t").segments(deleted=True)[0].state == "deleted"
        assert shell.json("lifecycle")[0]["states"]["deleted"]["segments"] == 3
    assert [row["state"] for row in shell.json("segments", "t", "--all")] == ["active"]


def test_a_segment_being_rewritten_is_compacting(shell, tmp_path):
    hourly(shell, "t", [5, 4])
    log = tmp_path / "data" / "t-0" / "00000000000000000010.log"
    log.with_name(log.name + ".cleaned").write_bytes(log.read_bytes()[:10])
    assert [row["state"] for row in shell.json("segments", "t")] == ["sealed", "compacting", "active"]


def test_erasing_a_key(shell, tmp_path):
    hourly(shell, "users", [2, 1], retention_ms="-1")
    shell.ok("append", "users", "-K", ":", stdin="k1:in the active segment\n")
    trial = shell.json("erase", "users", "--key", "k1", "--dry-run")
    assert (trial["records"], trial["dry_run"], trial["audit"]) == (7, True, None)
    assert len(shell.lines("read", "users", "--key", "k1")) == 7
    asked = shell("erase", "users", "--key", "k1")
    assert asked.exit_code == ExitCode.USAGE
    assert "--yes" in asked.stderr
    done = shell("erase", "users", "--key", "k1", "--reason", "request 17", "--yes")
    assert done.exit_code == 0
    assert "erased 7 records of 1 key from users" in done.stderr
    assert shell("read", "users", "--key", "k1").stdout == ""
    offsets = [json.loads(line)["offset"] for line in shell.lines("read", "users", "--json")]
    assert offsets == [n for n in range(20) if n % 10 % 3 != 1], "no other record moved"
    audit = (tmp_path / "data" / "stratalog.audit").read_text()
    assert "request 17" in audit
    assert "k1" not in audit


def test_keys_come_from_a_file_and_in_hexadecimal(shell, tmp_path):
    hourly(shell, "users", [2], retention_ms="-1")
    keys = tmp_path / "keys"
    keys.write_text("k0\r\n\nk0\n")
    assert shell.json("erase", "users", "--keys", str(keys), "--dry-run")["records"] == 4
    keys.write_text("6b30\n6b31\n")
    assert shell.json("erase", "users", "--keys", str(keys), "--hex", "--dry-run")["records"] == 7
    assert shell.json("erase", "users", "--key-hex", "6b32", "--key", "k0", "--dry-run")["records"] == 7
    assert shell.json("erase", "users", "--keys", "-", "--yes", stdin="k0\n")["records"] == 4
    assert shell.json("erase", "users", "--key", "k0", "--yes")["records"] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["erase", "t"],
        ["erase", "t", "--key-hex", "xyz"],
        ["erase", "t", "--key", "k", "--hex"],
        ["erase", "t", "--keys", "-"],
        ["janitor", "--once", "--watch"],
        ["janitor", "--every", "5m"],
        ["janitor", "--watch", "--every", "soon"],
        ["archive", "--verify", "--topic", "t"],
        ["topic", "create", "u", "--profile", "nonsense"],
        ["topic", "create", "u", "--profile", "queue", "-c", "stratalog.profile=streaming"],
    ],
    ids=" ".join,
)
def test_wrong_command_lines_end_with_2(shell, arguments):
    shell.ok("topic", "create", "t")
    result = shell(*arguments, stdin="k\n")
    assert result.exit_code == ExitCode.USAGE, result.output
    assert result.stdout == ""


def test_a_missing_file_of_keys_is_told(shell):
    shell.ok("topic", "create", "t")
    result = shell("erase", "t", "--keys", "/nowhere/keys")
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "/nowhere/keys" in result.stderr


def test_profiles(shell):
    shell.ok("topic", "create", "m", "--profile", "time-series", "-c", "segment.bytes=100MiB")
    facts = shell.json("topic", "describe", "m")
    assert facts["profile"] == "time-series"
    assert {name: each["value"] for name, each in facts["config"].items()} == {
        "stratalog.profile": "time-series",
        "segment.bytes": str(100 * 2**20),
        "segment.align.ms": str(HOUR_MS),
        "segment.ms": str(2 * HOUR_MS),
    }
    assert "profile time-series" in shell.lines("topic", "describe", "m")[0]
    shell.ok("topic", "alter", "m", "--profile", "queue")
    assert "profile queue" in shell.lines("topic", "describe", "m")[0]
    shell.ok("topic", "create", "plain")
    assert shell.json("topic", "describe", "plain")["profile"] is None


def step(**changes) -> Step:
    values: dict = {
        "action": "delete",
        "topic": "t",
        "partition": 0,
        "base_offset": 0,
        "next_offset": 10,
        "size_bytes": 1024,
        "when_ms": None,
        "why": "because",
        "first_offset_lost": 0,
    }
    return Step(**(values | changes))


def test_what_could_not_be_done_is_said_and_ends_with_a_code(capsys):
    damage = {"path": "/d/t-0/0.log", "reason": "bad CRC"}
    report = LifecycleReport(
        False,
        (step(), step(topic="u"), step(action="skip", why="because; not now: the clock jumped")),
        ("t-0: not finished: no space left",),
    )
    rows = [row[4] for row in steps_table(report.steps, report, 0).rows]
    assert rows == ["see note", "done", "not now"]
    assert outcome(report) is ExitCode.UNFINISHED
    show_report(report, 0)
    assert "note: t-0: not finished: no space left" in capsys.readouterr().err
    compaction = {
        "topic": "t", "partition": 0, "segments_before": 2, "segments_after": 1, "records_before": 9,
        "records_after": 3, "bytes_before": 900, "bytes_after": 300, "tombstones_dropped": 0, "passes": 1,
        "seconds": 0.25, "quarantined": [damage],
    }  # fmt: skip
    report = LifecycleReport(False, (), (), (compaction,))
    assert outcome(report) is ExitCode.CORRUPTION
    show_report(report, 0)
    told = capsys.readouterr()
    assert "900 B → 300 B" in told.out
    assert "/d/t-0/0.log (bad CRC)" in told.err
    assert outcome(LifecycleReport(True, (), ("a note",))) is ExitCode.OK


def test_a_long_list_is_cut_on_a_terminal_only(monkeypatch):
    steps = [step(base_offset=n * 10, next_offset=n * 10 + 10) for n in range(100)]
    report = LifecycleReport(True, tuple(steps))
    assert len(steps_table(steps, report, 0).rows) == 100
    monkeypatch.setattr("stratalog.cli.commands.lifecycle.is_terminal", lambda stream: True)
    table = steps_table(steps, report, 0)
    assert (len(table.rows), table.footer) == (40, "and 60 more; --json lists them all")


def test_no_round_while_the_clock_is_not_believed(shell, monkeypatch):
    """The watch has no store open between rounds, so it watches the clocks itself."""
    hourly(shell, "t", [0.5], retention_ms="1h")
    rounds: list[int] = []
    stopping = threading.Event()
    wall_ms = [time.time_ns() // 1_000_000]

    def run(session, work, *, only_looks):
        rounds.append(wall_ms[0])
        wall_ms[0] += DAY_MS  # then the clock jumps
        return LifecycleReport(False)

    def told(message: str) -> None:
        if message.startswith("no round now"):
            stopping.set()

    monkeypatch.setattr(lifecycle, "run_round", run)
    monkeypatch.setattr(lifecycle, "now_ms", lambda: wall_ms[0])
    monkeypatch.setattr(lifecycle, "note", told)
    monkeypatch.setattr(lifecycle, "stopped_by_sigterm", lambda: contextlib.nullcontext(stopping))
    assert shell("janitor", "--watch", "--every", "1ms").exit_code == 0
    assert len(rounds) == 1


def test_one_line_says_it_all():
    steps = (
        step(),
        step(size_bytes=512, base_offset=10, next_offset=20),
        step(action="archive"),
        step(action="drop-local"),
        step(action="roll"),
        step(action="compact"),
        step(action="drop-archive"),
    )
    assert summary(LifecycleReport(False, steps), 0) == (
        "sealed 1 idle segment (1.0 KiB), deleted 2 segments (1.5 KiB), removed the local copy of "
        "1 segment (1.0 KiB), which the archive has, took 1 segment (1.0 KiB) out of the archive, "
        "compacted 1 partition (1.0 KiB), archived 1 segment (1.0 KiB)"
    )
    assert summary(LifecycleReport(True, steps[:1]), 0).startswith("would delete 1 segment (1.0 KiB); ")
    assert summary(LifecycleReport(True, (step(action="skip"),)), 0) == "nothing to do now, 1 put off"
    later = LifecycleReport(True, (step(when_ms=2 * DAY_MS + 7), step(when_ms=3 * DAY_MS, topic="u")))
    assert summary(later, 0) == "nothing to do now; next deletion: t-0 up to offset 9 (1.0 KiB), in 2d"


def test_one_of_a_thing_is_singular(shell, tmp_path):
    """'1 segments' and '1 .torn files' are not English."""
    shell.ok("topic", "create", "t", "-c", "remote.storage.enable=true")
    shell.ok("append", "t", stdin="x\n")
    shell.ok("roll", "t")
    shell.ok("archive")
    assert "no damage in 1 segment, " in shell("archive", "--verify").stderr
    (tmp_path / "data/t-0/00000000000000000000.log.torn-5").write_bytes(b"cut")
    assert "t-0: 1 .torn file, what recovery after a crash or a repair" in shell("lifecycle").stderr
    assert "altered topic t: 2 partitions" in shell("topic", "alter", "t", "-p", "2").stderr


def test_nothing_to_do_has_a_reason(shell):
    hourly(shell, "table", [3, 2], cleanup_policy="compact")  # by their files' dates they are fresh
    for arguments in (["compact", "-n"], ["compact", "-t", "table"]):
        held = shell(*arguments)
        assert held.exit_code == 0
        assert "cleaner.min.segment.age.ms is 1h" in held.stdout
        assert "nothing to do now, 1 put off" in held.stderr
    [step] = shell.json("compact", "-n")["steps"]
    assert (step["action"], step["base_offset"], step["next_offset"], step["due"]) == ("skip", 0, 20, False)
    assert shell.json("compact", "-n", "--force")["steps"][0]["action"] == "compact"
    shell.ok("topic", "alter", "table", "-c", "cleaner.min.segment.age.ms=0")
    shell.ok("compact", "-t", "table")
    assert shell.json("compact", "-n")["steps"] == []
    shell.ok("append", "table", "-K", ":", stdin="k1:new\n")
    assert "on is active" in shell.ok("compact", "-n")
    shell.ok("roll", "table")
    shell.ok("topic", "alter", "table", "-c", "min.cleanable.dirty.ratio=1")
    assert "min.cleanable.dirty.ratio is 100%" in shell.ok("compact", "-t", "table")

    shell.ok("topic", "create", "plain")
    for arguments in (["compact", "-t", "plain"], ["compact", "-n", "-t", "plain"]):
        told = shell(*arguments).stderr
        assert "plain is not compacted, its cleanup.policy is delete" in told
        assert "stratalog topic alter plain --config cleanup.policy=compact" in told
    for arguments in (["archive", "-t", "plain"], ["archive", "-n", "-t", "plain"]):
        told = shell(*arguments).stderr
        assert "plain is not archived, its remote.storage.enable is false" in told
        assert "stratalog topic alter plain --config remote.storage.enable=true" in told
