"""What every ``stratalog pipeline`` command has in common: its options, its Spark session, its output.

    @pipeline_command
    def stats(run: Run, topic: TopicsOption = None) -> None:
        '''A sentence.'''
        run("stats", topics=topic)

``run`` calls the pipeline of that name with the session, the place of the log, a progress bar and the given
arguments, prints its result and ends with its exit code. Spark is loaded only then. A failure inside Spark
leaves as the error of this package that caused it, so that it is one line and has its exit code.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli import guard
from stratalog.cli.console import Column, Table, bars, note, show, show_json
from stratalog.cli.exit_codes import ExitCode
from stratalog.cli.pipelines.quiet import SparkLog
from stratalog.cli.session import ENVIRONMENT, Session, command, parse_pairs
from stratalog.config.units import format_bytes, format_duration_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stratalog.spark.pipelines import PipelineResult

ARCHIVE_URL = "log.archive.url"

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Where Spark runs: local[4], spark://host:7077, yarn, k8s://…; local[*] unless given.",
        show_default=False,
    ),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="NAME=VALUE",
        help="A setting of Spark: spark.executor.memory=4g; as often as needed.",
        show_default=False,
    ),
]
ArchiveOption = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="URL",
        help="The archive, beside --data or instead of it; the one kept with the store unless given.",
        show_default=False,
    ),
]
_COMMON: tuple[tuple[str, Any, object], ...] = (
    ("archive", ArchiveOption, None),
    ("master", MasterOption, None),
    ("conf", ConfOption, None),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a pipeline command: what the common options said, and the way to Spark."""

    session: Session
    archive: str | None = None
    master: str | None = None
    conf: tuple[str, ...] = ()

    @property
    def json(self) -> bool:
        return self.session.json

    def place(self, *, create: bool = False) -> dict[str, Any]:
        """``path`` and ``archive``, as the pipelines take them; a store that is not there is told, unless
        ``create``."""
        archive = self.archive or self._said().get(ARCHIVE_URL)
        if archive and not self.session.given and not os.environ.get(ENVIRONMENT):
            return {"path": None, "archive": archive}
        if not create:
            self.session.require_store()
        return {"path": self.session.paths, "archive": archive}

    def _said(self) -> dict[str, str]:
        said = parse_pairs(self.session.settings, "--store-config")
        if others := sorted(set(said) - {ARCHIVE_URL}):
            raise typer.BadParameter(
                f"a pipeline goes by the settings kept with the store; besides them it takes {ARCHIVE_URL},"
                f" not {', '.join(others)}",
                param_hint="--store-config",
            )
        return said

    def __call__(
        self,
        name: str,
        /,
        *,
        create: bool = False,
        show: Callable[[PipelineResult], None] | None = None,
        **arguments: object,
    ) -> None:
        """Run a pipeline by name with these arguments; ``show`` prints its result for people."""
        place = self.place(create=create)
        with self.spark() as spark:
            from stratalog.spark.pipelines import pipeline

            with bars("tasks") as progress:
                result = pipeline(name)(spark, **place, **arguments, progress=progress)
        self.tell(result, show)
        if not result.ok:
            raise typer.Exit(ExitCode.FAILURE)

    @contextlib.contextmanager
    def spark(self) -> Iterator[SparkSession]:
        """Yield the session of this run. One that this process has already is used and left running; one made
        here is stopped."""
        said = parse_pairs(self.conf, "--conf")
        import stratalog.spark

        with told_as_ours():
            from pyspark.sql import SparkSession

            had = SparkSession.getActiveSession()
            if had is not None:
                stratalog.spark.register(had)
                yield had
                return
            yield from self._own_spark(said)

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
        """Print a result: JSON when that was asked for, else counts on stdout and notes on stderr."""
        if self.json:
            show_json(result.to_json())
            return
        (show or show_counts)(result)
        for line in result.notes:
            note(line)
        note(f"{result.pipeline}: done in {format_duration_ms(round(result.seconds * 1000))}")


def pipeline_command(function: Callable[..., None]) -> Callable[..., None]:
    """Turns ``f(run, …)`` into a command with ``--archive``, ``--master``, ``--conf`` and what every command
    has."""

    @functools.wraps(function)
    def with_run(
        session: Session,
        *,
        archive: str | None = None,
        master: str | None = None,
        conf: list[str] | None = None,
        **rest: Any,
    ) -> None:
        function(Run(session, archive, master, tuple(conf or ())), **rest)

    own = inspect.signature(function, eval_str=True).parameters.values()
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [each.replace(kind=keyword) for each in list(own)[1:]]
    parameters += [inspect.Parameter(n, keyword, default=d, annotation=a) for n, a, d in _COMMON]
    first = inspect.Parameter("session", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Session)
    with_run.__signature__ = inspect.Signature([first, *parameters])  # type: ignore[attr-defined]
    del with_run.__wrapped__
    return command(with_run)


def show_counts(result: PipelineResult) -> None:
    """The counts of a result, one a row."""
    table = Table([Column(result.pipeline, style="bold"), Column("", right=True)])
    for name, value in result.counts.items():
        shown = format_bytes(value) if name == "bytes" or name.endswith("_bytes") else f"{value:,}"
        table.add(name.replace("_", " "), shown)
    show(table)


@contextlib.contextmanager
def told_as_ours() -> Iterator[None]:
    """An error of Spark's that carries one of ours is raised as ours, with its own type and words."""
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
