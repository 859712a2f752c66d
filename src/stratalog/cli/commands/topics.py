"""``stratalog topic create | list | describe | alter | move | delete`` and ``stratalog config``."""

from __future__ import annotations

import enum
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.console import Table, counted, show
from stratalog.cli.guard import WrongUsage, hinting
from stratalog.cli.session import (
    OptionalTopic,
    Session,
    TopicArgument,
    YesOption,
    arg,
    command,
    command_anywhere,
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
from stratalog.config.settings import INT_MAX
from stratalog.config.units import format_bytes
from stratalog.errors import ConfigError, NotFoundError, TopicExistsError, UnknownTopicError

if TYPE_CHECKING:
    from stratalog.cli.places.contract import PartitionFacts

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


def parse_settings(pairs: list[str] | None, session: Session | None = None) -> dict[str, str]:
    """Return ``NAME=VALUE`` options, checked, in canonical text; a cluster may have settings of its own."""
    given = parse_pairs(pairs, "--config")
    foreign = given.keys() - _BY_NAME.keys() if session is not None and session.bootstrap else set()
    known = parse_overrides({name: value for name, value in given.items() if name not in foreign})
    return {name: known.get(name, value) for name, value in given.items()}


@app.command()
@command_anywhere
def create(
    session: Session,
    name: Annotated[str, arg("NAME", "The topic's name.")],
    partitions: Annotated[
        int | None,
        opt("--partitions -p N", "Number of partitions; num.partitions by default.", min=1, max=INT_MAX),
    ] = None,
    profile: ProfileOption = None,
    config: ConfigOption = None,
    if_not_exists: Annotated[bool, opt("--if-not-exists", "Succeed if the topic already exists.")] = False,
) -> None:
    """Create a topic, and the store if there is none."""
    settings = with_profile_name(parse_settings(config, session), profile)
    if not session.exists:
        from stratalog.store.catalog import new_topic

        new_topic(name, partitions, settings, session.broker_config)  # refuses before a store is made
    with session.changes(create=True) as client:
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
@command_anywhere
def list_(session: Session) -> None:
    """List every topic with its size."""
    with session.reads() as source:
        found = source.partition_facts(source.topics())
    facts = [_facts(name, rows) for name, rows in found.items()]
    table = Table("*topic", ">partitions", ">offsets", "->segments", ">size")
    table.footer = "" if facts else "no topics"
    for fact in facts:
        offline = f" ({len(fact['offline'])} offline)" if fact["offline"] else ""
        count = f"{fact['partitions']}{offline}"
        table.add(fact["topic"], count, fact["offsets"], *_known(fact))
    session.tell([{k: v for k, v in fact.items() if k != "details"} for fact in facts], table)


@app.command(name="describe")
@command_anywhere
def describe_(session: Session, topic: TopicArgument) -> None:
    """Show a topic: partitions, size, and settings that differ from the defaults."""
    with session.reads() as source:
        fact = _facts(topic, source.partition_facts([topic])[topic])
        entries = [entry for entry in source.settings(topic) if entry.source != "default"]
        fact["id"] = source.topic_id(topic)
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
            *_known(row),
            (row["directory"] or "-") if row["offline"] is None else "offline",
        )
    table.footer = "; ".join(row["offline"] for row in fact["details"] if row["offline"] is not None)
    session.tell(fact, table)
    if entries and not session.json:
        print()
        show(entries_table(topic, entries))


@app.command()
@command_anywhere
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
        opt(
            "--partitions -p N",
            "New total number of partitions; keys may map to other partitions.",
            min=1,
            max=INT_MAX,
        ),
    ] = None,
) -> None:
    """Change a topic's settings, or give it more partitions."""
    changes: dict[str, str | None] = dict(with_profile_name(parse_settings(config, session), profile))
    if not session.bootstrap:
        check_names(unset or [])
    for name in unset or []:
        if name in changes:
            raise ConfigError(f"--unset {name} and --config {name} cannot be used together")
        changes[name] = None
    if not changes and partitions is None:
        raise WrongUsage(
            "nothing to change: give --config NAME=VALUE, --unset NAME, --profile NAME or --partitions N"
        )
    with session.changes() as client:
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
@command_anywhere
def delete(
    session: Session,
    topics: Annotated[list[str], arg("TOPIC...", "The topics.", autocompletion=complete_topic)],
    yes: YesOption = False,
    if_exists: Annotated[bool, opt("--if-exists", "Succeed if the topic does not exist.")] = False,
) -> None:
    """Delete topics and all their records."""
    confirm(f"Delete {', '.join(topics)} and every record in it?", yes)
    deleted = []
    with session.changes() as client:
        for topic in topics:
            try:
                client.delete_topic(topic)
            except NotFoundError:
                if not if_exists:
                    raise
                continue
            deleted.append(topic)
    session.tell({"deleted": deleted}, f"deleted {', '.join(deleted)}" if deleted else "nothing to delete")


def _facts(topic: str, rows: list[PartitionFacts]) -> dict[str, Any]:
    """Return a topic's numbers, with those of each partition; an offline partition has zeros and a reason."""
    known = all(row.segments is not None for row in rows)
    return {
        "topic": topic,
        "partitions": len(rows),
        "offsets": sum(row.log_end_offset - row.log_start_offset for row in rows),
        "segments": sum(row.segments or 0 for row in rows) if known else None,
        "size_bytes": sum(row.size_bytes or 0 for row in rows) if known else None,
        "offline": [{"partition": row.partition, "why": row.offline} for row in rows if row.offline],
        "details": [row._asdict() for row in rows],
    }


def _known(fact: dict[str, Any]) -> tuple[int | str, str]:
    """Return the cells for segments and size, which a cluster does not tell."""
    if fact["segments"] is None:
        return "-", "-"
    return fact["segments"], format_bytes(fact["size_bytes"])


@command_anywhere
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
        shows = f"`stratalog config --find {topic}` shows the setting"
        mistaken = hinting(UnknownTopicError, shows) if topic in _BY_NAME else nullcontext()
        with mistaken, session.reads() as source:
            entries = source.settings(topic)
        entries = [
            entry
            for entry in entries
            if _entry_matches(entry, find) and not (changed and entry.source == "default")
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
        meaning = _meaning(entry)
        table.add(entry.name, entry.value, "" if meaning == entry.value else meaning, entry.source)
    return table


def _meaning(entry: ConfigEntry) -> str:
    """Return a value with its unit; as it is if the setting or the value is not one of ours."""
    setting = _BY_NAME.get(entry.name)
    if setting is None:
        return entry.value
    try:
        return readable(setting, parse_value(setting, entry.value))
    except ConfigError:
        return entry.value


def _entry_matches(entry: ConfigEntry, find: str | None) -> bool:
    setting = _BY_NAME.get(entry.name)
    return _matches(setting, find) if setting is not None else find is None or find.lower() in entry.name


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
