"""The ``stratalog`` command: its options, where each command lives, and the help page that lists them.

A command is imported when it is used. The page needs none of them and looks like those that rich draws for
the commands; rich is not loaded for it, because that takes longer than everything else that ``--help`` does.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Annotated, Any, ClassVar, NamedTuple

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from stratalog.cli import guard, version_line
from stratalog.cli.console import is_terminal
from stratalog.cli.session import DataOption, DebugOption, opt, set_global_data

MAX_WIDTH = 200
MIN_TEXT_WIDTH = 20


class Place(NamedTuple):
    """The module of a command below ``stratalog.cli``, its first sentence, and the name it has there."""

    module: str
    summary: str
    name: str = ""
    """Empty if it is the command's own."""


PANELS: dict[str, dict[str, Place]] = {
    "Topics and records": {
        "topic": Place("topics", "Create, list, describe, alter, move and delete topics.", "app"),
        "append": Place("append", "Append records: one per line, one JSON object per line, or one per file."),
        "read": Place(
            "read", "Print records: values only in a pipe; offset, time, key and value on a terminal."
        ),
        "sql": Place(
            "analysis.sql",
            'Run SQL over topics: "select key, count(*) from orders group by key". Needs DuckDB.',
        ),
        "group": Place("groups", "List, describe, reset and delete consumer groups.", "app"),
    },
    "Kafka clients": {
        "serve": Place(
            "serve", "Serve the store to Kafka clients until SIGTERM or Ctrl-C; make it if there is none."
        ),
    },
    "The life of segments": {
        "segments": Place("segments", "List every segment: state, offsets, time range, size."),
        "roll": Place("segments", "Seal the active segment and begin a new one."),
        "lifecycle": Place(
            "lifecycle",
            "Show segments, bytes and files of each partition by state, and segments past their retention.",
        ),
        "retain": Place(
            "lifecycle", "Delete expired segments: retention.ms, retention.bytes, retention.segments."
        ),
        "compact": Place(
            "lifecycle", "Keep the latest record of every key, in topics with cleanup.policy=compact."
        ),
        "archive": Place(
            "lifecycle", "Copy sealed segments to the archive, and remove local copies that have expired."
        ),
        "janitor": Place("lifecycle", "Run retain, compact and archive once, or repeatedly with --watch."),
        "erase": Place(
            "lifecycle", "Remove every record of a key permanently; other records keep their offsets."
        ),
    },
    "Copies": {
        "clone": Place(
            "copies", "Clone the store: sealed segments are hard-linked, only active ones are copied."
        ),
        "restore": Place(
            "copies",
            "Build a new store with the state of this one at a given time, from local and archived segments.",
        ),
        "export": Place(
            "copies",
            "Write a topic with its records, indexes and settings to one checksummed file; - is stdout.",
        ),
        "import": Place(
            "copies",
            "Import an exported topic completely or not at all; create the store if there is none.",
            "import_",
        ),
        "graduate": Place(
            "copies", "Copy a topic into a Kafka broker's directories, created by the broker for it."
        ),
        "adopt": Place(
            "copies",
            "Copy a topic and its settings from a stopped Kafka broker; the broker's files are not changed.",
        ),
    },
    "Spark": {
        "pipeline": Place(
            "pipelines",
            "Work on whole topics with Spark: here on local[*], or on a cluster with --master.",
            "app",
        ),
    },
    "Files, damage and settings": {
        "inspect": Place(
            "analysis.inspect",
            "Show what a log directory holds and what is damaged, also one of a dead broker.",
        ),
        "dump": Place(
            "dump", "Print the contents of segment files in the format of kafka-dump-log.", "dump_command"
        ),
        "verify": Place(
            "check", "Check every byte; list damaged ranges and lost offsets (exit code 5 if there are any)."
        ),
        "repair": Place(
            "check", "Repair a topic with --action, and list lost records (exit code 5 if damage is left)."
        ),
        "config": Place(
            "topics", "List all settings, or show the effective settings of a topic and where they come from."
        ),
        "log-dirs": Place(
            "segments",
            "Show the store's directories: contents, free space, and the process that writes them.",
            "log_dirs",
        ),
    },
}
ORDER = tuple(name for commands in PANELS.values() for name in commands)


