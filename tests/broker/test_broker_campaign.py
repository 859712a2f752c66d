"""A slice of `make crash-broker`, and what it finds in brokers with a bug."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker.planted_broker import PLANTED

SCRIPT = Path(__file__).with_name("crash_broker.py")
ROOT = Path(__file__).resolve().parents[2]
FOUND_BY: dict[str, tuple[str, ...]] = {
    "acknowledged_before_written": ("lost write", "inconsistent offset"),
    "dropped_on_roll": ("lost write",),
    "offset_given_twice": ("inconsistent offset", "duplicate"),
    "duplicate_answered_wrong": ("duplicate",),
    "commit_forgotten": ("forgotten commit",),
    "high_watermark_beyond_the_data": ("end beyond the data",),
    "recovery_cuts_too_much": ("inconsistent offset",),
    "aborted_forgotten": ("aborted read",),
    "stable_offset_ignored": ("precommitted read", "aborted read"),
    "marker_lost": ("torn transaction",),
}


def run(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: clients whose broker is gone leave threads behind."""
    return subprocess.run(
        [sys.executable, str(SCRIPT), *options],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


def test_nothing_that_clients_were_told_is_wrong(tmp_path: Path) -> None:
    done = run("--rounds", "8", "--seed", "2026", "--dir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("8 rounds, ")
    assert last.endswith(" 0 violations (seed 2026)")


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, tmp_path: Path) -> None:
    options = ("--seed", "7", "--quiet", "3", "--module", "tests.broker.planted_broker")
    for rounds in ("3", "6", "12", "24"):  # most show at once; on a slow machine few requests are retried
        directory = tmp_path / rounds
        directory.mkdir()
        done = run("--rounds", rounds, *options, "--dir", str(directory), STRATALOG_PLANTED=bug)
        if all(f"{kind} in " in done.stdout for kind in FOUND_BY[bug]):
            assert done.returncode == 1
            return
    pytest.fail(f"{bug} was not found:\n{done.stdout}{done.stderr}")


def test_every_planted_bug_has_its_finding() -> None:
    assert FOUND_BY.keys() == PLANTED.keys()
