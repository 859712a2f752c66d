"""The documentation is true: its Python runs, its links resolve, its shell commands work, its walk exists."""

from __future__ import annotations

import ast
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
    """Each block twice: an example must also work on the data that it left."""
    for block in _blocks(page, "python"):
        for _ in range(2):
            subprocess.run([sys.executable, "-c", block], cwd=tmp_path, check=True, timeout=60)


@pytest.mark.parametrize("name", ["README.md", "docs/QUICKSTART.md", "docs/LIFECYCLE.md", "docs/ANALYSIS.md"])
def test_shell_lines_run(name: str, tmp_path: Path) -> None:
    """Every `$ stratalog …` line, in order, in one directory; `export` lines set the environment.

    The page's Python ran there before: who follows a page from its top does the same.
    """
    for block in _blocks(ROOT / name, "python"):
        subprocess.run([sys.executable, "-c", block], cwd=tmp_path, check=True, timeout=60)
    environment = {**os.environ, "STRATALOG_DATA": "data", "NO_COLOR": "1"}
    ran = 0
    for block in _blocks(ROOT / name, "console"):
        for line in block.splitlines():
            command = line.removeprefix("$ ").split("  #")[0]
            if command.startswith("export "):
                variable, _, value = command.removeprefix("export ").strip().partition("=")
                environment[variable] = value.split("  #")[0].replace("$PWD", str(tmp_path)).strip()
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
    assert ran >= 4
    if "stratalog archive" in (ROOT / name).read_text():
        assert any((tmp_path / "archive").rglob("log.*")), "the example archived nothing"


_WALK = re.compile(r"<!-- walk: (\w+) -->\n\n((?:\|.*\n)+)")
_HOP = re.compile(r"`([\w/]+\.py): ([\w.]+)`")


def _walks() -> list[tuple[str, list[tuple[str, str]]]]:
    found = _WALK.findall((ROOT / "ARCHITECTURE.md").read_text())
    return [(name, _HOP.findall(table)) for name, table in found]


def _is_defined(path: Path, name: str) -> bool:
    """Return whether a file defines a function, a class, or a method given as `Class.method`."""
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    for part in name.split("."):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        known = {each.name: each for each in body if isinstance(each, kinds)}
        if part not in known:
            return False
        body = known[part].body
    return True


def test_the_walk_has_all_its_paths() -> None:
    assert [name for name, _ in _walks()] == ["append", "read", "compact", "archive"]
    assert all(len(hops) >= 5 for _, hops in _walks())


@pytest.mark.parametrize(("name", "hops"), _walks(), ids=[name for name, _ in _walks()])
def test_the_walk_exists(name: str, hops: list[tuple[str, str]]) -> None:
    package = ROOT / "src" / "stratalog"
    for file, function in hops:
        hop = f"ARCHITECTURE.md, walk {name!r}: {file}: {function}"
        assert (package / file).is_file(), f"{hop}: there is no file src/stratalog/{file}"
        assert _is_defined(package / file, function), f"{hop}: the file does not define {function}"
    files = [file for file, _ in hops]
    twice = {file for file in files if files.count(file) > 1}
    assert not twice, f"ARCHITECTURE.md, walk {name!r} goes back to {', '.join(sorted(twice))}"


def test_named_make_targets_exist() -> None:
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
