"""The ``stratalog`` command: its options and where each command lives."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from stratalog.cli import guard, pipelines, topics
from stratalog.cli.append import append
from stratalog.cli.archive import archive
from stratalog.cli.check import repair, verify
from stratalog.cli.copies import clone, restore
from stratalog.cli.erase import erase
from stratalog.cli.exchange import adopt, export, graduate, import_
from stratalog.cli.exit_codes import epilog
from stratalog.cli.janitor import compact, janitor, retain
from stratalog.cli.lifecycle import lifecycle
from stratalog.cli.read import read
from stratalog.cli.segments import log_dirs, roll, segments
from stratalog.cli.session import DataOption, DebugOption, set_global_data
from stratalog.cli.settings import config

ORDER = (
    "topic",
    "append",
    "read",
    "segments",
    "roll",
    "lifecycle",
    "retain",
    "compact",
    "archive",
    "janitor",
    "erase",
    "clone",
    "restore",
    "export",
    "import",
    "graduate",
    "adopt",
    "pipeline",
    "dump",
    "verify",
    "repair",
    "config",
    "log-dirs",
)

RECORDS = "Topics and records"
SEGMENTS = "The life of segments"
COPIES = "Copies"
SPARK = "Spark"
LOOKING = "Files, damage and settings"


class GuardedGroup(TyperGroup):
    """Runs commands inside the guard: errors become one line and an exit code, in tests as in a shell."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order one meets them, not groups last."""
        return list(ORDER)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The dump tool brings the kernel along, so it is loaded only when it is asked for."""
        if cmd_name == "dump" and cmd_name not in self.commands:
            from stratalog.cli.dump import dump_command

            single = typer.Typer(add_completion=False, rich_markup_mode="rich")
            single.command(name="dump", rich_help_panel=LOOKING)(dump_command)
            self.commands[cmd_name] = typer.main.get_command(single)
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        with guard.guarded():
            return super().invoke(ctx)


app = typer.Typer(
    cls=GuardedGroup,
    name="stratalog",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog=epilog(),
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from stratalog.cli.version import version_line

        print(version_line())
        raise typer.Exit


@app.callback()
def stratalog(
    data: DataOption = None,
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_show_version, is_eager=True, help="Show what is running."),
    ] = False,
    debug: DebugOption = False,
) -> None:
    """A segmented commit log in Kafka's own on-disk format.

    Data goes to stdout, messages to stderr. Every command works beside a program that holds the store.
    """
    guard.clear_debug()
    guard.set_debug(debug)
    set_global_data(data)


app.add_typer(topics.app, name="topic", rich_help_panel=RECORDS)
app.command(rich_help_panel=RECORDS)(append)
app.command(rich_help_panel=RECORDS)(read)
app.command(rich_help_panel=SEGMENTS)(segments)
app.command(rich_help_panel=SEGMENTS)(roll)
app.command(rich_help_panel=SEGMENTS)(lifecycle)
app.command(rich_help_panel=SEGMENTS)(retain)
app.command(rich_help_panel=SEGMENTS)(compact)
app.command(rich_help_panel=SEGMENTS)(archive)
app.command(rich_help_panel=SEGMENTS)(janitor)
app.command(rich_help_panel=SEGMENTS)(erase)
app.command(rich_help_panel=COPIES)(clone)
app.command(rich_help_panel=COPIES)(restore)
app.command(rich_help_panel=COPIES)(export)
app.command(name="import", rich_help_panel=COPIES)(import_)
app.command(rich_help_panel=COPIES)(graduate)
app.command(rich_help_panel=COPIES)(adopt)
app.add_typer(pipelines.app, name="pipeline", rich_help_panel=SPARK)
app.command(rich_help_panel=LOOKING)(verify)
app.command(rich_help_panel=LOOKING)(repair)
app.command(rich_help_panel=LOOKING)(config)
app.command(name="log-dirs", rich_help_panel=LOOKING)(log_dirs)


def run() -> None:
    """Parses the command line and runs it."""
    app(prog_name="stratalog")
