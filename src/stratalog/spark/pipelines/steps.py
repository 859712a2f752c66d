"""Pipelines by name, and several of them from a file, one after another in one session.

    [session]                        # optional
    master = "local[*]"
    conf = { "spark.driver.memory" = "2g" }

    [defaults]                       # optional: arguments of every step that takes them
    path = "/var/lib/stratalog"

    [[step]]
    pipeline = "export"              # the rest are the function's own arguments
    topics = ["orders"]
    output = "/lake/orders"

    [[step]]
    pipeline = "check"
    label = "fresh"                  # optional: what the step is called when it is told about
    limits = { max_age = "15m" }

Everything is checked before the first step begins. The first step that fails, or whose result is not ``ok``,
ends the run. What was done is written to a state file after each step, whole or not at all: a run that
resumes skips those steps, as long as they are written as they were. A step that was cut short is run again,
which every pipeline allows. A run that is done to the end removes its state: the next one begins anew.
"""

from __future__ import annotations

import datetime as dt
import difflib
import fcntl
import hashlib
import importlib
import inspect
import json
import os
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stratalog.config.units import format_time
from stratalog.errors import ConfigError, CorruptionError, StoreLockedError
from stratalog.fs import RealFileSystem
from stratalog.spark.pipelines import NAMES
from stratalog.spark.pipelines.result import PipelineResult, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATE_VERSION = 1
_GIVEN = ("spark", "progress")
_OWN = ("pipeline", "label")


def pipeline(name: str) -> Callable[..., PipelineResult]:
    """The function of a pipeline; ConfigError, naming the nearest, when there is none of that name."""
    if name not in NAMES:
        raise ConfigError(f"there is no pipeline {name!r}{_near(name, NAMES)}; there are {', '.join(NAMES)}")
    module = importlib.import_module(f"stratalog.spark.pipelines.{name}")
    found: Callable[..., PipelineResult] = getattr(module, name)
    return found


@dataclass(frozen=True, slots=True)
class Step:
    """One pipeline with its arguments."""

    number: int
    pipeline: str
    label: str
    arguments: Mapping[str, Any]

    @property
    def fingerprint(self) -> str:
        """Tells whether a step is still written as it was."""
        said = json.dumps([self.pipeline, self.arguments], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()

    def __str__(self) -> str:
        return f"step {self.number} ({self.label})"


@dataclass(frozen=True, slots=True)
class Plan:
    """A file of steps, checked."""

    where: str
    steps: tuple[Step, ...]
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)


def read_plan(text: str, where: str, defaults: Mapping[str, Any] | None = None) -> Plan:
    """The plan in a TOML text. ``defaults`` are arguments for steps that take and do not say them.

    ConfigError names the step and the argument that is wrong.
    """
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: not TOML: {error}") from None
    if unknown := set(said) - {"session", "defaults", "step"}:
        raise ConfigError(f"{where}: there is no {min(unknown)!r}; there are [session], [defaults], [[step]]")
    session, given, steps = said.get("session", {}), said.get("defaults", {}), said.get("step", [])
    if not isinstance(session, dict) or not isinstance(given, dict):
        raise ConfigError(f"{where}: session and defaults are tables: write [session] and [defaults]")
    if not isinstance(steps, list) or not steps or not all(isinstance(each, dict) for each in steps):
        raise ConfigError(f'{where}: there is no step: write [[step]] and below it pipeline = "stats"')
    if unknown := set(session) - {"master", "conf"}:
        raise ConfigError(f"{where}: [session] has {min(unknown)!r}, takes master and conf")
    conf = session.get("conf", {})
    if not isinstance(conf, dict):
        raise ConfigError(f"{where}: [session] conf is {conf!r}, takes a table of Spark's settings")
    offered = {**(defaults or {}), **_plain(given)}
    made = tuple(_step(where, number, each, offered) for number, each in enumerate(steps, 1))
    unused = set(given) - {name for step in made for name in step.arguments}
    if unused:
        raise ConfigError(f"{where}: [defaults] has {min(unused)!r}, which no step takes")
    plain = {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in conf.items()
    }
    return Plan(where, made, session.get("master"), plain)


