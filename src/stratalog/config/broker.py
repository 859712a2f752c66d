"""The settings of a store: those of ``stratalog.open(config=…)`` over Kafka's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from stratalog.config.settings import Setting, Synonym, Value, canonical, parse_synonym, parse_value, suggest
from stratalog.config.tables import SETTINGS, TOPIC_SETTINGS
from stratalog.errors import ConfigError

TOPIC_BY_NAME: Mapping[str, Setting] = MappingProxyType({s.name: s for s in TOPIC_SETTINGS})
_BY_BROKER_NAME: dict[str, Setting] = {s.broker_name: s for s in SETTINGS if s.broker_name is not None}
_BY_SYNONYM: dict[str, tuple[Setting, Synonym]] = {y.name: (s, y) for s in SETTINGS for y in s.synonyms}
BROKER_NAMES: tuple[str, ...] = (*_BY_BROKER_NAME, *_BY_SYNONYM)


class BrokerConfig:
    """Broker settings, parsed and frozen.

    ``explicit`` is what was set, by the name it was set under, in canonical text. Where a setting has
    several names the first one set wins, in Kafka's order: ``log.roll.ms`` before ``log.roll.hours``,
    ``log.retention.ms`` before ``.minutes`` before ``.hours``.
    """

    __slots__ = ("_values", "explicit")

    explicit: dict[str, str]
    _values: dict[str, Value]

    def __init__(self, explicit: dict[str, str], values: dict[str, Value]) -> None:
        self.explicit = explicit
        self._values = values

    @classmethod
    def parse(cls, config: Mapping[str, object] | None = None) -> BrokerConfig:
        """Check every name and value; ConfigError names the first wrong one. None values mean not set."""
        given = {name: value for name, value in (config or {}).items() if value is not None}
        explicit: dict[str, str] = {}
        values: dict[str, Value] = {}
        rank: dict[str, int] = {}
        named: dict[str, str] = {}
        for name, value in given.items():
            setting, order = _find(name)
            if order == 0:
                parsed = parse_value(setting, value, name=name)
                explicit[name] = canonical(parsed)
            else:
                parsed = parse_synonym(setting, setting.synonyms[order - 1], value)
                explicit[name] = str(value).strip()
            key = setting.broker_name or setting.name
            if order <= rank.get(key, order):
                values[key], rank[key], named[key] = parsed, order, name
        if values.get("log.retention.ms") == 0:
            raise ConfigError(f"{named['log.retention.ms']}=0: must be -1 (no limit) or at least 1")
        return cls(explicit, values)

    def get(self, name: str) -> Value:
        """Return the effective value of a broker setting: set under any of its names, else the default."""
        setting, _ = _find(name)
        return self._values.get(setting.broker_name or setting.name, setting.default)

    def get_int(self, name: str) -> int:
        """``get`` for a setting that is a whole number."""
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{name} is not a whole number")
        return value

    def get_float(self, name: str) -> float:
        """``get`` for a setting that is a number."""
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{name} is not a number")
        return float(value)

    def get_bool(self, name: str) -> bool:
        """``get`` for a setting that is true or false."""
        value = self.get(name)
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is not true or false")
        return value

    def override(self, setting: Setting) -> Value | None:
        """Return the store's default for a topic setting, None if it sets none."""
        return self._values.get(setting.broker_name) if setting.broker_name else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BrokerConfig) and other._values == self._values

    def __hash__(self) -> int:
        return hash(tuple(sorted((name, canonical(value)) for name, value in self._values.items())))

    def __repr__(self) -> str:
        return f"BrokerConfig({self.explicit!r})"


def _find(name: object) -> tuple[Setting, int]:
    """Return the setting of a broker name, and the name's rank among its names."""
    if isinstance(name, str):
        if name in _BY_BROKER_NAME:
            return _BY_BROKER_NAME[name], 0
        if name in _BY_SYNONYM:
            setting, synonym = _BY_SYNONYM[name]
            return setting, setting.synonyms.index(synonym) + 1
        topic = TOPIC_BY_NAME.get(name)
        if topic is not None:
            where = f"; the default for every topic is {topic.broker_name}" if topic.broker_name else ""
            raise ConfigError(f"{name} is a setting of a topic{where}")
        raise ConfigError(f"unknown setting {name}{suggest(name, BROKER_NAMES)}")
    raise ConfigError(f"a setting's name must be a string, not {name!r}")
