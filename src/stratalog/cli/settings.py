"""``stratalog config``: every setting with its default and meaning, or what holds for one topic."""

from __future__ import annotations

from typing import Annotated

import typer

from stratalog.cli.console import Column, Table, show, show_json
from stratalog.cli.session import OptionalTopic, Session, command
from stratalog.config import SETTINGS, ConfigEntry, Setting, parse_value
from stratalog.config.docs import readable
from stratalog.config.settings import suggest
from stratalog.errors import ConfigError

_BY_NAME = {setting.name: setting for setting in SETTINGS}
FindOption = Annotated[
    str | None, typer.Option("--find", "-f", metavar="TEXT", help="Only settings with TEXT in their name.")
]


@command
def config(
    session: Session,
    topic: OptionalTopic = None,
    find: FindOption = None,
    docs: Annotated[bool, typer.Option("--docs", "-d", help="Say what each setting does.")] = False,
    changed: Annotated[
        bool, typer.Option("--changed", help="With a topic: only what is not a default.")
    ] = False,
) -> None:
    """List every setting, or show what holds for a topic and why.

    Without a topic no store is needed. One match of --find is shown in full.
    """
    if topic is None:
        if changed:
            raise typer.BadParameter("--changed needs a TOPIC")
        chosen = [setting for setting in SETTINGS if _matches(setting, find)]
        _require(chosen, find)
        if session.json:
            show_json([setting_facts(setting) for setting in chosen])
        elif docs or len(chosen) == 1:
            print("\n\n".join(setting_page(setting) for setting in chosen))
        else:
            show(settings_table(chosen))
        return
    with session.read() as store:
        entries = store.describe_topic(topic)
    entries = [
        entry
        for entry in entries
        if _matches(_BY_NAME[entry.name], find) and not (changed and entry.source == "default")
    ]
    if session.json:
        show_json([entry_facts(entry) for entry in entries])
    elif docs:
        print("\n\n".join(f"{e.name} = {e.value} ({e.source})\n  {e.doc}" for e in entries))
    else:
        show(entries_table(topic, entries))


def settings_table(chosen: list[Setting]) -> Table:
    """Name, default and valid values; docs are a ``--docs`` away."""
    table = Table(
        [Column("setting", style="bold"), Column("default", right=True), Column("valid"), Column("scope")],
        footer="--docs says what they do, --find TEXT narrows the list",
    )
    for setting in chosen:
        valid = " | ".join(setting.choices) if setting.choices else _range(setting)
        table.add(setting.name, readable(setting, setting.default), valid, setting.scope)
    return table


def entries_table(topic: str, entries: list[ConfigEntry]) -> Table:
    """What holds for a topic and where it comes from."""
    table = Table(
        [
            Column("setting", style="bold"),
            Column("value", right=True),
            Column("means", right=True),
            Column("from"),
        ],
        footer="" if entries else f"{topic} changes nothing: every setting has its default",
    )
    for entry in entries:
        setting = _BY_NAME[entry.name]
        meaning = readable(setting, parse_value(setting, entry.value))
        table.add(entry.name, entry.value, "" if meaning == entry.value else meaning, entry.source)
    return table


def setting_page(setting: Setting) -> str:
    """One setting in full."""
    lines = [f"{setting.name} ({setting.type}, {setting.scope})", f"  {setting.doc}"]
    meaning = readable(setting, setting.default)
    shown = setting.default_text or "empty"
    lines.append(f"  default  {shown}" + (f" ({meaning})" if meaning not in (shown, "") else ""))
    valid = ", ".join(setting.choices) if setting.choices else _range(setting)
    if valid:
        lines.append(f"  valid    {valid}")
    names = [setting.broker_name] if setting.broker_name not in (None, setting.name) else []
    names += [synonym.name for synonym in setting.synonyms]
    if names:
        lines.append(f"  store    {', '.join(str(name) for name in names)}")
    if setting.deviation:
        lines.append(f"  Kafka    {setting.deviation}")
    elif setting.ours:
        lines.append("  Kafka    does not have it")
    return "\n".join(lines)


def setting_facts(setting: Setting) -> dict[str, object]:
    """A setting for programs."""
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


def entry_facts(entry: ConfigEntry) -> dict[str, object]:
    """An effective setting for programs."""
    return {
        "name": entry.name,
        "value": entry.value,
        "source": entry.source,
        "default": entry.default,
        "type": entry.type,
        "broker_name": entry.broker_name,
        "doc": entry.doc,
    }


def _range(setting: Setting) -> str:
    return "" if setting.minimum is None and setting.maximum is None else setting.range


def _matches(setting: Setting, find: str | None) -> bool:
    if find is None:
        return True
    names = [setting.name, setting.broker_name or "", *(synonym.name for synonym in setting.synonyms)]
    return any(find.lower() in name for name in names)


def _require(chosen: list[Setting], find: str | None) -> None:
    if not chosen and find is not None:
        raise ConfigError(f"no setting has {find!r} in its name{suggest(find, _BY_NAME)}")
