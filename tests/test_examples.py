"""The examples, run as they are: killed, started again, and right in the end."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"
ORDERS = 300
KILLS = 8


def test_an_outbox_takes_effect_once_through_kills(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "outbox.py"), str(tmp_path), "--orders", str(ORDERS)]
    chance, kills = random.Random(7), 0
    while True:
        with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
            try:
                out, _ = running.communicate(timeout=chance.uniform(0.2, 1.0) if kills < KILLS else 120)
                break
            except subprocess.TimeoutExpired:
                running.kill()
                kills += 1
    assert running.returncode == 0
    expected = {
        name: sum(n for n in range(1, ORDERS + 1) if n % 3 == at)
        for at, name in enumerate(("ann", "bob", "eve"))
    }
    assert json.loads(out) == expected, f"after {kills} kills"
