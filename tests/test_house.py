"""The house rules that a machine can check: imports, public names, sizes, and what an import costs."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import stratalog
from tests.slow import SLOW

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "stratalog"
SOURCES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 950
CONFIG = str(ROOT / "pyproject.toml")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_import_rules_hold() -> None:
    """In a process of its own: the tool changes the logging of the one it runs in."""
    call = f"lint_imports({CONFIG!r}, no_cache=True)"
    script = f"import sys; from importlinter.cli import lint_imports; sys.exit({call})"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_import_rules_have_no_exceptions() -> None:
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    for contract in rules["contracts"]:
        assert "ignore_imports" not in contract, contract["name"]
    assert any(contract.get("exhaustive") for contract in rules["contracts"])


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_every_module_introduces_itself(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "a module says what lives there"
    assert len(path.read_text().splitlines()) <= MAX_LINES


def test_public_names_are_deliberate() -> None:
    assert list(stratalog.__all__) == sorted(set(stratalog.__all__))
    for name in stratalog.__all__:
        assert getattr(stratalog, name) is not None


def test_every_error_has_one_root() -> None:
    from stratalog import errors

    for name, value in vars(errors).items():
        if isinstance(value, type) and value.__module__ == errors.__name__:
            assert issubclass(value, errors.StratalogError), name


def test_importing_the_library_stays_light() -> None:
    """Arrow and the command line's packages are loaded when they are used, not before."""
    heavy = ("pyarrow", "typer", "rich", "Cython", "numpy")
    script = f"import sys, stratalog; print(*[name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT / "src", text=True, capture_output=True, check=True
    )
    assert done.stdout.split() == []


def test_lock_files_are_hashed_and_name_no_host() -> None:
    locks = sorted((ROOT / "requirements").glob("*.txt"))
    assert [lock.name for lock in locks] == [
        "bench.txt",
        "core.txt",
        "dev.txt",
        "docs.txt",
        "spark.txt",
        "spark43.txt",
    ]
    for lock in locks:
        text = lock.read_text()
        assert "://" not in text
        assert "--index-url" not in text
        pins = [line for line in text.splitlines() if "==" in line]
        assert pins
        assert all(line.endswith("\\") for line in pins), "every pin is followed by its hashes"


def test_lock_files_cover_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    parts = {"core": []} | {
        name: extras[extra]
        for name, extra in {
            "dev": "dev",
            "docs": "dev-docs",
            "spark": "dev-spark",
            "bench": "dev-bench",
        }.items()
    }
    for name, own in parts.items():
        lock = (ROOT / "requirements" / f"{name}.txt").read_text()
        for needed in (*project["dependencies"], *own):
            assert f"\n{needed.split('>')[0]}==" in lock, f"{name}.txt: {needed}"


def test_lock_files_agree_with_each_other() -> None:
    """They are installed one after the other into one environment."""
    pinned: dict[str, set[str]] = {}
    for name in ("core", "dev", "docs", "spark", "bench"):
        pins: dict[str, set[str]] = {}
        for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines():
            package, found, version = line.partition("==")
            if found:
                pins.setdefault(package, set()).add(version)
        for package, versions in pins.items():
            assert pinned.setdefault(package, versions) == versions, f"{name}.txt: {package}"


def test_only_tests_that_exist_are_slow() -> None:
    assert list(SLOW) == sorted(set(SLOW))
    for each in SLOW:
        assert (ROOT / each).exists(), each
