"""Settings: DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, of topics and of the broker.

A topic's settings are changed here. Those of the broker are given when the store is opened, and only shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stratalog.broker.codes import Code
from stratalog.config import ConfigEntry, describe_broker, topic_config
from stratalog.config.topic import change_lists
from stratalog.errors import InvalidArgumentError, StratalogError
from stratalog.log.names import validate_topic

if TYPE_CHECKING:
    from stratalog.broker.server import Broker, Request

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
KINDS = {TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP}
SET, DELETE, APPEND, SUBTRACT = range(4)
TYPES = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}
SOURCES = {"topic": 1, "broker": 4, "default": 5}
NOT_HERE = "the broker's settings are given when its store is opened"


def list_config_resources(request: Request) -> None:
    """Tell what has settings: topics and this broker. Groups and client metrics have no settings."""
    made = request.response
    kinds = set(request.body.resource_types) or ({CLIENT_METRICS} if request.version == 0 else KINDS)
    if not kinds <= KINDS:
        request.answer(made(error_code=Code.UNSUPPORTED_VERSION))
        return
    resource = made.struct("ConfigResource")
    names = {
        TOPIC: sorted(request.broker.store.partitions.entries),
        BROKER: [str(request.broker.node_id)],
        BROKER_LOGGER: [str(request.broker.node_id)],
    }
    request.answer(
        made(
            config_resources=[
                resource(resource_name=name, resource_type=kind)
                for kind in sorted(kinds)
                for name in names.get(kind, ())
            ]
        )
    )


def describe_configs(request: Request) -> None:
    """Describe settings: all of them, or the named ones, each once."""
    made = request.response
    one = made.struct("DescribeConfigsResult")

    def described(each: Any) -> Any:
        kind, name = each.resource_type, each.resource_name
        try:
            entries = _entries(request, kind, name)
        except (StratalogError, OSError) as error:
            return one(
                error_code=request.code_of(error),
                error_message=str(error),
                resource_type=kind,
                resource_name=name,
            )
        wanted = None if each.configuration_keys is None else set(each.configuration_keys)
        return one(
            error_message=None,
            resource_type=kind,
            resource_name=name,
            configs=[
                _told(request, entry, read_only=kind == BROKER)
                for entry in entries
                if wanted is None or entry.name in wanted
            ],
        )

    once = {(each.resource_type, each.resource_name): each for each in request.body.resources}

    def then(found: list[Any] | BaseException) -> None:
        if isinstance(found, BaseException):
            code = request.code_of(found)
            found = [
                one(error_code=code, error_message=str(found), resource_type=kind, resource_name=name)
                for kind, name in once
            ]
        request.answer(made(results=found))

    request.off_loop(lambda: [described(each) for each in once.values()], then)


def _entries(request: Request, kind: int, name: str) -> list[ConfigEntry]:
    store = request.broker.store
    if kind == TOPIC:
        validate_topic(name)
        return store.describe_topic(name)
    if kind == BROKER and name == "":
        return []  # what is set for all brokers alike: nothing, there is one
    if kind == BROKER and name == str(request.broker.node_id):
        return describe_broker(store.config) + _served(request.broker)
    raise InvalidArgumentError(f"there are no settings of kind {kind} and name {name!r}")


def _served(broker: Broker) -> list[ConfigEntry]:
    """Return the broker's settings that are not those of its store."""

    def entry(name: str, value: str, default: str, kind: str) -> ConfigEntry:
        return ConfigEntry(name, value, "default" if value == default else "broker", default, kind, name, "")

    def text(value: object) -> str:
        return ",".join(value) if isinstance(value, tuple) else str(value).lower()

    limits = [
        entry(
            each.name.replace("_", "."),
            text(getattr(broker.limits, each.name)),
            text(each.default),
            "list" if isinstance(each.default, tuple) else "int",
        )
        for each in dataclasses.fields(broker.limits)
    ]
    paths = ",".join(each.path for each in broker.store.partitions.dirs.all)
    host, port = broker.address
    return [
        *limits,
        entry("auto.create.topics.enable", text(broker.auto_create_topics), "true", "boolean"),
        entry("default.replication.factor", "1", "1", "int"),
        entry("node.id", str(broker.node_id), str(broker.node_id), "int"),
        entry("listeners", f"PLAINTEXT://{host}:{port}", "", "string"),
        entry("advertised.listeners", f"PLAINTEXT://{broker.bootstrap_servers}", "", "string"),
        entry("log.dirs", paths, "", "list"),
    ]


