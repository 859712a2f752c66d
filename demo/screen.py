"""The demonstration's output: colours, a progress bar and boxes on a terminal, plain lines elsewhere.

With ``--json`` the console is silent and only the facts are printed. Colour follows the terminal and
``NO_COLOR``.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from stratalog.config.units import format_bytes, format_time
from stratalog.model import SegmentInfo

SEGMENT_LINE = "  {:>9}  {:>12}  {:>12}  {:<8}  {:<19}  {:<19}  {:>9}"


@dataclass(slots=True)
class Check:
    """One thing that must hold, and a text with what was seen."""

    name: str
    passed: bool
    detail: str


@dataclass(slots=True)
class Screen:
    """The console, the checks and the rows of the summary."""

    silent: bool = False
    checks: list[Check] = field(default_factory=list)
    rows: list[tuple[str, str, str]] = field(default_factory=list)
    """The summary: what, a figure, and details."""
    console: Console = field(init=False)

    def __post_init__(self) -> None:
        self.console = Console(highlight=False, file=io.StringIO() if self.silent else None)
        if not self.console.is_terminal:
            # A pipe has no width: never fold a line for it.
            self.console.width = 140

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if not check.passed]

    def title(self, text: str, detail: str) -> None:
        self.console.print(Text.assemble((text, "bold"), "  ", (detail, "dim")), soft_wrap=True)

    def step(self, text: str) -> None:
        self.console.print()
        self.console.print(Text(text, style="bold cyan"))

    def line(self, text: str, style: str = "") -> None:
        self.console.print(Text(f"  {text}", style=style))

    def check(self, name: str, passed: bool, detail: str) -> None:
        """Show a check and keep it."""
        self.checks.append(Check(name, passed, detail))
        mark = ("✓ ", "green") if passed else ("✗ ", "bold red")
        self.console.print(Text.assemble("  ", mark, (detail, "" if passed else "bold red")))

    @contextlib.contextmanager
    def progress(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a bar on a terminal; yield a function of how much is done."""
        if not self.console.is_terminal:
            yield lambda done: None
            return
        with Progress(
            TextColumn("  {task.description}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
        ) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.update(task, completed=done)

    def segment_head(self) -> None:
        names = ("partition", "base offset", "next offset", "state", "from (UTC)", "to", "size")
        self.console.print(Text(SEGMENT_LINE.format(*names).rstrip(), style="bold"))

    def segment(self, info: SegmentInfo) -> None:
        """Print a segment as a row of a table that grows while segments appear."""
        row = SEGMENT_LINE.format(
            info.partition,
            f"{info.base_offset:,}",
            f"{info.next_offset:,}",
            str(info.state),
            _time(info.min_timestamp),
            _time(info.max_timestamp),
            format_bytes(info.size_bytes),
        )
        self.console.print(Text(row.rstrip(), style="green" if info.state == "active" else ""))

    def row(self, name: str, figure: str, detail: str) -> None:
        """Add a row to the summary."""
        self.rows.append((name, figure, detail))

    def summary(self, elapsed_s: float, closing: list[str]) -> None:
        """Print what was done, how fast, and whether every check held."""
        passed = len(self.checks) - len(self.failed)
        verdict = f"{passed} of {len(self.checks)} checks passed in {elapsed_s:.1f} s"
        self.console.print()
        if self.console.is_terminal:
            self._boxed(verdict)
        else:
            for name, figure, detail in self.rows:
                self.console.print(f"{name:<20}{figure:>12}   {detail}")
            self.console.print(verdict)
        for check in self.failed:
            self.console.print(Text(f"  ✗ {check.name}: {check.detail}", style="bold red"))
        for line in closing:
            self.console.print(Text(line, style="dim"))

    def _boxed(self, verdict: str) -> None:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(justify="right", style="cyan", no_wrap=True)
        table.add_column(style="dim")
        for row in self.rows:
            table.add_row(*row)
        style = "red" if self.failed else "green"
        title = Text(verdict, style=f"bold {style}")
        self.console.print(
            Panel(table, title=title, title_align="left", border_style=style, expand=False, padding=(1, 2))
        )


def _time(timestamp: int | None) -> str:
    return "" if timestamp is None else format_time(timestamp)[:19].replace("T", " ")
