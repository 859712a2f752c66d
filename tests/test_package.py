"""What is shipped: the sdist, the README as an index shows it, the extras."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
UNITS = ("stratalog-janitor.service", "stratalog-broker.service")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def a_copy(place: pathlib.Path) -> pathlib.Path:
    """Copy the project, so that a build leaves nothing here."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    return place


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> dict[str, bytes]:
    """The files of an sdist, by their path in it."""
    place = a_copy(tmp_path_factory.mktemp("sdist"))
    env = os.environ | {"STRATALOG_NO_EXT": "1"}
    command = [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(place / "out")]
    subprocess.run(command, cwd=place, env=env, check=True, capture_output=True)
    (built,) = (place / "out").iterdir()
    with tarfile.open(built) as archive:
        return {
            each.name.partition("/")[2]: archive.extractfile(each).read() for each in archive if each.isfile()
        }


def test_the_sdist_has_everything(sdist):
    needed = [
        path
        for path in (ROOT / "src" / "stratalog").rglob("*")
        if path.suffix in (".py", ".pxd", ".h", ".java")
    ]
    names = {str(path.relative_to(ROOT)) for path in needed} | {"src/stratalog/py.typed"}
    names |= {"setup.py", "pyproject.toml", "LICENSE", "README.md", "Makefile", "CHANGELOG.md", "docs/CLI.md"}
    names |= {"tests/conftest.py", "requirements/core.txt"} | {f"deploy/{unit}" for unit in UNITS}
    assert names - sdist.keys() == set()
    assert not [name for name in sdist if name.endswith((".so", ".pyc"))]


def test_a_wheel_is_installed_and_works_without_a_compiler(tmp_path):
    """The wheel has the kernel that is compiled here: to compile it again takes minutes."""
    place = a_copy(tmp_path / "project")
    compiled = list((ROOT / "src" / "stratalog" / "kernel").glob("*.so"))
    kernel = place / "build" / "lib" / "stratalog" / "kernel"
    kernel.mkdir(parents=True)
    for each in compiled:
        shutil.copy2(each, kernel)
    env = os.environ | {"STRATALOG_NO_EXT": "1"}
    build = ["setup.py", "-q", "build", "--build-lib", "build/lib", "bdist_wheel", "--dist-dir", "out"]
    subprocess.run([sys.executable, *build], cwd=place, env=env, check=True, capture_output=True)
    (wheel,) = (place / "out").glob("*.whl")

    target = tmp_path / "installed"
    bare = {"PATH": "/nowhere", "CC": "/nowhere/cc", "HOME": str(tmp_path)}
    uv = shutil.which("uv", path=f"{pathlib.Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    assert uv is not None, "uv is one of the development packages"
    install = [uv, "pip", "install", "--quiet", "--no-deps", "--no-index", "--offline"]
    where = ["--python", sys.executable, "--target", str(target)]
    subprocess.run([*install, *where, str(wheel)], env=bare, cwd=tmp_path, check=True)
    env = bare | {"PYTHONPATH": str(target), "STRATALOG_DATA": str(tmp_path / "data")}

    def run(*arguments: str, stdin: str = "") -> str:
        command = [sys.executable, "-m", "stratalog", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=env, input=stdin, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert ("kernel compiled" in run("--version")) == bool(compiled)
    run("topic", "create", "orders")
    run("append", "orders", stdin="one\ntwo\n")
    assert run("read", "orders") == "one\ntwo\n"
    where_from = "import stratalog, stratalog.wire; print(stratalog.__file__)"
    command = [sys.executable, "-c", where_from]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(target))
    assert (target / "stratalog" / "py.typed").exists()
    assert list((target / "stratalog" / "wire" / "tables").glob("*.txt"))


def test_links_of_the_readme_are_absolute_on_an_index(sdist):
    text = sdist["PKG-INFO"].decode()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 15
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    base = PROJECT["urls"]["Repository"] + "/blob/main/"
    ours = [link.removeprefix(base).partition("#")[0] for link in links if link.startswith(base)]
    assert [name for name in ours if not (ROOT / name).exists()] == []


IMPORTED_AS = {"protobuf": "google.protobuf", "confluent-kafka": "confluent_kafka"}


def test_every_extra_installs_what_is_imported():
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    for name, packages in PROJECT["optional-dependencies"].items():
        for package in [] if name.startswith("dev") else packages:
            module = IMPORTED_AS.get(found := re.split(r"[<>=\[]", package)[0], found)
            used = re.search(rf"(import |from |needed\(\"){re.escape(module)}\b", source)
            assert used or module == "sqlalchemy", f"{name}: {package}"  # pyiceberg's catalog imports it
