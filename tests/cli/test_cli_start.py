"""What the command line loads: a command that needs little starts quickly."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import typer

import stratalog
from stratalog.cli.app import ORDER, PANELS, app

HEAVY = (
    *("pyarrow", "numpy", "rich", "pydantic", "asyncio", "http", "obstore", "email"),
    *("stratalog.log.clean", "stratalog.log.check.repair", "stratalog.store.lifecycle.lifecycle"),
    *("stratalog.cli.commands.pipelines", "stratalog.cli.commands.copies", "stratalog.cli.commands.dump"),
)
SCRIPT = """
import atexit, sys
heavy = sys.argv.pop(1).split()
atexit.register(lambda: print("loaded:", *[name for name in heavy if name in sys.modules], file=sys.stderr))
from stratalog.cli import main
main()
"""


@pytest.fixture
def data(tmp_path):
    with stratalog.open(tmp_path / "data") as store:
        store.create_topic("t").append(b"one", key=b"k")
    return tmp_path / "data"


def loaded(data, *arguments: str, heavy=HEAVY) -> tuple[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, " ".join(heavy), *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"STRATALOG_DATA": str(data)},
    )
    return done.stdout, done.stderr.splitlines()[-1].split()[1:]


@pytest.mark.parametrize(
    "arguments",
    [
        ["read", "t"],
        ["read", "t", "--json"],
        ["read", "t", "--key", "k"],
        ["read", "t", "--from", "earliest"],
        ["topic", "list"],
        ["segments", "t"],
    ],
)
def test_a_reading_command_loads_nothing_heavy(data, arguments):
    shown, found = loaded(data, *arguments)
    assert found == []
    assert shown


def test_the_help_page_loads_no_command(data):
    shown, found = loaded(data, "--help", heavy=(*HEAVY, "stratalog.store", "stratalog.cli.commands.read"))
    assert found == []
    assert "Print records" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_the_help_page_says_what_the_commands_say():
    root = typer.main.get_command(app)
    context = typer.Context(root)
    for panel in PANELS.values():
        for name, place in panel.items():
            help_text = root.get_command(context, name).help  # type: ignore[attr-defined]
            assert place.summary == " ".join(help_text.split("\n\n")[0].split()), name


def test_every_command_is_on_the_help_page(data):
    shown, _ = loaded(data, "--help")
    listed = [line.split()[1] for line in shown.splitlines() if line.startswith("│ ") and line[2] != " "]
    assert [name for name in listed if not name.startswith("-")] == list(ORDER)
