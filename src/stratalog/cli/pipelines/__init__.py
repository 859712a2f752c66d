"""``stratalog pipeline``: a command for each pipeline.

A command's module is loaded when it is asked for, and none of them loads Spark before it runs: the rest of
the command line, and every ``--help``, work without it.
"""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperGroup

COMMANDS = ("ingest", "export", "compact", "materialize", "verify", "replay", "stats", "check")
"""In the order in which data meets them; each is a function of that name in a module of that name."""


class PipelineGroup(TyperGroup):
    """Loads a command's module when the command is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, or None when there is none of that name."""
        if cmd_name not in self.commands and cmd_name in COMMANDS:
            module = importlib.import_module(f"{__name__}.{cmd_name}")
            single = typer.Typer(add_completion=False, rich_markup_mode="rich")
            single.command(name=cmd_name)(getattr(module, cmd_name))
            self.commands[cmd_name] = typer.main.get_command(single)
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    cls=PipelineGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Work on whole topics with Spark: here on local[*], or on a cluster with --master.",
)


@app.callback()
def pipeline() -> None:
    """Work on whole topics with Spark: here on local[*], or on a cluster with --master."""