def _told(request: Request, entry: ConfigEntry, *, read_only: bool) -> Any:
    made = request.response
    synonym = made.struct("DescribeConfigsSynonym")
    synonyms = []
    if request.body.include_synonyms:
        if entry.source == "topic":
            synonyms.append(synonym(name=entry.name, value=entry.value, source=SOURCES["topic"]))
        elif entry.source == "broker":
            name = entry.broker_name or entry.name
            synonyms.append(synonym(name=name, value=entry.value, source=SOURCES["broker"]))
        if entry.broker_name is not None:
            synonyms.append(synonym(name=entry.broker_name, value=entry.default, source=SOURCES["default"]))
    return made.struct("DescribeConfigsResourceResult")(
        name=entry.name,
        value=entry.value,
        read_only=read_only,
        config_source=SOURCES[entry.source],
        synonyms=synonyms,
        config_type=TYPES.get(entry.type, 0),
        documentation=entry.doc if request.body.include_documentation else None,
    )


def created_configs(request: Request, entries: list[ConfigEntry]) -> list[Any]:
    """Return the settings of a topic as CreateTopics answers them."""
    made = request.response.struct("CreatableTopicConfigs")
    return [made(name=each.name, value=each.value, config_source=SOURCES[each.source]) for each in entries]


def incremental_alter_configs(request: Request) -> None:
    """Change some settings of topics: set, delete, add to a list or take from it."""

    def alter(each: Any) -> None:
        by: dict[int, dict[str, object]] = {SET: {}, DELETE: {}, APPEND: {}, SUBTRACT: {}}
        for setting in each.configs:
            if setting.config_operation not in by:
                raise InvalidArgumentError(
                    f"{setting.name}: there is no operation {setting.config_operation}"
                )
            if any(setting.name in known for known in by.values()):
                raise InvalidArgumentError(f"{setting.name} is there twice")
            if setting.value is None and setting.config_operation != DELETE:
                raise InvalidArgumentError(f"{setting.name} needs a value")
            by[setting.config_operation][setting.name] = setting.value
        changes = by[SET] | dict.fromkeys(by[DELETE])
        _alter(request, each.resource_name, changes, by[APPEND], by[SUBTRACT])

    _each_topic(request, alter)


def alter_configs(request: Request) -> None:
    """Replace all settings of topics: those that are not named go back to their defaults."""

    def alter(each: Any) -> None:
        given = {setting.name: setting.value for setting in each.configs}
        kept = request.broker.store.partitions.entry(each.resource_name).overrides
        _alter(request, each.resource_name, dict.fromkeys(kept) | given, {}, {})

    _each_topic(request, alter)


def _alter(
    request: Request,
    name: str,
    changes: dict[str, object],
    append: dict[str, object],
    subtract: dict[str, object],
) -> None:
    store = request.broker.store
    if not request.body.validate_only:
        store.alter_topic(name, changes, append=append, subtract=subtract)
        return
    overrides: dict[str, object] = {**store.partitions.entry(name).effective_overrides(), **changes}
    in_force = {entry.name: entry.value for entry in store.describe_topic(name)}
    overrides |= change_lists(in_force.__getitem__, append, subtract)
    topic_config(store.config, {key: value for key, value in overrides.items() if value is not None})


def _each_topic(request: Request, alter: Callable[[Any], None]) -> None:
    """Change topics one by one off the loop; one that fails does not keep the others."""
    made = request.response
    one = made.struct("AlterConfigsResourceResponse")

    def tried(each: Any) -> Any:
        code, why = Code.NONE, None
        try:
            if each.resource_type != TOPIC:
                raise InvalidArgumentError(NOT_HERE)
            alter(each)
        except (StratalogError, OSError) as error:
            code, why = request.code_of(error), str(error)
        return one(
            error_code=code,
            error_message=why,
            resource_type=each.resource_type,
            resource_name=each.resource_name,
        )

    def then(found: list[Any] | BaseException) -> None:
        if isinstance(found, BaseException):
            code, why = request.code_of(found), str(found)
            found = [
                one(error_code=code, error_message=why, resource_type=each.resource_type,
                    resource_name=each.resource_name)
                for each in request.body.resources
            ]  # fmt: skip
        request.answer(made(responses=found))

    request.off_loop(lambda: [tried(each) for each in request.body.resources], then)
