"""``stratalog topic create | list | describe | alter | move | delete`` and ``stratalog config``."""

from __future__ import annotations

import enum
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.console import Table, counted, show
from stratalog.cli.guard import WrongUsage
from stratalog.cli.session import (
    OptionalTopic,
    Session,
    TopicArgument,
    YesOption,
    arg,
    command,
    complete_topic,
    confirm,
    opt,
    parse_pairs,
)
from stratalog.config import (
    PROFILE,
    PROFILES,
    SETTINGS,
    ConfigEntry,
    Setting,
    check_names,
    parse_overrides,
    parse_value,
    readable,
    suggest,
)
from stratalog.config.units import format_bytes
from stratalog.errors import ConfigError, FormatError, LogDirOfflineError, NotFoundError, TopicExistsError

if TYPE_CHECKING:
    from stratalog.store import Topic

_BY_NAME = {setting.name: setting for setting in SETTINGS}


def complete_setting(incomplete: str) -> list[str]:
    """Return setting names for shell completion."""
    return [f"{s.name}=" for s in SETTINGS if s.scope == "topic" and s.name.startswith(incomplete)]


ConfigOption = Annotated[
    list[str] | None,
    opt(
        "--config -c NAME=VALUE",
        "A setting, such as segment.bytes=64MiB or retention.ms=7d; repeatable.",
        autocompletion=complete_setting,
    ),
]
PROFILE_HELP = ", ".join(
    f"{name} ({format_bytes(int(each.settings['segment.bytes']))})" for name, each in PROFILES.items()
)


class ProfileName(enum.StrEnum):
    """The profiles of `stratalog.config`."""

    STREAMING = "streaming"
    TIME_SERIES = "time-series"
    EVENT_SOURCING = "event-sourcing"
    QUEUE = "queue"


ProfileOption = Annotated[
    ProfileName | None,
    opt(
        "--profile",
        f"Preset segment size and rolling: {PROFILE_HELP}. --config takes precedence.",
    ),
]
app = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter, move and delete topics.")


def with_profile_name(settings: dict[str, str], profile: ProfileName | None) -> dict[str, str]:
    """Add ``--profile`` as the setting it is; the store adds the profile's settings."""
    if profile is None:
        return settings
    if PROFILE in settings:
        raise ConfigError(f"--profile {profile} and --config {PROFILE}={settings[PROFILE]}: give one of them")
    return {PROFILE: profile.value, **settings}


def parse_settings(pairs: list[str] | None) -> dict[str, str]:
    """Return ``NAME=VALUE`` options, checked, in canonical text."""
    return parse_overrides(parse_pairs(pairs, "--config"))


@app.command()
@command
def create(
    session: Session,
    name: Annotated[str, arg("NAME", "The topic's name.")],
    partitions: Annotated[
        int | None, opt("--partitions -p N", "Number of partitions; num.partitions by default.", min=1)
    ] = None,
    profile: ProfileOption = None,
    config: ConfigOption = None,
    if_not_exists: Annotated[bool, opt("--if-not-exists", "Succeed if the topic already exists.")] = False,
) -> None:
    """Create a topic, and the store if there is none."""
    settings = with_profile_name(parse_settings(config), profile)
    if not session.exists:
        from stratalog.store.catalog import new_topic

        new_topic(name, partitions, settings, session.broker_config)  # refuses before a store is made
    with session.change(create=True) as client:
        try:
            client.create_topic(name, partitions, settings)
        except TopicExistsError as error:
            if not if_not_exists:
                if "already exists" not in str(error):
                    raise
                raise TopicExistsError(
                    f"topic {name} already exists. Use --if-not-exists to accept that, or `topic alter` to"
                    " change its settings."
                ) from error
            session.tell({"topic": name, "created": False}, f"topic {name} already exists")
            return
    session.tell({"topic": name, "created": True}, f"created topic {name}")


@app.command(name="list")
@command
def list_(session: Session) -> None:
    """List every topic with its size."""
    with session.read() as store:
        facts = [_facts(store.topic(name)) for name in store.topics()]
    table = Table("*topic", ">partitions", ">offsets", "->segments", ">size")
    table.footer = "" if facts else "no topics"
    for fact in facts:
        offline = f" ({len(fact['offline'])} offline)" if fact["offline"] else ""
        count = f"{fact['partitions']}{offline}"
        table.add(fact["topic"], count, fact["offsets"], fact["segments"], format_bytes(fact["size_bytes"]))
    session.tell([{k: v for k, v in fact.items() if k != "details"} for fact in facts], table)


