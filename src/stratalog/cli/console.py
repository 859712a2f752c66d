"""What is printed: tables, messages, progress.

On a terminal tables are drawn by rich (imported only then); in a pipe they are plain aligned columns of
any width, for grep and awk. Colour follows the terminal and ``NO_COLOR``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from stratalog.errors import StratalogError

Progress = Callable[[int, int], None]
NamedProgress = Callable[[str, int, int], None]

_MARKS = ">*.~-"
FOLDED_WIDTH = 16
"""A column that may be wrapped keeps this many characters, if it has as many."""
GAP = 3


class Table:
    """Rows of text under columns, with a short line above and below.

    Marks in front of a column's title: ``>`` aligned to the right, and on a terminal ``*`` bold, ``.`` dim,
    ``~`` wrapped. A terminal that is too narrow gets whole columns less: those with the most ``-`` first,
    then from the right. The first column stays, and is wrapped if it must be. A pipe always gets everything.
    """

    def __init__(self, *columns: str, title: str = "", footer: str = "") -> None:
        self.titles = [column.lstrip(_MARKS) for column in columns]
        self.marks = [column[: len(column) - len(column.lstrip(_MARKS))] for column in columns]
        self.rows: list[Sequence[str | int]] = []
        self.title = title
        self.footer = footer

    def add(self, *cells: object) -> None:
        """Add a row; on a terminal whole numbers get thousands separators."""
        self.rows.append([cell if isinstance(cell, int) else str(cell) for cell in cells])

    def plain(self) -> str:
        """Return aligned columns, two spaces apart, no trailing blanks, nothing cut off."""
        lines = [self.title] if self.title else []
        if self.rows:
            rows = [self.titles, *([str(cell) for cell in row] for row in self.rows)]
            widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
            lines += [self._line(cells, widths) for cells in rows]
        if self.footer:
            lines.append(self.footer)
        return "\n".join(lines)

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        padded = (
            cell.rjust(width) if ">" in marks else cell.ljust(width)
            for cell, width, marks in zip(cells, widths, self.marks, strict=True)
        )
        return "  ".join(padded).rstrip()


def number(count: int) -> str:
    """Return a number as text for stdout: with separators on a terminal, without them in a pipe."""
    return f"{count:,}" if is_terminal(sys.stdout) else str(count)


def escaped(text: str) -> str:
    """Return text with its control characters as escapes."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def show(table: Table) -> None:
    """Print a table on stdout."""
    if is_terminal(sys.stdout):
        _show_rich(table)
    else:
        print(table.plain())


def show_json(value: object) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def note(message: str) -> None:
    """Print a message on stderr."""
    print(message, file=sys.stderr)


AGAIN_S, MAX_SAID = 60.0, 1000


class Warnings(logging.Handler):
    """Prints the library's warnings on stderr, each once a command.

    Those of `holding` wait for the end of the block, so that what is reported in another way is not printed
    twice. A command that runs for weeks is a `service`: there each line has its time and is repeated after a
    minute at the earliest, and an unexpected error has its traceback.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: set[str] = set()
        self._said_s: dict[str, float] | None = None
        """In a service, when each line was printed last."""
        self._held: list[str] | None = None
        self._told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if self._said_s is not None:
            self._emit_again(record, line, self._said_s)
        elif self._held is not None:
            self._held.append(line)
        elif line not in self.said:
            self.said.add(line)
            note(line)

    def _emit_again(self, record: logging.LogRecord, line: str, said_s: dict[str, float]) -> None:
        now_s = time.monotonic()
        if record.exc_info:
            line = f"{line}\n{logging.Formatter().formatException(record.exc_info)}"
        if now_s - said_s.get(line, -AGAIN_S) < AGAIN_S:
            return
        if len(said_s) >= MAX_SAID:
            said_s.clear()
        said_s[line] = now_s
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        with contextlib.suppress(OSError):  # stderr may be a file on the disk that is full
            note(f"{at} {line}")

    @contextlib.contextmanager
    def service(self) -> Iterator[None]:
        """Print warnings as a command needs it that runs for weeks."""
        self._said_s = {}
        try:
            yield
        finally:
            self._said_s = None

    @contextlib.contextmanager
    def holding(self) -> Iterator[list[str]]:
        """Yield a list for reported texts; after the block print the warnings that are not among them."""
        if self._held is not None:
            yield self._told
            return
        self._held, self._told = [], []
        try:
            yield self._told
        except (StratalogError, OSError) as error:
            self._told.append(str(error))
            raise
        finally:
            held, self._held = self._held, None
            for line in dict.fromkeys(held):
                if line not in self.said and not any(_tells(each, line) for each in self._told):
                    self.said.add(line)
                    note(line)


def _tells(told: str, line: str) -> bool:
    """Return True if a message holds what a warning says behind its subject, or names its file or URL."""
    subject, _, text = line.partition(": ")
    url = text.partition(": ")[0]
    return (
        (text or line) in told
        or ("/" in subject and f"{subject}: " in told)
        or ("://" in url and url in told)
    )


warnings = Warnings()


def counted(count: int, thing: str) -> str:
    """Return ``1 record`` or ``1000 records``; as `number`, with separators on a terminal."""
    return f"{number(count)} {thing}{'' if count == 1 else 's'}"


def is_terminal(stream: TextIO | Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


@contextlib.contextmanager
def progress(what: str) -> Iterator[Progress]:
    """Show a bar on stderr while something long runs; nothing when stderr is not a terminal.

    Yields a function of (done, total); total 0 means unknown.
    """
    with bars() as report:
        yield (lambda done, total: None) if report is None else lambda done, total: report(what, done, total)


@contextlib.contextmanager
def bars(unit: str = "bytes") -> Iterator[NamedProgress | None]:
    """Show a bar for each thing under way, on a terminal; else yield None, so that nothing is counted.

    Yields a function of (what, done, total); a bar goes when its thing is done.
    """
    if not is_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    with Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True) if unit == "bytes" else MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=None)
            bar.update(tasks[what], completed=done, total=total or None, visible=done < total or not total)

        yield report


def _show_rich(table: Table) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(highlight=False)
    if table.title:
        console.print(Text(table.title, style="bold"))
    rows = [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in table.rows]

    folds = ["~" in marks or at == 0 for at, marks in enumerate(table.marks)]
    widths = [max(map(len, cells)) for cells in zip(table.titles, *rows, strict=True)]
    narrowest = max(FOLDED_WIDTH, console.width // 3)
    widths = [min(width, narrowest) if fold else width for width, fold in zip(widths, folds, strict=True)]
    shown = list(range(len(widths)))
    while len(shown) > 1 and sum(widths[at] + GAP for at in shown) - GAP > console.width:
        shown.remove(max(shown[1:], key=lambda at: (table.marks[at].count("-"), at)))
    if rows:
        drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
        for at in shown:
            marks = table.marks[at]
            drawn.add_column(
                table.titles[at],
                justify="right" if ">" in marks else "left",
                style="bold" if "*" in marks else "dim" if "." in marks else "",
                overflow="fold",
                no_wrap=not folds[at],
                min_width=widths[at],
            )
        for row in rows:
            drawn.add_row(*(Text(row[at], style=_STATE_STYLES.get(row[at], "")) for at in shown))
        console.print(drawn)
        if left_out := [title for at, title in enumerate(table.titles) if at not in shown]:
            console.print(Text(f"not shown, too narrow: {', '.join(left_out)}", style="dim"))
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
