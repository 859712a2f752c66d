"""What every ``stratalog pipeline`` command has in common: its options, its Spark session, its output.

    @pipeline_command(parameter("topics", TopicsOption, None))
    def stats(run: Run, **options: Any) -> None:
        '''A sentence.'''
        run("stats", **options)

``run`` calls the pipeline of that name with the session, the place of the log, a progress bar and the given
arguments, prints its result and exits with its code. Spark starts when the pipeline first uses it, after
its arguments are checked. A failure inside Spark is raised as the error of this package that caused it, so
that it is one line and has its exit code.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from stratalog.cli import guard
from stratalog.cli.console import Table, bars, note, show
from stratalog.cli.guard import WrongUsage
from stratalog.cli.session import ENVIRONMENT, Session, command, option, parse_pairs
from stratalog.config.units import format_bytes, format_duration_ms
from stratalog.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stratalog.spark.pipelines import PipelineResult

ARCHIVE_URL = "log.archive.url"
_ARCHIVE = "The archive, with --data or instead of it; by default the one in the store's settings."
_MASTER = "Where Spark runs: local[4], spark://host:7077, yarn, k8s://…; local[*] by default."
_CONF = "A setting of Spark: spark.executor.memory=4g; repeatable."
_COMMON = (
    option("--archive URL", str | None, None, _ARCHIVE),
    option("--master URL", str | None, None, _MASTER),
    option("--conf NAME=VALUE", list[str] | None, None, _CONF),
)
_INSTALL = "`pip install 'stratalog[spark]'` installs it"
_OURS = ("data loss: ", "stratalog: ", "stratalog reads ")
_MOST_LINES = 100


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a pipeline command: the common options, and the Spark session."""

    session: Session
    archive: str | None = None
    master: str | None = None
    conf: tuple[str, ...] = ()

    def place(self, *, create: bool = False) -> dict[str, Any]:
        """Return ``path`` and ``archive`` for a pipeline; a missing store is an error unless ``create``."""
        archive = self.archive or self._settings().get(ARCHIVE_URL)
        if archive and not self.session.given and not os.environ.get(ENVIRONMENT):
            return {"path": None, "archive": archive}
        if not create:
            self.session.require_store()
        return {"path": self.session.paths, "archive": archive}

    def _settings(self) -> dict[str, str]:
        settings = parse_pairs(self.session.settings, "--store-config")
        if others := sorted(set(settings) - {ARCHIVE_URL}):
            raise WrongUsage(
                f"a pipeline uses the settings kept with the store: --store-config takes only {ARCHIVE_URL},"
                f" not {', '.join(others)}"
            )
        return settings

    def __call__(
        self,
        name: str,
        /,
        *,
        create: bool = False,
        show: Callable[[PipelineResult], None] | None = None,
        exit_code: guard.ExitCode = guard.ExitCode.FAILURE,
        needs_spark: bool = True,
        **arguments: object,
    ) -> None:
        """Run a pipeline by name with these arguments; ``show`` prints its result for people.

        It ends with ``exit_code`` if the result is not good. A pipeline that does not need Spark gets it only
        for work that is worth it, unless a master or a setting of Spark is given.
        """
        place = self.place(create=create)
        with contextlib.ExitStack() as stack:
            with guard.hinting(ConfigError, _INSTALL):
                from stratalog.spark.pipelines import pipeline

            start = functools.cache(lambda: stack.enter_context(self.spark()))
            spark: Any = Later(start)
            if not (needs_spark or self.master or self.conf):
                from stratalog.spark.pipelines.executors import OnDemand

                spark = OnDemand(start)
            options = f"see `stratalog pipeline {name} -h`"
            with bars("tasks") as progress, guard.hinting(ConfigError, options):
                result = pipeline(name)(spark, **place, **arguments, progress=progress)
        self.tell(result, show)
        if not result.ok:
            raise typer.Exit(exit_code)

    @contextlib.contextmanager
    def spark(self) -> Iterator[SparkSession]:
        """Yield the session of this run. An existing one is used and left running, a new one is stopped."""
        conf = parse_pairs(self.conf, "--conf")
        with guard.hinting(ConfigError, _INSTALL):
            import stratalog.spark

        with raising_ours():
            from pyspark.sql import SparkSession

            had = SparkSession.getActiveSession()
            if had is not None:
                stratalog.spark.register(had)
                yield had
                return
            yield from self._own_spark(conf)

    def _own_spark(self, conf: Mapping[str, str]) -> Iterator[SparkSession]:
        import stratalog.spark
        from stratalog.spark.pipelines.executors import is_unknown

        log = SparkLog()
        settings = {"spark.log.level": "WARN" if guard.debugging() else "ERROR"} | dict(conf)
        failed = False
        try:
            with log.taking():
                spark = stratalog.spark.session(self.master, app_name="stratalog pipeline", **settings)
            try:
                yield spark
            finally:
                spark.stop()
        except Exception as error:
            failed = is_unknown(error)
            raise
        finally:
            log.close(failed=failed)

    def tell(self, result: PipelineResult, show: Callable[[PipelineResult], None] | None = None) -> None:
        """Print a result: JSON with ``--json``, else counts on stdout and notes on stderr."""
        if self.session.json:
            self.session.tell(result.to_json())
            return
        (show or show_counts)(result)
        for line in result.notes:
            note(line)
        note(f"{result.pipeline}: done in {format_duration_ms(round(result.seconds * 1000))}")


