"""The ``stratalog`` command: its options and where each command lives."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from stratalog.cli import groups, guard, pipelines, topics, version_line
from stratalog.cli.append import append
from stratalog.cli.check import repair, verify
from stratalog.cli.copies import adopt, clone, export, graduate, import_, restore
from stratalog.cli.lifecycle import archive, compact, erase, janitor, lifecycle, retain
from stratalog.cli.read import read
from stratalog.cli.segments import log_dirs, roll, segments
from stratalog.cli.session import DataOption, DebugOption, opt, set_global_data
from stratalog.cli.topics import config

PANELS: dict[str, dict[str, Any]] = {
    "Topics and records": {"topic": topics.app, "append": append, "read": read, "group": groups.app},
    "The life of segments": {
        "segments": segments,
        "roll": roll,
        "lifecycle": lifecycle,
        "retain": retain,
        "compact": compact,
        "archive": archive,
        "janitor": janitor,
        "erase": erase,
    },
    "Copies": {
        "clone": clone,
        "restore": restore,
        "export": export,
        "import": import_,
        "graduate": graduate,
        "adopt": adopt,
    },
    "Spark": {"pipeline": pipelines.app},
    "Files, damage and settings": {
        "dump": None,  # imported when it is used
        "verify": verify,
        "repair": repair,
        "config": config,
        "log-dirs": log_dirs,
    },
}
ORDER = tuple(name for commands in PANELS.values() for name in commands)


class GuardedGroup(TyperGroup):
    """Runs commands inside the guard: errors become one line and an exit code, in tests as in a shell."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return them in the order of the help page, not groups last."""
        return list(ORDER)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; the dump tool loads the kernel, so it is imported only when used."""
        if cmd_name == "dump" and cmd_name not in self.commands:
            from stratalog.cli.dump import dump_command

            single = typer.Typer(add_completion=False, rich_markup_mode="rich")
            single.command(name="dump", rich_help_panel=[*PANELS][-1])(dump_command)
            self.commands[cmd_name] = typer.main.get_command(single)
        return super().get_command(ctx, cmd_name)

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse the options before the command."""
        try:
            return super().make_context(*args, **options)
        except TyperException as error:
            guard.explain_usage(error)
            raise

    def invoke(self, ctx: Any) -> Any:
        with guard.guarded():
            return super().invoke(ctx)


app = typer.Typer(
    cls=GuardedGroup,
    name="stratalog",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog=guard.epilog(),
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(version_line())
        raise typer.Exit


@app.callback()
def stratalog(
    data: DataOption = None,
    version: Annotated[
        bool, opt("--version -V", "Show versions.", callback=_show_version, is_eager=True)
    ] = False,
    debug: DebugOption = False,
) -> None:
    """A segmented commit log in Kafka's own on-disk format.

    Data goes to stdout, messages to stderr. Every command works beside a program that holds the store.
    """
    guard.set_debug(debug)
    set_global_data(data)


for panel, commands in PANELS.items():
    for name, each in commands.items():
        if isinstance(each, typer.Typer):
            app.add_typer(each, name=name, rich_help_panel=panel)
        elif each is not None:
            app.command(name=name, rich_help_panel=panel)(each)


def run() -> None:
    """Parse the command line and run it."""
    app(prog_name="stratalog")
