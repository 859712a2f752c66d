"""The report: Markdown for people, JSON with every raw number for the record."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
from collections.abc import Sequence
from typing import Any

import stratalog
from bench.harness import Bar, Section
from bench.sizes import BATCH, KEY_BYTES, RECORD_BYTES, VALUE_BYTES
from stratalog import kernel

PACKAGES = ("pyarrow", "rocksdict", "lmdb", "diskcache")


def environment(sizes: str, repeat: int) -> dict[str, Any]:
    """What the figures were taken with; no names of machines or paths."""
    return {
        "stratalog": stratalog.__version__,
        "kernel_compiled": kernel.compiled,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **{name: importlib.metadata.version(name) for name in PACKAGES},
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
        "sizes": sizes,
        "repeat": repeat,
    }


def as_json(sections: Sequence[Section], about: dict[str, Any]) -> dict[str, Any]:
    return {
        "environment": about,
        "sections": [
            {
                "name": section.name,
                "title": section.title,
                "equal": section.equal,
                "notes": section.notes,
                "rows": [
                    {
                        "system": row.system,
                        "median": {name: row.median(name) for name in row.raw},
                        "raw": row.raw,
                    }
                    for row in section.rows
                ],
                "bars": [
                    {"text": bar.text, "figure": bar.figure, "verdict": bar.verdict, "met": bar.met}
                    for bar in section.bars
                ],
            }
            for section in sections
        ],
    }


def as_markdown(sections: Sequence[Section], about: dict[str, Any], *, preface: bool = True) -> str:
    """Everything, bars first."""
    lines = ["# Benchmarks", ""] if preface else []
    if preface:
        lines += [*_about(about), ""]
    bars = [bar for section in sections for bar in section.bars]
    if bars:
        lines += [
            "## Bars",
            "",
            *_table(["bar", "measured", "verdict"], [_bar(bar) for bar in bars], "lrl"),
            "",
        ]
    for section in sections:
        lines += [f"## {section.title}", "", *([*_figures(section), ""] if section.rows else [])]
        lines += [f"{note}" for note in section.notes]
        lines += [f"Equal: {text}." for text in section.equal]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _about(about: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {about[name]}" for name in ("python", *PACKAGES, "sqlite"))
    made = "compiled" if about["kernel_compiled"] else "interpreted"
    size = "" if about["sizes"] == "full" else f" --{about['sizes']}"
    method = (
        f"`python -m bench{size} --repeat {about['repeat']}`: medians of {about['repeat']} runs, taken in"
        f" turn. Records of {RECORD_BYTES} bytes ({KEY_BYTES} of key, {VALUE_BYTES} of value), batches of"
        f" {BATCH:,}. “×” is the figure of the first row divided by that row's."
    )
    setting = (
        f"stratalog {about['stratalog']} ({made} kernel), {versions}; {about['machine']},"
        f" {about['cores']} cores, load average {about['load_average']} at the end."
    )
    return [method, "", setting]


def _bar(bar: Bar) -> list[str]:
    verdict = f"**{bar.verdict}**" if bar.verdict == "MISSED" else bar.verdict
    return [bar.text, bar.figure, verdict]


def _figures(section: Section) -> list[str]:
    heads = ["", *(heading for _, heading, _ in section.columns)]
    lead = section.columns[0][0]
    first = section.rows[0].median(lead) if section.rows else None
    compare = len(section.rows) > 1 and section.name not in ("recovery", "start")
    rows = []
    for row in section.rows:
        cells = [row.system]
        for name, _, form in section.columns:
            value = row.median(name)
            cells.append("–" if value is None else format(value, form))
        if compare:
            value = row.median(lead)
            cells.append("–" if not value or first is None else f"{first / value:.2f}×")
        rows.append(cells)
    return _table([*heads, "×"] if compare else heads, rows, "l" + "r" * len(heads))


def _table(heads: list[str], rows: list[list[str]], sides: str) -> list[str]:
    widths = [max(3, *(len(row[at]) for row in [heads, *rows])) for at in range(len(heads))]

    def line(cells: list[str]) -> str:
        padded = (
            cell.ljust(width) if side == "l" else cell.rjust(width)
            for cell, width, side in zip(cells, widths, sides, strict=False)
        )
        return "| " + " | ".join(padded) + " |"

    rule = (
        "-" * width if side == "l" else "-" * (width - 1) + ":"
        for width, side in zip(widths, sides, strict=False)
    )
    return [line(heads), "| " + " | ".join(rule) + " |", *(line(row) for row in rows)]
