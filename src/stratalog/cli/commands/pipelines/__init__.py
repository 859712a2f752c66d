"""``stratalog pipeline``: a command for each pipeline.

The commands are imported when one is used, and none of them loads Spark before it runs: the rest of the
command line, and every ``--help``, work without it.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

COMMANDS = ("ingest", "export", "compact", "materialize", "verify", "replay", "stats", "check")
"""In the order of the help page; each is a function of that name in `commands`."""


class PipelineGroup(TyperGroup):
    """Imports the commands when one is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in COMMANDS:
            from stratalog.cli.commands.pipelines import commands

            single = typer.Typer(add_completion=False, rich_markup_mode="rich")
            single.command(name=cmd_name)(getattr(commands, cmd_name))
            self.commands[cmd_name] = typer.main.get_command(single)
        return super().get_command(ctx, cmd_name)


app = typer.Typer(cls=PipelineGroup, no_args_is_help=True, rich_markup_mode="rich")


@app.callback()
def pipeline() -> None:
    """Work on whole topics with Spark: here on local[*], or on a cluster with --master."""
