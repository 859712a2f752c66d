"""``stratalog pipeline check``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.console import Column, Table
from stratalog.cli.console import show as show_table
from stratalog.cli.pipelines.common import Run, pipeline_command
from stratalog.cli.session import TopicsOption, parse_pairs

if TYPE_CHECKING:
    from stratalog.spark.pipelines import PipelineResult

_DURATION, _SHARE = "TIME", "SHARE"


def _limit(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, show_default=False)


@pipeline_command
def check(
    run: Run,
    topic: TopicsOption = None,
    limits: Annotated[
        str | None, _limit("--limits", "FILE", "TOML with [limits] and [topics.NAME]; the options here win.")
    ] = None,
    since: Annotated[
        str | None, _limit("--since", "TIME", "All but freshness: only what was appended since; -1h, ISO.")
    ] = None,
    until: Annotated[str | None, _limit("--until", "TIME", "And before this time.")] = None,
    max_age: Annotated[
        str | None, _limit("--max-age", _DURATION, "Freshness: how old the newest record may be.")
    ] = None,
    max_ahead: Annotated[
        str | None, _limit("--max-ahead", _DURATION, "How far in the future the newest record may be.")
    ] = None,
    min_records: Annotated[
        int | None, _limit("--min-records", "N", "Volume: at least so many records.")
    ] = None,
    max_records: Annotated[int | None, _limit("--max-records", "N", "At most so many records.")] = None,
    min_bytes: Annotated[
        str | None, _limit("--min-bytes", "SIZE", "At least so many bytes of keys and values.")
    ] = None,
    max_bytes: Annotated[str | None, _limit("--max-bytes", "SIZE", "At most so many.")] = None,
    max_null_keys: Annotated[
        str | None, _limit("--max-null-keys", _SHARE, "Share of records without a key: 0.01 or 1%.")
    ] = None,
    max_null_values: Annotated[
        str | None, _limit("--max-null-values", _SHARE, "Share of records without a value.")
    ] = None,
    max_null_field: Annotated[
        list[str] | None,
        _limit("--max-null-field", "NAME=SHARE", "Share of JSON values without this field; repeatable."),
    ] = None,
    late_after: Annotated[
        str | None,
        _limit(
            "--late-after",
            _DURATION,
            "Late is this far behind the largest timestamp before it; 0 unless given.",
        ),
    ] = None,
    max_late: Annotated[str | None, _limit("--max-late", _SHARE, "Share of late records.")] = None,
    max_lateness: Annotated[
        str | None, _limit("--max-lateness", _DURATION, "How late any record may be.")
    ] = None,
) -> None:
    """Hold topics against limits of freshness, volume, nulls and late data; a broken one ends with 1."""
    given = {
        "max_age": max_age,
        "max_ahead": max_ahead,
        "min_records": min_records,
        "max_records": max_records,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "max_null_keys": max_null_keys,
        "max_null_values": max_null_values,
        "max_null_fields": parse_pairs(max_null_field, "--max-null-field") or None,
        "late_after": late_after,
        "max_late": max_late,
        "max_lateness": max_lateness,
    }
    said = {name: value for name, value in given.items() if value is not None}
    run("check", show=_show, topics=topic, limits=said, limits_file=limits, since=since, until=until)


def _show(result: PipelineResult) -> None:
    table = Table([Column("limit", style="bold"), Column(""), Column("what was found", fold=True)])
    findings: Any = result.details["findings"]
    for each in findings:
        table.add(each["limit"], "kept" if each["ok"] else "broken", each["text"])
    show_table(table)
