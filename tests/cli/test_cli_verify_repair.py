"""``verify`` and ``repair`` on stores that were damaged on purpose."""

from __future__ import annotations

import json
import pathlib

import pytest
from typer.testing import CliRunner, Result

import stratalog
from stratalog.cli.app import app
from stratalog.cli.guard import ExitCode

CHECKPOINTS = ["recovery-point", "log-start", "replication", "cleaner"]


@pytest.fixture
def damaged(tmp_path):
    """Three sealed segments of ten records, a byte flipped in the middle of the second."""
    data = str(tmp_path)
    for arguments in (["topic", "create", "t"], *([["append", "t"], ["roll", "t"]] * 3)):
        batches = "".join(f"value {n}\n" for n in range(10))
        result = CliRunner().invoke(app, [*arguments, "--data", data], input=batches)
        assert result.exit_code == 0, result.output
    log = tmp_path / "t-0" / "00000000000000000010.log"
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    return tmp_path


def run(data: pathlib.Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--data", str(data)])


def test_verify_names_the_damage_and_the_rest_stays_readable(damaged):
    result = run(damaged, "verify", "--json")
    assert result.exit_code == ExitCode.CORRUPTION
    report = json.loads(result.stdout)
    assert not report["ok"]
    assert report["segments"] >= 3
    log = [damage for damage in report["damages"] if damage["path"].endswith("00000000000000000010.log")]
    assert [(damage["first_offset"], damage["last_offset"]) for damage in log[:1]] == [(10, 19)]
    text = run(damaged, "verify", "t")
    assert text.exit_code == ExitCode.CORRUPTION
    assert "10-19" in text.stdout
    assert f" {log[0]['start']}-{log[0]['end'] - 1} " in text.stdout, "bytes are inclusive, as offsets are"
    read = run(damaged, "read", "t")
    assert read.exit_code == ExitCode.CORRUPTION
    assert read.stdout.splitlines() == [f"value {n}" for n in range(10)]
    assert read.stderr.startswith("stratalog: ")
    rest = run(damaged, "read", "t", "--from", "20")
    assert rest.stdout.splitlines() == [f"value {n}" for n in range(10)]
    skipped = run(damaged, "read", "t", "--skip-damaged", "--format", "%o ")
    assert skipped.stdout.split() == [str(n) for n in (*range(10), *range(20, 30))]


def test_repair_says_what_it_would_give_up_and_asks(damaged):
    before = {path: path.read_bytes() for path in (damaged / "t-0").glob("*.log")}
    plan = run(damaged, "repair", "t", "--action", "drop-damaged", "--dry-run", "--json")
    assert plan.exit_code == ExitCode.CORRUPTION, "nothing was repaired"
    (report,) = json.loads(plan.stdout)
    assert report["dry_run"]
    assert report["lost"]
    assert run(damaged, "repair", "t", "--action", "drop-damaged").exit_code == ExitCode.USAGE
    assert {path: path.read_bytes() for path in before} == before

    done = run(damaged, "repair", "t", "--action", "drop-damaged", "--yes")
    assert done.exit_code == 0, done.output
    assert "records of t lost" in done.stdout
    assert run(damaged, "verify").exit_code == 0
    kept = run(damaged, "read", "t", "--format", "%o ").stdout.split()
    assert kept == [str(n) for n in (*range(10), *range(20, 30))]


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_without_an_action_damage_is_only_reported(damaged, dry_run):
    seal = damaged / "t-0" / "00000000000000000020.seal"
    seal.write_bytes(b"no seal")
    before = {path: path.read_bytes() for path in (damaged / "t-0").iterdir()}
    shown = run(damaged, "repair", "t", *dry_run)
    assert shown.exit_code == ExitCode.CORRUPTION
    assert "10-19" in shown.stdout
    for action in ("rebuild-indexes", "drop-damaged", "truncate"):
        assert f"--action {action}" in shown.stdout
    assert {path: path.read_bytes() for path in (damaged / "t-0").iterdir()} == before
    report = json.loads(run(damaged, "repair", "t", *dry_run, "--json").stdout)[0]
    assert (report["action"], report["dry_run"]) == (None, True)
    assert [each["path"] for each in report["left"]]
    assert run(damaged, "repair", "t", "--action", "rebuild-indexes").exit_code == ExitCode.CORRUPTION
    assert run(damaged, "repair", "t", "--action", "drop-damaged", "--yes").exit_code == 0
    assert run(damaged, "repair", "t", *dry_run).exit_code == 0


def test_repair_by_truncation(damaged):
    done = run(damaged, "repair", "t", "-a", "truncate", "-y")
    assert done.exit_code == 0, done.output
    assert run(damaged, "read", "t", "--format", "%o ").stdout.split() == [str(n) for n in range(10)]
    assert run(damaged, "verify").exit_code == 0


def test_rebuilding_indexes_gives_nothing_up(tmp_path):
    for arguments in (["topic", "create", "t"], ["append", "t"], ["roll", "t"]):
        assert (
            CliRunner().invoke(app, [*arguments, "--data", str(tmp_path)], input="x\n" * 100).exit_code == 0
        )
    index = tmp_path / "t-0" / "00000000000000000000.timeindex"
    index.write_bytes(b"\xff" * 12)
    assert run(tmp_path, "verify").exit_code == ExitCode.CORRUPTION
    done = run(tmp_path, "repair", "t", "--action", "rebuild-indexes")
    assert done.exit_code == 0, done.output
    assert run(tmp_path, "verify").exit_code == 0
    assert len(run(tmp_path, "read", "t").stdout.splitlines()) == 100
    assert "nothing to do" in run(tmp_path, "repair", "t").stderr
    clean = run(tmp_path, "verify")
    assert (clean.stdout, clean.stderr[:13]) == ("", "no damage in ")


@pytest.mark.parametrize("indexed", ["true", "false"])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_the_latest_record_of_a_key_does_not_need_older_segments(tmp_path, indexed, isolation):
    data = ["--data", str(tmp_path)]
    create = ["topic", "create", "t", "-c", f"key.index.enable={indexed}", *data]
    assert CliRunner().invoke(app, create).exit_code == 0
    for value in ("old", "newer", "newest"):
        append = CliRunner().invoke(app, ["append", "t", "--key", "k", *data], input=f"{value}\n")
        assert append.exit_code == 0, append.output
        assert CliRunner().invoke(app, ["roll", "t", *data]).exit_code == 0
    log = tmp_path / "t-0" / "00000000000000000000.log"
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(content)
    by_key = ("read", "t", "--key", "k", "--isolation", isolation)
    assert run(tmp_path, *by_key).exit_code == ExitCode.CORRUPTION
    last = run(tmp_path, *by_key, "--last")
    assert last.exit_code == 0, last.output
    assert last.stdout == "newest\n"


@pytest.fixture
def sealed(tmp_path):
    """Three sealed segments of ten records."""
    for arguments in (["topic", "create", "t"], *([["append", "t"], ["roll", "t"]] * 3)):
        result = CliRunner().invoke(app, [*arguments, "--data", str(tmp_path)], input="x\n" * 10)
        assert result.exit_code == 0, result.output
    return tmp_path


@pytest.mark.parametrize("base", [0, 10])
@pytest.mark.parametrize("sealed_by", [True, False])
@pytest.mark.parametrize("opened", [True, False])
def test_a_removed_log_is_named_until_the_loss_is_accepted(sealed, base, sealed_by, opened, caplog):
    (sealed / "t-0" / f"{base:020}.log").unlink()
    if not sealed_by:
        (sealed / "t-0" / f"{base:020}.seal").unlink()
    if opened:  # recovery must not remove what tells of the loss
        opened_by = CliRunner().invoke(app, ["append", "t", "--data", str(sealed)], input="x\n")
        assert opened_by.exit_code == 0, opened_by.output
        assert f"{base:020}.log is missing" in caplog.text
    found = run(sealed, "verify", "--json")
    assert found.exit_code == ExitCode.CORRUPTION
    (damage,) = json.loads(found.stdout)["damages"]
    assert (damage["first_offset"], damage["last_offset"]) == (base, base + 9)
    assert damage["path"].endswith(f"{base:020}.log")
    assert run(sealed, "repair", "t", "--action", "rebuild-indexes").exit_code == ExitCode.CORRUPTION
    done = run(sealed, "repair", "t", "--action", "drop-damaged", "--yes", "--json")
    assert done.exit_code == 0, done.output
    (report,) = json.loads(done.stdout)
    assert [(each["first_offset"], each["last_offset"]) for each in report["lost"]] == [(base, base + 9)]
    assert run(sealed, "verify").exit_code == 0
    assert not list((sealed / "t-0").glob(f"{base:020}.*index"))


def test_what_a_deletion_left_behind_is_no_damage(sealed):
    """Killed between the log and its sidecars: the log start tells, and the next open removes them."""
    kept = {path.name: path.read_bytes() for path in (sealed / "t-0").glob(f"{0:020}.*")}
    with stratalog.open(sealed) as store:
        store.topic("t").delete_records(0, 10)
    for name in (f"{0:020}.index", f"{0:020}.seal"):
        (sealed / "t-0" / name).write_bytes(kept[name])
    assert run(sealed, "verify").exit_code == 0
    assert CliRunner().invoke(app, ["append", "t", "--data", str(sealed)], input="x\n").exit_code == 0
    assert not (sealed / "t-0" / f"{0:020}.index").exists()


PARTITION_FILES = ["t-0/partition.metadata", "t-0/leader-epoch-checkpoint"]
STORE_FILES = ["meta.properties", *(f"{each}-offset-checkpoint" for each in CHECKPOINTS)]


@pytest.mark.parametrize("name", [*PARTITION_FILES, *STORE_FILES])
def test_unreadable_metadata_is_named_and_costs_no_record(sealed, name):
    (sealed / name).write_bytes(b"garbage")
    found = run(sealed, "verify", "--json")
    assert found.exit_code == ExitCode.CORRUPTION
    (damage,) = json.loads(found.stdout)["damages"]
    assert (damage["path"], damage["first_offset"], damage["derived"]) == (str(sealed / name), None, True)
    if name in PARTITION_FILES:
        assert run(sealed, "repair", "t", "--action", "rebuild-indexes").exit_code == 0
    else:
        assert "remove it" in run(sealed, "verify").stdout
        assert "stratalog repair" not in run(sealed, "verify").stdout
        (sealed / name).unlink()
        assert CliRunner().invoke(app, ["append", "t", "--data", str(sealed)], input="x\n").exit_code == 0
    assert run(sealed, "verify").exit_code == 0
    assert len(run(sealed, "read", "t").stdout.splitlines()) >= 30


def test_damaged_settings_are_told_once_with_a_way_out_that_is_one(sealed):
    (sealed / "stratalog.settings").write_bytes(b"garbage")
    for arguments in (["verify"], ["repair", "t", "--action", "rebuild-indexes"], ["janitor"]):
        result = run(sealed, *arguments)
        assert result.exit_code == ExitCode.CORRUPTION, result.output
        assert "move it away" in result.output
        assert "stratalog repair" not in result.output
        assert "another log directory" not in result.output
        assert result.output.count("stratalog.settings") == 1


def test_bytes_that_are_not_known_are_left_out(sealed):
    (sealed / "t-0" / f"{10:020}.log").unlink()
    skipped = run(sealed, "read", "t", "--skip-damaged")
    assert skipped.exit_code == ExitCode.UNFINISHED
    assert f"skipped {sealed}/t-0/{10:020}.log, offsets lost: 10-19" in skipped.stderr


def test_a_dry_run_lists_damage_once(damaged):
    shown = run(damaged, "repair", "t", "--action", "drop-damaged", "--dry-run")
    assert shown.stdout.count("10-19") == 1
    rebuilt = run(damaged, "repair", "t", "--action", "rebuild-indexes")
    assert rebuilt.exit_code == ExitCode.CORRUPTION
    assert rebuilt.stdout.count("10-19") == 1


def test_a_repair_says_once_what_is_wrong(sealed):
    (sealed / "t-0" / f"{10:020}.seal").write_bytes(b"garbage")
    done = run(sealed, "repair", "t", "--action", "rebuild-indexes")
    assert done.exit_code == 0, done.output
    assert done.output.count(f"{10:020}.seal") == 1
