"""Starting the command line: what a command costs before it does anything."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import stratalog
from bench.harness import Bar, Case, MismatchError, Sample, Section, take_turns
from bench.plan import Plan

COLUMNS = (("cpu_s", "CPU seconds", ".3f"), ("seconds", "seconds", ".3f"))
HELP, READ, LIST = "stratalog --help", "stratalog read", "stratalog topic list"
LIMITS = {HELP: 0.2, READ: 0.35}
"""CPU seconds."""
SOURCE = Path(stratalog.__file__).resolve().parents[1]


def run(plan: Plan) -> list[Section]:
    section = Section("start", "Start the command line", COLUMNS)
    plan.say(section.title)
    with plan.scratch() as path:
        with stratalog.open(path) as store:
            store.create_topic("small").append_many([(b"value %d" % number, b"key") for number in range(10)])
        commands = {
            HELP: (["--help"], "Usage"),
            READ: (["read", "small"], "value 9"),
            LIST: (["topic", "list"], "small"),
        }
        cases = [Case(name, partial(_start, path, *command)) for name, command in commands.items()]
        for case in cases:
            case.run()
        section.rows = take_turns(cases, plan.repeat)
    section.notes.append("A whole process each, with everything read from the page cache.")
    section.equal.append("every command printed what it was asked for")
    section.bars = [_bar(section, name, limit_s) for name, limit_s in LIMITS.items()]
    return [section]


def _bar(section: Section, name: str, limit_s: float) -> Bar:
    found = section.figure(name, "cpu_s")
    text = f"{name}: under {limit_s:g} s of CPU"
    return Bar(text, "–", None) if found is None else Bar(text, f"{found:.3f} s", found < limit_s)


def _start(data: Path, arguments: list[str], expected: str) -> Sample:
    began, before = time.perf_counter(), os.times()
    done = subprocess.run(
        [sys.executable, "-m", "stratalog", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "STRATALOG_DATA": str(data),
            "PYTHONIOENCODING": "utf-8",
        },
    )
    after = os.times()
    if done.returncode or expected not in done.stdout:
        raise MismatchError(f"stratalog {' '.join(arguments)} gave {done.stdout[:200]} {done.stderr[:200]}")
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return {"cpu_s": max(cpu_s, 0.001), "seconds": time.perf_counter() - began}
