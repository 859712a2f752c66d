"""A few rounds of `make crash`, so that every test run kills something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kill_campaign.py")


@pytest.mark.parametrize("seed", [1, 2026])
def test_nothing_acknowledged_is_lost(seed: int, tmp_path: Path) -> None:
    # In a process of its own: it forks, and a test runner has threads.
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--rounds", "10", "--seed", str(seed), "--dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("10 rounds, ")
    assert last.endswith(f" acknowledged records, 0 lost (seed {seed})")
