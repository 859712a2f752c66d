"""Settings: one table with Kafka's names, types, defaults and ranges, and what is made of it.

``SETTINGS`` is the table. Validation, ``BrokerConfig`` (a store's settings), ``TopicConfig`` (a topic's,
typed), ``describe`` and ``docs/SETTINGS.md`` all come from it. Nothing here touches a disk.
"""

from __future__ import annotations

from stratalog.config.broker import BROKER_NAMES, BrokerConfig
from stratalog.config.settings import (
    Setting,
    canonical,
    canonical_number,
    parse_value,
    readable,
    suggest,
)
from stratalog.config.tables import PROFILE, PROFILES, SETTINGS, with_profile
from stratalog.config.topic import (
    ConfigEntry,
    TopicConfig,
    change_lists,
    check_names,
    describe,
    describe_broker,
    parse_overrides,
    topic_config,
)
from stratalog.model import LONG_MAX

__all__ = [
    "BROKER_NAMES",
    "LONG_MAX",
    "PROFILE",
    "PROFILES",
    "SETTINGS",
    "BrokerConfig",
    "ConfigEntry",
    "Setting",
    "TopicConfig",
    "canonical",
    "canonical_number",
    "change_lists",
    "check_names",
    "describe",
    "describe_broker",
    "parse_overrides",
    "parse_value",
    "readable",
    "suggest",
    "topic_config",
    "with_profile",
]
