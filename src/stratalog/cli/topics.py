"""``stratalog topic create | list | describe | alter | move | delete``."""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.console import Column, Table, is_terminal, note, show, show_json
from stratalog.cli.session import Session, TopicArgument, command, complete_topic, parse_pairs
from stratalog.cli.settings import entries_table
from stratalog.config import PROFILE, PROFILES, SETTINGS, check_names, parse_overrides
from stratalog.config.units import format_bytes
from stratalog.errors import ConfigError, FormatError, LogDirOfflineError, NotFoundError, TopicExistsError

if TYPE_CHECKING:
    from stratalog.store import Topic


def complete_setting(incomplete: str) -> list[str]:
    """Setting names for shell completion."""
    return [f"{s.name}=" for s in SETTINGS if s.scope == "topic" and s.name.startswith(incomplete)]


ConfigOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="NAME=VALUE",
        help="A setting, such as segment.bytes=64MiB or retention.ms=7d; as often as needed.",
        autocompletion=complete_setting,
        show_default=False,
    ),
]


class ProfileName(enum.StrEnum):
    """The profiles of `stratalog.config`."""

    STREAMING = "streaming"
    TIME_SERIES = "time-series"
    EVENT_SOURCING = "event-sourcing"
    QUEUE = "queue"


ProfileOption = Annotated[
    ProfileName | None,
    typer.Option(
        "--profile",
        help="Segment size and rolling for a kind of topic: "
        + ", ".join(
            f"{name} ({format_bytes(int(each.settings['segment.bytes']))})" for name, each in PROFILES.items()
        )
        + ". What --config says wins.",
        show_default=False,
    ),
]
app = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter, move and delete topics.")


def with_profile_name(settings: dict[str, str], profile: ProfileName | None) -> dict[str, str]:
    """``--profile`` as the setting it is; the store adds what the profile sets."""
    if profile is None:
        return settings
    if PROFILE in settings:
        raise ConfigError(f"--profile {profile} and --config {PROFILE}={settings[PROFILE]}: give one of them")
    return {PROFILE: profile.value, **settings}


def parse_settings(pairs: list[str] | None) -> dict[str, str]:
    """``NAME=VALUE`` options, checked, in canonical text."""
    return parse_overrides(parse_pairs(pairs, "--config"))


@app.command()
@command
def create(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The topic's name.", show_default=False)],
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, metavar="N", help="How many partitions.")
    ] = None,
    profile: ProfileOption = None,
    config: ConfigOption = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Be content when the topic is already there.")
    ] = False,
) -> None:
    """Make a topic, and the store too when there is none."""
    settings = with_profile_name(parse_settings(config), profile)
    if not session.exists:
        from stratalog.store.catalog import new_topic

        new_topic(name, partitions, settings, session.broker_config)
    with session.change(create=True) as client:
        try:
            client.create_topic(name, partitions, settings)
        except TopicExistsError as error:
            if not if_not_exists:
                if "already exists" in str(error):
                    error.add_note(
                        "--if-not-exists is content with that, `stratalog topic alter` changes its settings"
                    )
                raise
            _told(session, {"topic": name, "created": False}, f"topic {name} is already there")
            return
    _told(session, {"topic": name, "created": True}, f"created topic {name}")


@app.command(name="list")
@command
def list_(session: Session) -> None:
    """Every topic with its size."""
    with session.read() as store:
        facts = [_facts(store.topic(name)) for name in store.topics()]
    if session.json:
        show_json([{k: v for k, v in fact.items() if k != "details"} for fact in facts])
        return
    table = Table(
        [
            Column("topic", style="bold"),
            Column("partitions", right=True),
            Column("offsets", right=True),
            Column("segments", right=True),
            Column("size", right=True),
        ],
        footer="" if facts else "no topics",
    )
    for fact in facts:
        offline = f" ({len(fact['offline'])} offline)" if fact["offline"] else ""
        table.add(
            fact["topic"],
            f"{fact['partitions']:,}{offline}",
            f"{fact['offsets']:,}",
            f"{fact['segments']:,}",
            format_bytes(fact["size_bytes"]),
        )
    show(table)


@app.command(name="describe")
@command
def describe_(session: Session, topic: TopicArgument) -> None:
    """One topic: its partitions, its size, and the settings it changes."""
    with session.read() as store:
        found = store.topic(topic)
        fact = _facts(found)
        entries = [entry for entry in store.describe_topic(topic) if entry.source != "default"]
        fact["id"] = found.id
        fact["profile"] = next((entry.value for entry in entries if entry.name == PROFILE), None)
    if session.json:
        fact["config"] = {entry.name: {"value": entry.value, "source": entry.source} for entry in entries}
        show_json(fact)
        return
    table = Table(
        [
            Column("partition", right=True),
            Column("first offset", right=True),
            Column("next offset", right=True),
            Column("segments", right=True),
            Column("size", right=True),
            Column("directory", style="dim"),
        ],
        title=fact["topic"]
        + (f"  id {fact['id']}" if fact["id"] else "")
        + (f"  profile {fact['profile']}" if fact["profile"] else ""),
    )
    for row in fact["details"]:
        table.add(
            str(row["partition"]),
            f"{row['log_start_offset']:,}",
            f"{row['log_end_offset']:,}",
            f"{row['segments']:,}",
            format_bytes(row["size_bytes"]),
            row["directory"] if row["offline"] is None else "offline",
        )
    table.footer = "; ".join(row["offline"] for row in fact["details"] if row["offline"] is not None)
    show(table)
    if entries:
        print()
        show(entries_table(topic, entries))