def _step(where: str, number: int, said: Mapping[str, Any], offered: Mapping[str, Any]) -> Step:
    place = f"{where}: step {number}"
    kind = said.get("pipeline")
    if not isinstance(kind, str):
        raise ConfigError(f"{place}: pipeline is {kind!r}, takes one of {', '.join(NAMES)}")
    try:
        parameters = inspect.signature(pipeline(kind)).parameters
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
    takes = [name for name in parameters if name not in _GIVEN]
    arguments = {name: offered[name] for name in takes if name in offered}
    arguments |= {name: value for name, value in _plain(said).items() if name not in _OWN}
    for name in arguments:
        if name not in takes:
            raise ConfigError(
                f"{place}: {kind} has no {name!r}{_near(name, takes)}; it takes {', '.join(takes)}"
            )
    for name in takes:
        if name not in arguments and parameters[name].default is inspect.Parameter.empty:
            raise ConfigError(f"{place}: {kind} needs {name}")
    return Step(number, kind, str(said.get("label", kind)), arguments)


def run_plan(
    spark: Callable[[], SparkSession],
    plan: Plan,
    *,
    state: str | None = None,
    resume: bool = False,
    skipped: Callable[[Step], None] = lambda step: None,
    tell: Callable[[Step, PipelineResult], None] = lambda step, result: None,
    progress: Progress | None = None,
) -> list[PipelineResult]:
    """Run the steps in order; the results of those that ran, the last of which may be not ``ok``.

    ``spark`` is called when the first step has to run. ``state`` is the file that remembers what was done;
    with ``resume`` those steps are not run again, and ``skipped`` is told them. A step's exception comes as
    it is, with the step as a note.
    """
    kept = _State(state)
    steps = list(plan.steps)
    if resume:
        while steps and kept.has(steps[0], len(plan.steps) - len(steps)):
            skipped(steps.pop(0))
    else:
        kept.clear()
    kept.cut(len(plan.steps) - len(steps))
    results: list[PipelineResult] = []
    session: SparkSession | None = None
    for step in steps:
        session = session or spark()
        try:
            result = pipeline(step.pipeline)(session, **step.arguments, progress=progress)
        except Exception as error:
            error.add_note(f"{plan.where}: {step}")
            raise
        results.append(result)
        tell(step, result)
        if not result.ok:
            return results
        kept.done(step, result)
    kept.clear()
    return results


@contextmanager
def alone(file: str) -> Iterator[None]:
    """One process at a time runs this file; StoreLockedError in the second."""
    handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLockedError(f"{file}: another process runs these steps at the moment") from None
        yield
    finally:
        os.close(handle)


class _State:
    """What was done, in a small JSON file that is replaced whole. None keeps nothing."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._fs = RealFileSystem()
        self._done: list[dict[str, Any]] = []
        if path is not None and self._fs.exists(path):
            self._done = _parse_state(path, self._fs.read_file(path))

    def has(self, step: Step, at: int) -> bool:
        return at < len(self._done) and self._done[at].get("fingerprint") == step.fingerprint

    def cut(self, steps: int) -> None:
        """Forget everything behind so many steps: it came after one that is run again."""
        del self._done[steps:]

    def done(self, step: Step, result: PipelineResult) -> None:
        self._done.append(
            {
                "step": step.label,
                "fingerprint": step.fingerprint,
                "at": format_time(time.time_ns() // 1_000_000),
                "counts": dict(result.counts),
            }
        )
        if self._path is not None:
            text = json.dumps({"version": STATE_VERSION, "done": self._done}, indent=2)
            self._fs.write_atomic(self._path, text.encode())

    def clear(self) -> None:
        self._done = []
        if self._path is not None and self._fs.exists(self._path):
            self._fs.remove(self._path)


def _parse_state(path: str, data: bytes) -> list[dict[str, Any]]:
    try:
        said = json.loads(data)
        done: list[dict[str, Any]] = said["done"]
        if said["version"] != STATE_VERSION or not all(isinstance(each, dict) for each in done):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise CorruptionError("not the state of a run of steps; remove it to begin anew", path=path) from None
    return done


def _plain(value: Any) -> Any:
    """TOML's values as JSON's: moments become ISO texts."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, (dt.datetime, dt.date, dt.time)):
        return value.isoformat()
    return value


def _near(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, 1)
    return f" (did you mean {close[0]}?)" if close else ""