class LazyGroup(TyperGroup):
    """Imports a command when it is used. ``panels`` has them by panel, in the order of the help page."""

    panels: ClassVar[Mapping[str, Mapping[str, Place]]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for places in self.panels.values() for name in places]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for places in self.panels.values():
            if cmd_name in places and cmd_name not in self.commands:
                self.commands[cmd_name] = _load(cmd_name, places[cmd_name])
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load all commands when one is mistyped: the message names those that look alike."""
        if self.get_command(ctx, args[0]) is None:
            for name in self.list_commands(ctx):
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Draw the page from ``panels``; import no command."""
        page = _Page(min(shutil.get_terminal_size().columns, MAX_WIDTH), _wants_colour())
        page.text(self.get_usage(ctx), "1")
        for paragraph in (self.help or "").split("\n\n"):
            page.text(" ".join(paragraph.split()))
        page.panel("Options", [_option(each) for each in self.get_params(ctx)])
        width = max(map(len, self.list_commands(ctx)))
        for panel, places in self.panels.items():
            page.panel(panel, [(name.ljust(width), place.summary) for name, place in places.items()])
        page.text(self.epilog or "")
        formatter.write("\n".join(page.lines))


def _load(name: str, place: Place) -> Any:
    found = getattr(import_module(f"stratalog.cli.{place.module}"), place.name or name)
    if isinstance(found, typer.Typer):
        group: Any = typer.main.get_group(found)
        group.name = name
        return group
    single = typer.Typer(add_completion=False, rich_markup_mode="rich")
    single.command(name=name)(found)
    return typer.main.get_command(single)


def _option(parameter: Any) -> tuple[str, str]:
    names = ", ".join((*parameter.opts, *parameter.secondary_opts))
    return f"{names} {parameter.metavar or ''}".rstrip(), parameter.help or ""


def _wants_colour() -> bool:
    dull = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return is_terminal(sys.stdout) and not dull


class _Page:
    """Lines of paragraphs and of boxes with two columns; styles are numbers of ANSI codes."""

    def __init__(self, width: int, colour: bool) -> None:
        self.lines: list[str] = [""]
        self._width = width
        self._colour = colour

    def text(self, paragraph: str, style: str = "") -> None:
        lines = textwrap.wrap(paragraph, max(self._width - 2, MIN_TEXT_WIDTH))
        self.lines += [*(" " + self._styled(line, style) for line in lines), ""]

    def panel(self, title: str, rows: Iterable[tuple[str, str]]) -> None:
        rows = list(rows)
        left = max(len(name) for name, _ in rows)
        right = max(self._width - left - 6, MIN_TEXT_WIDTH)
        edge = self._styled("│", "2")
        inner = left + right + 4
        self.lines.append(self._styled(f"╭─ {title} ".ljust(inner + 1, "─") + "╮", "2"))
        for name, summary in rows:
            for number, line in enumerate(textwrap.wrap(summary, right) or [""]):
                first = self._styled((name if number == 0 else "").ljust(left), "1;36")
                self.lines.append(f"{edge} {first}  {line.ljust(right)} {edge}")
        self.lines.append(self._styled("╰" + "─" * inner + "╯", "2"))

    def _styled(self, text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self._colour and style else text


class GuardedGroup(LazyGroup):
    """Runs commands inside the guard: errors become one line and an exit code, in tests as in a shell."""

    panels = PANELS

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
    """A segmented commit log in Kafka's on-disk format.

    Data goes to stdout, messages to stderr. Commands also work while a program has the store open.
    """
    guard.set_debug(debug)
    set_global_data(data)


def run() -> None:
    """Parse the command line and run it."""
    app(prog_name="stratalog")
