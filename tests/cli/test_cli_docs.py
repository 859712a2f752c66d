"""docs/CLI.md is made from the commands and says everything about them."""

from __future__ import annotations

import pathlib

import typer

from stratalog.cli.app import ORDER, app
from stratalog.cli.docs import render
from stratalog.cli.guard import ExitCode

ROOT = pathlib.Path(__file__).parents[2]


def test_page_is_current():
    assert (ROOT / "docs" / "CLI.md").read_text() == render(), (
        "run: python -m stratalog.cli.docs > docs/CLI.md"
    )


def test_every_command_is_listed_in_order():
    root = typer.main.get_command(app)
    assert root.list_commands(typer.Context(root)) == list(ORDER)  # type: ignore[attr-defined]


def test_every_command_has_the_common_options_and_a_sentence():
    root = typer.main.get_command(app)
    found = {name: root.get_command(typer.Context(root), name) for name in ORDER}  # type: ignore[attr-defined]
    for group in (found.pop("topic"), found.pop("group"), found.pop("pipeline")):
        inside = typer.Context(group)
        found |= {
            f"{group.name} {name}": group.get_command(inside, name) for name in group.list_commands(inside)
        }
    found.pop("dump", None)
    for name, each in found.items():
        options = {option for parameter in each.params for option in parameter.opts}
        assert {"--data", "--json", "--debug"} <= options, name
        assert all(p.help for p in each.params if p.param_type_name == "option"), name
        assert each.help.partition("\n")[0].rstrip().endswith("."), name


def test_exit_codes_are_on_the_page():
    page = render()
    for code in ExitCode:
        assert f"| {code.value} |" in page