@app.command(name="describe")
@command
def describe_(session: Session, topic: TopicArgument) -> None:
    """Show a topic: partitions, size, and settings that differ from the defaults."""
    with session.read() as store:
        found = store.topic(topic)
        fact = _facts(found)
        entries = [entry for entry in store.describe_topic(topic) if entry.source != "default"]
        fact["id"] = found.id
    fact["profile"] = next((entry.value for entry in entries if entry.name == PROFILE), None)
    fact["config"] = {entry.name: {"value": entry.value, "source": entry.source} for entry in entries}
    table = Table(">partition", ">first offset", ">next offset", "->segments", ">size", "--.directory")
    table.title = "  ".join(
        [topic, *(f"{name} {fact[name]}" for name in ("id", "profile") if fact[name] is not None)]
    )
    for row in fact["details"]:
        table.add(
            str(row["partition"]),
            row["log_start_offset"],
            row["log_end_offset"],
            row["segments"],
            format_bytes(row["size_bytes"]),
            row["directory"] if row["offline"] is None else "offline",
        )
    table.footer = "; ".join(row["offline"] for row in fact["details"] if row["offline"] is not None)
    session.tell(fact, table)
    if entries and not session.json:
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
        list[str] | None, opt("--unset NAME", "Reset this setting to its default; repeatable.")
    ] = None,
    partitions: Annotated[
        int | None,
        opt("--partitions -p N", "New total number of partitions; keys may map to other partitions.", min=1),
    ] = None,
) -> None:
    """Change a topic's settings, or give it more partitions."""
    changes: dict[str, str | None] = dict(with_profile_name(parse_settings(config), profile))
    check_names(unset or [])
    for name in unset or []:
        if name in changes:
            raise ConfigError(f"--unset {name} and --config {name} cannot be used together")
        changes[name] = None
    if not changes and partitions is None:
        raise WrongUsage(
            "nothing to change: give --config NAME=VALUE, --unset NAME, --profile NAME or --partitions N"
        )
    with session.change() as client:
        if changes:
            client.alter_topic(topic, changes)
        if partitions is not None:
            client.add_partitions(topic, partitions)
    shown = [f"{name} unset" if value is None else f"{name}={value}" for name, value in changes.items()]
    shown += [counted(partitions, "partition")] if partitions is not None else []
    facts = {"topic": topic, "changed": changes, "partitions": partitions}
    session.tell(facts, f"altered topic {topic}: {', '.join(shown)}")


@app.command()
@command
def move(
    session: Session,
    topic: TopicArgument,
    partition: Annotated[int, opt("--partition -p N", "The partition.", min=0)],
    to: Annotated[str, opt("--to DIR", "The target log directory.")],
) -> None:
    """Move a partition to another log directory of the store."""
    with session.change() as client:
        client.move_partition(topic, partition, to)
    facts = {"topic": topic, "partition": partition, "to": to}
    session.tell(facts, f"moved {topic} partition {partition} to {to}")


