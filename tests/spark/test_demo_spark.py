"""The demonstration as `make demo` runs it, with few events: it ends in Spark, quietly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import stratalog

SOURCE = Path(stratalog.__file__).resolve().parents[1]
PATHS = f"{SOURCE}{os.pathsep}{SOURCE.parent}"


def test_it_ends_in_spark(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo", "--events", "20000"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={
            **os.environ,
            "PYTHONPATH": PATHS,
            "PYTHONIOENCODING": "utf-8",
            "TMPDIR": str(tmp_path),
        },
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stderr == "", "no stray line"
    assert "19 of 19 checks passed" in done.stdout
    assert "Traceback" not in done.stdout
    for line in ("Spark counts", "Spark streams", "Spark joins", "Spark exports", "Spark itself"):
        assert line in done.stdout
    assert list(tmp_path.glob("stratalog-demo-*")) == [], "it removes its data"
