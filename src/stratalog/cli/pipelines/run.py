"""``stratalog pipeline run``: several steps from a file, in one session."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli import guard
from stratalog.cli.console import bars, note, show_json
from stratalog.cli.exit_codes import ExitCode
from stratalog.cli.pipelines.common import Run, pipeline_command, told_as_ours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stratalog.spark.pipelines.result import PipelineResult
    from stratalog.spark.pipelines.steps import Step


@pipeline_command
def run(
    run: Run,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="TOML with a [[step]] for each pipeline.", exists=True, dir_okay=False
        ),
    ],
    resume: Annotated[
        bool, typer.Option("--resume", help="Leave out the steps that the last, unfinished run did.")
    ] = False,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state", metavar="PATH", help="Where to remember what was done; FILE.state unless given."
        ),
    ] = None,
) -> None:
    """Run the steps of a file one after another in one session, until one fails; resumable.

    Arguments are those of the pipelines' functions. --data and --archive are for steps that say no path or
    archive.
    """
    import stratalog.spark  # noqa: F401 - says what to install when it is missing
    from stratalog.spark.pipelines.steps import alone, read_plan, run_plan

    plan = read_plan(file.read_text(), str(file), run.place_if_said())
    told: list[dict[str, Any]] = []

    def skipped(step: Step) -> None:
        told.append({"step": step.label, "pipeline": step.pipeline, "skipped": True})
        note(f"{step}: done by the last run, skipped")

    def tell(step: Step, result: PipelineResult) -> None:
        told.append({"step": step.label, **result.to_json()})
        if not run.json:
            note(f"{step} of {len(plan.steps)}:")
            run.tell(result)

    with contextlib.ExitStack() as stack:
        stack.enter_context(alone(str(file)))
        stack.enter_context(told_as_ours())
        progress = stack.enter_context(bars("tasks"))

        def session() -> SparkSession:
            return stack.enter_context(run.spark(plan.master, plan.conf))

        try:
            results = run_plan(
                session,
                plan,
                state=str(state or f"{file}.state"),
                resume=resume,
                skipped=skipped,
                tell=tell,
                progress=progress,
            )
        except Exception as error:
            from stratalog.spark.pipelines.failures import ours

            place = " ".join(getattr(error, "__notes__", ()))
            known = ours(error)
            told.append({"step": place, "error": guard.explain(known or error)})
            note(f"{place}: failed; --resume goes on from there")
            raise
        finally:
            if run.json:
                show_json(told)
    if results and not results[-1].ok:
        raise typer.Exit(ExitCode.FAILURE)