@app.command()
@command
def delete(
    session: Session,
    topics: Annotated[list[str], arg("TOPIC...", "The topics.", autocompletion=complete_topic)],
    yes: YesOption = False,
    if_exists: Annotated[bool, opt("--if-exists", "Succeed if the topic does not exist.")] = False,
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
    session.tell({"deleted": deleted}, f"deleted {', '.join(deleted)}" if deleted else "nothing to delete")


def _facts(topic: Topic) -> dict[str, Any]:
    """Return a topic's numbers, with those of each partition; an offline partition has zeros and a reason."""
    details: list[dict[str, Any]] = []
    for partition in range(topic.partitions):
        row: dict[str, Any] = {"partition": partition, "log_start_offset": 0, "log_end_offset": 0}
        row |= {"segments": 0, "size_bytes": 0, "directory": "", "offline": None}
        try:
            segments = topic.segments(partition)
            row["log_start_offset"] = topic.log_start_offset(partition)
            row["log_end_offset"] = topic.log_end_offset(partition)
            row["segments"] = len(segments)
            row["size_bytes"] = sum(segment.size_bytes for segment in segments)
            # The active one: the first may be in the archive.
            row["directory"] = segments[-1].path.rpartition("/")[0] if segments else ""
        except (LogDirOfflineError, FormatError, FileNotFoundError) as error:
            row["offline"] = str(error)
        details.append(row)
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


@command
def config(
    session: Session,
    topic: OptionalTopic = None,
    find: Annotated[str | None, opt("--find -f TEXT", "Only settings with TEXT in their name.")] = None,
    docs: Annotated[bool, opt("--docs -d", "Explain each setting.")] = False,
    changed: Annotated[
        bool, opt("--changed", "With a topic: only settings that differ from the default.")
    ] = False,
) -> None:
    """List all settings, or show the effective settings of a topic and where they come from.

    Without a topic no store is needed. A single match of --find, or an exact one, is shown in full.
    """
    if topic is not None:
        with session.read() as store:
            entries = store.describe_topic(topic)
        entries = [
            entry
            for entry in entries
            if _matches(_BY_NAME[entry.name], find) and not (changed and entry.source == "default")
        ]
        if docs and not session.json:
            print("\n\n".join(f"{e.name} = {e.value} ({e.source})\n  {e.doc}" for e in entries))
        else:
            session.tell([asdict(entry) for entry in entries], entries_table(topic, entries))
        return
    if changed:
        raise WrongUsage("--changed needs a TOPIC")
    chosen = [setting for setting in SETTINGS if _matches(setting, find)]
    if not chosen and find is not None:
        raise ConfigError(f"no setting has {find!r} in its name{suggest(find, _BY_NAME)}")
    if find is not None and find in _BY_NAME:
        chosen = [_BY_NAME[find]]
    if (docs or len(chosen) == 1) and not session.json:
        print("\n\n".join(_setting_page(setting) for setting in chosen))
        return
    table = Table("*setting", ">default", "valid", "scope")
    table.footer = "--docs explains them, --find TEXT narrows the list"
    for setting in chosen:
        valid = " | ".join(setting.choices) if setting.choices else setting.range
        table.add(setting.name, readable(setting, setting.default), valid, setting.scope)
    session.tell([_setting_facts(setting) for setting in chosen], table)


def entries_table(topic: str, entries: list[ConfigEntry]) -> Table:
    """Return a topic's settings in force and where they come from."""
    table = Table("*setting", ">value", "->means", "from")
    table.footer = "" if entries else f"{topic} uses the default of every setting"
    for entry in entries:
        setting = _BY_NAME[entry.name]
        meaning = readable(setting, parse_value(setting, entry.value))
        table.add(entry.name, entry.value, "" if meaning == entry.value else meaning, entry.source)
    return table


def _setting_page(setting: Setting) -> str:
    lines = [f"{setting.name} ({setting.type}, {setting.scope})", f"  {setting.doc}"]
    meaning = readable(setting, setting.default)
    shown = setting.default_text or "empty"
    lines.append(f"  default  {shown}" + (f" ({meaning})" if meaning not in (shown, "") else ""))
    valid = ", ".join(setting.choices) if setting.choices else setting.range
    if valid:
        lines.append(f"  valid    {valid}")
    if setting.store_names:
        lines.append(f"  store    {', '.join(setting.store_names)}")
    if setting.deviation:
        lines.append(f"  Kafka    {setting.deviation}")
    elif setting.ours:
        lines.append("  Kafka    does not have it")
    return "\n".join(lines)


def _setting_facts(setting: Setting) -> dict[str, object]:
    return {
        "name": setting.name,
        "type": setting.type,
        "default": setting.default_text,
        "scope": setting.scope,
        "broker_name": setting.broker_name,
        "synonyms": [synonym.name for synonym in setting.synonyms],
        "minimum": setting.minimum,
        "maximum": setting.maximum,
        "choices": list(setting.choices),
        "kafka": not setting.ours,
        "deviation": setting.deviation,
        "doc": setting.doc,
    }


def _matches(setting: Setting, find: str | None) -> bool:
    return find is None or any(find.lower() in name for name in (setting.name, *setting.store_names))
