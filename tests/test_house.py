"""The house rules that a machine can check: imports, public names, sizes, and what an import costs."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import stratalog
from tests.slow import SLOW

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "stratalog"
SOURCES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 1000
MAX_MODULES = 15
FOREIGN_PRIVATE = frozenset(
    {"_exit", "_gateway", "_get_timestamp", "_getframe", "_jsc", "_jsparkSession", "_jwrite", "_spark"}
)
"""Private names of PySpark, os and sys for which they have no public one."""
DOCUMENTED = frozenset({"_asdict", "_fields", "_make", "_replace", "_value_"})
"""Public names of named tuples and enums, which begin with an underscore all the same."""
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


def test_folders_stay_small() -> None:
    """Beside `__init__`; a family of modules that outgrows its folder becomes a package."""
    counts = Counter(path.parent for path in SOURCES if path.name != "__init__.py")
    large = {relative(folder): count for folder, count in counts.items() if count > MAX_MODULES}
    assert not large, f"more than {MAX_MODULES} modules in a folder: {large}"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def own_names(tree: ast.Module) -> set[str]:
    """Return what a module defines: functions, classes, variables, attributes of self, and slots."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.Constant(value=str(name)):
                names.add(name)
    return names


def reached_private(path: Path) -> list[str]:
    """Return the private names of other modules that a module uses, with their lines."""
    tree = ast.parse(path.read_text())
    known = own_names(tree) | FOREIGN_PRIVATE | DOCUMENTED
    room = path.relative_to(PACKAGE).parts[0]
    found: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass  # its own, perhaps inherited
            case ast.Attribute(attr=name) if is_private(name) and name not in known:
                found.append(f"{relative(path)}:{node.lineno}: {ast.unparse(node)}")
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("stratalog"):
                parts = [*module.split("."), *(each.name for each in names)]
                if room != "kernel" and any(map(is_private, parts)):  # its compiled modules are private to it
                    found.append(f"{relative(path)}:{node.lineno}: {ast.unparse(node)}")
    return found


def test_no_private_name_of_another_module_is_reached() -> None:
    found = [line for path in SOURCES for line in reached_private(path)]
    assert not found, "make public and document what another module needs:\n" + "\n".join(found)


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
        "wheel.txt",
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
            "wheel": "dev-wheel",
        }.items()
    }
    for name, own in parts.items():
        lock = (ROOT / "requirements" / f"{name}.txt").read_text()
        for needed in (*project["dependencies"], *own):
            assert f"\n{needed.split('>')[0]}==" in lock, f"{name}.txt: {needed}"


def test_lock_files_agree_with_each_other() -> None:
    """They are installed one after the other into one environment."""
    pinned: dict[str, set[str]] = {}
    for name in ("core", "dev", "docs", "spark", "bench", "wheel"):
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
