"""The settings of one topic: its overrides over the store's defaults over Kafka's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stratalog.config.broker import TOPIC_BY_NAME, BrokerConfig
from stratalog.config.settings import Setting, Value, canonical, parse_value, suggest
from stratalog.config.tables import SETTINGS, TOPIC_SETTINGS
from stratalog.errors import ConfigError
from stratalog.model import LONG_MAX

Source = Literal["topic", "broker", "default"]


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Every setting of a topic, typed. The defaults are those of the table (a test keeps them equal)."""

    stratalog_profile: str = "none"
    segment_bytes: int = 2**30
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    segment_records: int = LONG_MAX
    segment_align_ms: int = 0
    segment_index_bytes: int = 10 * 2**20
    index_interval_bytes: int = 4096
    key_index_enable: bool = False
    preallocate: bool = False
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    max_message_bytes: int = 2**20 + 12
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_after_max_ms: int = 3_600_000
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    retention_ms: int = 604_800_000
    retention_bytes: int = -1
    retention_segments: int = -1
    file_delete_delay_ms: int = 60_000
    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    min_cleanable_dirty_ratio: float = 0.5
    cleaner_min_segment_age_ms: int = 3_600_000
    remote_storage_enable: bool = False
    local_retention_ms: int = -2
    local_retention_bytes: int = -2
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    leader_replication_throttled_replicas: tuple[str, ...] = ()
    follower_replication_throttled_replicas: tuple[str, ...] = ()

    @property
    def compact(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One effective setting of a topic and where it comes from."""

    name: str
    value: str
    source: Source
    default: str
    type: str
    broker_name: str | None
    doc: str


def topic_config(broker: BrokerConfig, overrides: Mapping[str, object] | None = None) -> TopicConfig:
    """Return the effective settings; ConfigError if a name, a value or two values together are wrong."""
    given = overrides or {}
    check_names(given)
    fields: dict[str, Any] = {}
    for setting in TOPIC_SETTINGS:
        value, _ = _effective(setting, broker, given)
        fields[setting.field] = frozenset(value) if setting.name == "cleanup.policy" else value  # type: ignore[arg-type]
    config = TopicConfig(**fields)
    _check_together(config)
    return config


def change_lists(
    value_of: Callable[[str], object],
    append: Mapping[str, object],
    subtract: Mapping[str, object],
) -> dict[str, object]:
    """Return lists with elements added and removed, as Kafka's APPEND and SUBTRACT do.

    ``value_of`` returns the value in force. Adding one twice, or removing a missing one, changes nothing.
    """
    check_names([*append, *subtract])
    changed: dict[str, object] = {}
    for name, elements in [*append.items(), *subtract.items()]:
        setting = TOPIC_BY_NAME[name]
        if setting.type != "list":
            raise ConfigError(f"{name} is not a list: only lists can be appended to or subtracted from")
        if name in changed:
            raise ConfigError(f"{name} is given to append and to subtract")
        given, now = _elements(parse_value(setting, elements)), _elements(value_of(name))
        if name in append:
            changed[name] = ",".join([*now, *(each for each in given if each not in now)])
        else:
            changed[name] = ",".join(each for each in now if each not in given)
    return changed


def _elements(value: object) -> list[str]:
    if isinstance(value, str):
        return [each for each in value.split(",") if each]
    return [str(each) for each in value] if isinstance(value, Iterable) else []


def parse_overrides(overrides: Mapping[str, object]) -> dict[str, str]:
    """Return topic overrides in canonical text, as Kafka prints it; ConfigError names the first wrong one."""
    check_names(overrides)
    return {name: canonical(parse_value(TOPIC_BY_NAME[name], value)) for name, value in overrides.items()}


def describe(broker: BrokerConfig, overrides: Mapping[str, object] | None = None) -> list[ConfigEntry]:
    """Return every topic setting with its effective value and source, in the order of the table."""
    given = overrides or {}
    check_names(given)
    entries = []
    for setting in TOPIC_SETTINGS:
        value, source = _effective(setting, broker, given)
        about = setting.default_text, setting.type, setting.broker_name, setting.doc
        entries.append(ConfigEntry(setting.name, canonical(value), source, *about))
    return entries


def describe_broker(broker: BrokerConfig) -> list[ConfigEntry]:
    """Return every broker setting with its value and source, in the order of the table."""
    entries = []
    for setting in SETTINGS:
        if setting.broker_name is None:
            continue
        given = broker.override(setting)
        value, source = (setting.default, "default") if given is None else (given, "broker")
        about = setting.default_text, setting.type, setting.broker_name, setting.doc
        entries.append(ConfigEntry(setting.broker_name, canonical(value), source, *about))  # type: ignore[arg-type]
    return entries


def _effective(setting: Setting, broker: BrokerConfig, given: Mapping[str, object]) -> tuple[Value, Source]:
    if setting.name in given:
        return parse_value(setting, given[setting.name]), "topic"
    given_here = broker.override(setting)
    return (setting.default, "default") if given_here is None else (given_here, "broker")


def check_names(names: Iterable[object]) -> None:
    """Raise ConfigError if one of them is not a setting of a topic."""
    for name in names:
        if name not in TOPIC_BY_NAME:
            raise ConfigError(f"unknown topic setting {name}{suggest(str(name), TOPIC_BY_NAME)}")


def _check_together(config: TopicConfig) -> None:
    """Check Kafka's rules about two settings at once."""
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise ConfigError(
            f"min.compaction.lag.ms={config.min_compaction_lag_ms} is more than "
            f"max.compaction.lag.ms={config.max_compaction_lag_ms}"
        )
    if not config.remote_storage_enable:
        return
    for unit, local, whole in (
        ("ms", config.local_retention_ms, config.retention_ms),
        ("bytes", config.local_retention_bytes, config.retention_bytes),
    ):
        if local == -2 or whole < 0:
            continue
        if local == -1 or local > whole:
            raise ConfigError(f"local.retention.{unit}={local} keeps more than retention.{unit}={whole}")