class Later:
    """A Spark session that starts when it is first used: a pipeline checks its arguments before."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = start

    def __getattr__(self, name: str) -> Any:
        return getattr(self._start(), name)


def pipeline_command(
    *parameters: inspect.Parameter,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn ``f(run, **options)`` into a command with these parameters and those that all commands have."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def with_run(
            session: Session, *, archive: str | None, master: str | None, conf: list[str] | None, **rest: Any
        ) -> None:
            function(Run(session, archive, master, tuple(conf or ())), **rest)

        return command(with_run, [*parameters, *_COMMON])

    return decorate


def show_counts(result: PipelineResult) -> None:
    """Print the counts of a result, one a row."""
    table = Table(f"*{result.pipeline}", ">")
    for name, value in result.counts.items():
        shown = format_bytes(value) if name == "bytes" or name.endswith("_bytes") else f"{value:,}"
        table.add(name.replace("_", " "), shown)
    show(table)


@contextlib.contextmanager
def raising_ours() -> Iterator[None]:
    """Raise an error of Spark's that carries one of ours as ours, with its type and text."""
    try:
        yield
    except Exception as error:
        if guard.debugging():
            raise
        from stratalog.spark.pipelines.executors import ours

        found = ours(error)
        if found is None or found is error:
            raise
        raise found from error


@contextlib.contextmanager
def errors_to(handle: int) -> Iterator[None]:
    """Give processes started meanwhile this file, which is closed here, as their error output."""
    sys.stderr.flush()
    before = os.dup(2)
    os.dup2(handle, 2)
    os.close(handle)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


class SparkLog:
    """A file for Spark's own messages, so that they do not mix with ours.

    The JVM and the Python workers below it write to the error output they were started with; while a session
    starts, that is this file. Warnings of this package in it are shown at the end. The file is named if Spark
    fails, and removed if not. With ``--debug`` there is no file.
    """

    def __init__(self) -> None:
        self._path: Path | None = None

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Make processes started meanwhile write into the file, as long as they run."""
        if guard.debugging():
            yield
            return
        handle, name = tempfile.mkstemp(prefix="stratalog-spark-", suffix=".log")
        self._path = Path(name)
        with errors_to(handle):
            yield

    def close(self, *, failed: bool) -> None:
        """Print our warnings in it; after a failure also where the rest is."""
        if self._path is None:
            return
        with self._path.open(errors="replace") as lines:
            ours = dict.fromkeys(line.rstrip() for line in lines if line.startswith(_OURS))
        for line in list(ours)[:_MOST_LINES]:
            note(line)
        if failed:
            note(f"Spark's own messages are in {self._path}; --debug shows them as they come")
        else:
            self._path.unlink(missing_ok=True)
