"""``stratalog inspect``: what a log directory is, what is in it, and what is wrong with it, on one screen."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.commands.check import damage_facts, damage_table
from stratalog.cli.commands.read import printable
from stratalog.cli.console import Table, counted, progress, show, show_json
from stratalog.cli.guard import ExitCode
from stratalog.cli.session import Session, arg, command, opt
from stratalog.config.units import format_bytes, format_time

if TYPE_CHECKING:
    from stratalog.store.admin.inspection import DirectoryFacts, Inspection, PartitionFacts

MOST = 20
"""So many damaged ranges, and names of a kind, are shown; ``--json`` has all."""
NAMED = 5


@command
def inspect(
    session: Session,
    directories: Annotated[
        list[str] | None, arg("[DIR]...", "A log directory, also a broker's; else those of --data.")
    ] = None,
    topic: Annotated[str | None, opt("--topic -t TOPIC", "Only this topic, with each partition.")] = None,
    full: Annotated[bool, opt("--full", "Check every byte, as `verify` does.")] = False,
) -> None:
    """Show what a log directory holds and what is damaged, also one of a dead broker.

    Reads headers, sizes, indexes and gaps, and changes nothing: also on a read-only mount, also half of a
    directory. A partition that cannot be read is shown with the reason. Exit code 5: damage was found.
    """
    from stratalog.store.admin.inspection import inspect as look

    paths = directories or session.paths
    with progress("inspecting") as bar:
        done = 0

        def went_by(size_bytes: int) -> None:
            nonlocal done
            done += size_bytes
            bar(done, 0)

        found = look(paths, topic, full=full, progress=went_by)
    if session.json:
        show_json(_facts(found))
    else:
        _show(found, topic)
    if not found.ok:
        raise typer.Exit(ExitCode.CORRUPTION)


def _facts(found: Inspection) -> dict[str, Any]:
    partitions = []
    for each in found.partitions:
        facts = asdict(each)
        log = facts.pop("log")
        log["damages"] = [damage_facts(damage) for damage in each.log.damages]
        partitions.append(facts | log)
    newest = found.newest
    return {
        "ok": found.ok,
        "full": found.full,
        "directories": [
            asdict(each) | {"damages": [damage_facts(damage) for damage in each.damages]}
            for each in found.directories
        ],
        "partitions": partitions,
        "groups": found.groups,
        "newest": None
        if newest is None
        else {
            "topic": newest.topic,
            "partition": newest.partition,
            "timestamp": newest.log.last_timestamp,
            "producer_id": newest.log.last_producer_id,
        },
    }


def _show(found: Inspection, topic: str | None) -> None:
    columns = ["*topic", ">partition" if topic else ">partitions", ">offsets", ">records", ">size"]
    table = Table(*columns, "first (UTC)", "last (UTC)", "codecs", "policy")
    table.title = "\n".join(line for each in found.directories for line in _head(each))
    names = list(dict.fromkeys(each.topic for each in found.partitions))
    shown = [name for name in names if topic or not name.startswith("__")]
    for name in shown:
        every = [each for each in found.partitions if each.topic == name]
        for group in [[each] for each in every] if topic else [every]:
            table.add(name, str(group[0].partition) if topic else len(group), *_row(group))
    lines = [f"internal: {', '.join(_internal(found, name) for name in names if name not in shown)}"]
    lines = lines if len(shown) < len(names) else []
    if found.groups:
        named = _some([printable(each.encode()) for each in found.groups])
        lines.append(f"{counted(len(found.groups), 'consumer group')}: {named}")
    lines += _last(found)
    for each in found.directories:
        lines += _beside(each)
    torn = [each for each in found.partitions if each.log.torn_bytes]
    if torn:
        size = format_bytes(sum(each.log.torn_bytes for each in torn))
        what = _some([f"{each.topic}-{each.partition}" for each in torn])
        lines.append(f"torn tail, not damage: {size} at the end of {what}; recovery removes it")
    if found.ok:
        how = (
            "every byte was checked"
            if found.full
            else "by headers, sizes and indexes; --full checks every byte"
        )
        lines.append(f"no damage found ({how})")
    table.footer = "\n".join(lines)
    show(table)
    _show_damage(found)


def _head(facts: DirectoryFacts) -> list[str]:
    writer = {"kafka": "a Kafka broker", "stratalog": "Stratalog"}.get(facts.written_by, "an unknown program")
    version = f" ({facts.version})" if facts.version else ""
    known = [
        f"written by {writer}{version}",
        "" if facts.cluster_id is None else f"cluster {facts.cluster_id}",
        "" if facts.node_id is None else f"node {facts.node_id}",
    ]
    stop = "clean stop" if facts.clean else "unclean stop"
    if facts.held:
        stop = f"in use by process {facts.holder_pid or 'unknown'}"
    return [facts.path, f"  {', '.join(filter(None, known))}; {stop}"]


def _row(group: list[PartitionFacts]) -> list[object]:
    readable = [each for each in group if each.error is None] or group
    start, end = min(each.start for each in readable), max(each.end for each in readable)
    firsts = [each.log.first_timestamp for each in readable if each.log.first_timestamp is not None]
    lasts = [each.log.last_timestamp for each in readable if each.log.last_timestamp is not None]
    codecs = dict.fromkeys(codec for each in readable for codec in each.log.codecs)
    return [
        f"{start}–{end - 1}" if end > start else "",
        sum(each.log.records for each in readable),
        format_bytes(sum(each.log.bytes for each in readable)),
        _short(min(firsts, default=None)),
        _short(max(lasts, default=None)),
        ",".join(codecs),
        next((each.cleanup_policy for each in group if each.cleanup_policy), ""),
    ]


def _internal(found: Inspection, name: str) -> str:
    every = [each for each in found.partitions if each.topic == name]
    records = sum(each.log.records for each in every)
    return f"{name} ({counted(len(every), 'partition')}, {counted(records, 'record')})"


def _last(found: Inspection) -> list[str]:
    lines = []
    newest = found.newest
    if newest is not None:
        producer = newest.log.last_producer_id
        by = "" if producer is None else f", by producer {producer}"
        lines.append(
            f"newest record: {_short(newest.log.last_timestamp)} in {newest.topic}-{newest.partition}{by}"
        )
    changed = max(found.directories, key=lambda each: each.changed_ms or 0)
    if changed.changed_ms is not None:
        path = os.path.relpath(changed.changed_path, changed.path)
        lines.append(f"newest file change: {_short(changed.changed_ms)} {path}")
    return lines


def _beside(facts: DirectoryFacts) -> list[str]:
    kinds = (("being deleted", facts.deleting), ("being moved or made", facts.future), ("stray", facts.stray))
    return [f"{what}: {_some(names)}" for what, names in kinds if names]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _show_damage(found: Inspection) -> None:
    unread = [each for each in found.partitions if each.error is not None]
    if unread:
        table = Table("*partition", "~cannot be read")
        for each in unread[:MOST]:
            table.add(f"{each.topic}-{each.partition}", each.error)
        table.footer = _rest(len(unread))
        show(table)
    if found.damages:
        table = damage_table(found.damages[:MOST])
        lost = sum(damage.offsets for damage in found.damages)
        table.footer = f"{counted(len(found.damages), 'damaged range')}, {counted(lost, 'offset')} lost"
        table.footer += f" ({_rest(len(found.damages))})" if _rest(len(found.damages)) else ""
        show(table)


def _rest(count: int) -> str:
    return f"{count - MOST:,} more: see --json" if count > MOST else ""


def _short(timestamp: int | None) -> str:
    return "" if timestamp is None else format_time(timestamp)[:19].replace("T", " ")
