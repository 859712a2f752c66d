"""The documentation is true: its Python runs, its links resolve, its shell commands exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "bench").glob("*.md")])
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")


def _blocks(page: Path, language: str) -> list[str]:
    return [text for name, text in _FENCE.findall(page.read_text()) if name == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    for target in _LINK.findall(page.read_text()):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if _blocks(page, "python")], ids=lambda page: page.name
)
def test_python_runs(page: Path, tmp_path: Path) -> None:
    for block in _blocks(page, "python"):
        subprocess.run([sys.executable, "-c", block], cwd=tmp_path, check=True, timeout=60)


def test_the_shell_lines_of_the_readme_run(tmp_path: Path) -> None:
    """Every `$ stratalog …` line, in order, in one directory."""
    environment = {**os.environ, "STRATALOG_DATA": "data", "NO_COLOR": "1"}
    ran = 0
    for block in _blocks(ROOT / "README.md", "console"):
        for line in block.splitlines():
            command = line.removeprefix("$ ").split("  #")[0]
            if "stratalog " not in command:
                continue
            python = f"{sys.executable} -m stratalog.cli"
            command = re.sub(r"(^|\| )stratalog ", rf"\1{python} ", command)
            done = subprocess.run(
                command,
                shell=True,
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, f"{line}\n{done.stderr}"
            ran += 1
    assert ran >= 6


def test_the_targets_of_the_makefile_are_the_ones_spoken_of() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"setup", "demo", "test", "lint", "bench", "interop", "crash", "docs", "clean"} <= targets
    for page in PAGES:
        for target in re.findall(r"`make ([a-z-]+)", page.read_text()):
            assert target in targets, f"{page.name}: make {target}"


def test_nothing_points_outside_the_clone() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    word = "../" + "shared"
    for name in tracked.split():
        path = ROOT / name
        if (
            path.suffix in (".py", ".md", ".toml", ".sh", ".in", "")
            and path.is_file()
            and path.stat().st_size < 2**20
        ):
            assert word not in path.read_text(errors="replace"), name
