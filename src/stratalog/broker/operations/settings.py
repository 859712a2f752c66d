"""The settings of `stratalog serve`, by the names of Kafka's ``server.properties``.

They come from a file, the environment and the command line, the last one wins. Every name and value is
checked, and an error names the line or the option. What a store has settings for goes on to the store.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from stratalog.broker.groups.assignors import ASSIGNORS
from stratalog.broker.server import Address, Limits
from stratalog.config import BROKER_NAMES, BrokerConfig, suggest
from stratalog.errors import ConfigError

LISTENERS, ADVERTISED = "listeners", "advertised.listeners"
LOG_DIRS = ("log.dirs", "log.dir")
AUTO_CREATE = "auto.create.topics.enable"
PLAINTEXT = "PLAINTEXT://"
_LIMITS = {each.name.replace("_", "."): each for each in dataclasses.fields(Limits)}
_LEAST = {
    "offsets.retention.minutes": -1,
    "group.initial.rebalance.delay.ms": 0,
    "max.incremental.fetch.session.cache.slots": 0,
}
"""The smallest values where that is not 1."""
NAMES = (LISTENERS, ADVERTISED, *LOG_DIRS, AUTO_CREATE, *_LIMITS)


class Given(NamedTuple):
    """A value and where it was given, for errors."""

    value: str
    where: str


class ServeSettings(NamedTuple):
    """What a broker and its store are opened with; None where nothing was given."""

    listener: Address | None
    advertised: Address | None
    log_dirs: tuple[str, ...]
    auto_create_topics: bool
    limits: Limits
    store: dict[str, str]
    """Settings of the store."""


def read_properties(text: str, path: str) -> dict[str, Given]:
    """Return the settings of a ``server.properties`` file; ConfigError names the line that is unclear."""
    found: dict[str, Given] = {}
    for number, line in enumerate(text.splitlines(), 1):
        where, line = f"{path}, line {number}", line.strip()
        if not line or line[0] in "#!":
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not name or line.endswith("\\"):
            raise ConfigError(f"{where}: {line!r} is not NAME=VALUE on one line")
        if name in found:
            raise ConfigError(f"{where}: {name} is also in {found[name].where.rpartition(', ')[2]}")
        found[name] = Given(value, where)
    return found


def parse(given: Mapping[str, Given]) -> ServeSettings:
    """Check every setting; ConfigError names all unknown ones or the first wrong one, and where it is."""
    unknown = [name for name in given if name not in NAMES and name not in BROKER_NAMES]
    if unknown:
        raise _unknown(unknown, given)
    listener = advertised = None
    log_dirs: tuple[str, ...] = ()
    auto_create = True
    limits: dict[str, Any] = {}
    store: dict[str, str] = {}
    for name, (value, where) in given.items():
        try:
            if name == LISTENERS:
                listener = parse_listener(value)
            elif name == ADVERTISED:
                advertised = parse_listener(value)
            elif name in LOG_DIRS:
                log_dirs = tuple(each.strip() for each in value.split(",") if each.strip())
            elif name == AUTO_CREATE:
                auto_create = _boolean(value)
            elif name in _LIMITS:
                limits[_LIMITS[name].name] = _limit(name, value)
            else:
                BrokerConfig.parse({name: value})
                store[name] = value
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    BrokerConfig.parse(store)
    return ServeSettings(listener, advertised, log_dirs, auto_create, Limits(**limits), store)


def parse_listener(text: str) -> Address:
    """Return the address of ``HOST:PORT``, with or without ``PLAINTEXT://``; one listener, without TLS."""
    host, _, port = text.removeprefix(PLAINTEXT).rpartition(":")
    if "," in text or "://" in host:
        raise ConfigError(f"{text!r}: one listener is served, PLAINTEXT://HOST:PORT")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ConfigError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:9092")
    return Address(host.strip("[]"), int(port))


def _boolean(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ConfigError(f"{AUTO_CREATE}={value}: must be true or false")
    return value.lower() == "true"


def _limit(name: str, value: str) -> Any:
    if isinstance(_LIMITS[name].default, tuple):
        chosen = tuple(each.strip() for each in value.split(",") if each.strip())
        if not chosen or not set(chosen) <= ASSIGNORS.keys():
            raise ConfigError(f"{name}={value}: must be one or more of {', '.join(sorted(ASSIGNORS))}")
        return chosen
    least = _LEAST.get(name, 1)
    try:
        number = int(value)
    except ValueError:
        raise ConfigError(f"{name}={value}: must be a whole number") from None
    if not least <= number < 2**31:
        raise ConfigError(f"{name}={value}: out of range, must be {least} to {2**31 - 1}")
    return number


def _unknown(names: list[str], given: Mapping[str, Given]) -> ConfigError:
    """Build the error for settings that this broker does not have."""
    hints = {name: suggest(name, (*NAMES, *BROKER_NAMES)) for name in names}
    first, *others = names
    more = ", ".join(f"{name} ({given[name].where}{hints[name]})" for name in others)
    return ConfigError(
        f"{given[first].where}: {first} is not a setting of this broker{hints[first]}; leave it out"
        + (f", and also {more}" if more else "")
    )
