"""What is printed: tables, messages, progress.

On a terminal tables are drawn by rich (imported only then); in a pipe they are plain aligned columns of
any width, for grep and awk. Colour follows the terminal and ``NO_COLOR``.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

Progress = Callable[[int, int], None]
NamedProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Column:
    """A heading; ``right`` for numbers, ``style`` and ``fold`` only matter on a terminal."""

    title: str
    right: bool = False
    style: str = ""
    fold: bool = False


@dataclass(slots=True)
class Table:
    """Rows of text under columns, with a short line above and below."""

    columns: Sequence[Column]
    rows: list[Sequence[str]] = field(default_factory=list)
    title: str = ""
    footer: str = ""

    def add(self, *cells: str) -> None:
        self.rows.append(cells)

    def plain(self) -> str:
        """Aligned columns, two spaces apart, no trailing blanks, nothing cut off."""
        lines = [self.title] if self.title else []
        if self.rows:
            head = [column.title for column in self.columns]
            widths = [max(map(len, cells)) for cells in zip(head, *self.rows, strict=True)]
            lines += [self._line(cells, widths) for cells in (head, *self.rows)]
        if self.footer:
            lines.append(self.footer)
        return "\n".join(lines)

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        padded = (
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(cells, widths, self.columns, strict=True)
        )
        return "  ".join(padded).rstrip()


def show(table: Table) -> None:
    """Prints a table on stdout."""
    if is_terminal(sys.stdout):
        _show_rich(table)
    else:
        print(table.plain())


def show_json(value: object) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def note(message: str) -> None:
    """A message for people, on stderr."""
    print(message, file=sys.stderr)


def is_terminal(stream: TextIO | Any) -> bool:
    """Whether people look at it."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


@contextlib.contextmanager
def progress(what: str, unit: str = "bytes") -> Iterator[Progress]:
    """A bar on stderr while something long runs; nothing at all when stderr is not a terminal.

    Gives a function of (done, total); total 0 means unknown.
    """
    if not is_terminal(sys.stderr):
        yield lambda done, total: None
        return
    with _bars(unit) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


@contextlib.contextmanager
def bars(unit: str = "bytes") -> Iterator[NamedProgress | None]:
    """A bar for each thing under way, on a terminal; else None, and nobody need count.

    Gives a function of (what, done, total); a bar goes when its thing is done.
    """
    if not is_terminal(sys.stderr):
        yield None
        return
    with _bars(unit) as bar:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=None)
            bar.update(tasks[what], completed=done, total=total or None, visible=done < total or not total)

        yield report


def _bars(unit: str) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    return Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True) if unit == "bytes" else MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def _show_rich(table: Table) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(highlight=False)
    if table.title:
        console.print(Text(table.title, style="bold"))
    if table.rows:
        drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
        for column in table.columns:
            drawn.add_column(
                column.title,
                justify="right" if column.right else "left",
                style=column.style,
                overflow="fold" if column.fold else "ellipsis",
                no_wrap=not column.fold,
            )
        for row in table.rows:
            drawn.add_row(*(Text(cell, style=_STATE_STYLES.get(cell, "")) for cell in row))
        console.print(drawn)
    if table.footer:
        console.print(Text(table.footer, style="dim"))


_STATE_STYLES = {
    "active": "green",
    "online": "green",
    "compacting": "yellow",
    "compacted": "cyan",
    "archived": "blue",
    "deleted": "red",
    "offline": "red",
    "topic": "bold",
    "delete": "red",
    "skip": "yellow",
}