@app.command()
@command
def alter(
    session: Session,
    topic: TopicArgument,
    profile: ProfileOption = None,
    config: ConfigOption = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Back to the default; as often as needed."),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", min=1, metavar="N", help="This many in all; keys may move to other ones."
        ),
    ] = None,
) -> None:
    """Change a topic's settings, or give it more partitions."""
    changes: dict[str, str | None] = dict(with_profile_name(parse_settings(config), profile))
    check_names(unset or [])
    for name in unset or []:
        if name in changes:
            raise ConfigError(f"--unset {name} contradicts --config {name}")
        changes[name] = None
    if not changes and partitions is None:
        raise typer.BadParameter(
            "nothing to change: give --config NAME=VALUE, --unset NAME, --profile NAME or --partitions N"
        )
    with session.change() as client:
        if changes:
            client.alter_topic(topic, changes)
        if partitions is not None:
            client.add_partitions(topic, partitions)
    said = [f"{name} unset" if value is None else f"{name}={value}" for name, value in changes.items()]
    said += [f"{partitions} partitions"] if partitions is not None else []
    facts = {"topic": topic, "changed": changes, "partitions": partitions}
    _told(session, facts, f"altered topic {topic}: {', '.join(said)}")


@app.command()
@command
def move(
    session: Session,
    topic: TopicArgument,
    partition: Annotated[int, typer.Option("--partition", "-p", min=0, metavar="N", help="The partition.")],
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The log directory it moves to.")],
) -> None:
    """Move a partition to another log directory of the store."""
    with session.change() as client:
        client.move_partition(topic, partition, to)
    facts = {"topic": topic, "partition": partition, "to": to}
    _told(session, facts, f"moved {topic} partition {partition} to {to}")


@app.command()
@command
def delete(
    session: Session,
    topics: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC...", help="The topics.", autocompletion=complete_topic, show_default=False
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Be content when it is not there.")] = False,
) -> None:
    """Delete topics and all their records."""
    confirm(f"Delete {', '.join(topics)} and every record in it?", yes)
    deleted = []
    with session.change() as client:
        for topic in topics:
            try:
                client.delete_topic(topic)
            except NotFoundError:
                if not if_exists:
                    raise
                continue
            deleted.append(topic)
    said = f"deleted {', '.join(deleted)}" if deleted else "nothing to delete"
    _told(session, {"deleted": deleted}, said)


def confirm(question: str, yes: bool) -> None:
    """Asks on a terminal; without one ``--yes`` must have been given."""
    if yes:
        return
    if not is_terminal(sys.stdin):
        raise typer.BadParameter("not on a terminal, so nobody can be asked: add --yes", param_hint="--yes")
    typer.confirm(question, abort=True, err=True)


_NOTHING = {
    "log_start_offset": 0,
    "log_end_offset": 0,
    "segments": 0,
    "size_bytes": 0,
    "directory": "",
}
"""The numbers of a partition that is offline."""


def _facts(topic: Topic) -> dict[str, Any]:
    """What is shown of a topic."""
    details: list[dict[str, Any]] = []
    for partition in range(topic.partitions):
        try:
            segments = topic.segments(partition)
        except (LogDirOfflineError, FormatError, FileNotFoundError) as error:
            details.append({"partition": partition, **_NOTHING, "offline": str(error)})
            continue
        details.append(
            {
                "partition": partition,
                "log_start_offset": topic.log_start_offset(partition),
                "log_end_offset": topic.log_end_offset(partition),
                "segments": len(segments),
                "size_bytes": sum(segment.size_bytes for segment in segments),
                # The active one: the first may be in the archive.
                "directory": segments[-1].path.rpartition("/")[0] if segments else "",
                "offline": None,
            }
        )
    return {
        "topic": topic.name,
        "partitions": len(details),
        "offsets": sum(row["log_end_offset"] - row["log_start_offset"] for row in details),
        "segments": sum(row["segments"] for row in details),
        "size_bytes": sum(row["size_bytes"] for row in details),
        "offline": [
            {"partition": row["partition"], "why": row["offline"]} for row in details if row["offline"]
        ],
        "details": details,
    }


def _told(session: Session, facts: dict[str, Any], message: str) -> None:
    """The result of a change: JSON for programs, a message for people."""
    if session.json:
        show_json(facts)
    else:
        note(message)
