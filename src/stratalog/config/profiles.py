"""Profiles: segment size and rolling for four kinds of topic, as practice has them.

A profile is a starting point. Its settings become the topic's own when it is chosen, what is said
explicitly in the same breath wins, and its name stays with the topic as ``stratalog.profile``, where
`topic describe` shows it. Pure data and one pure function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

PROFILE = "stratalog.profile"
NO_PROFILE = "none"

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS


@dataclass(frozen=True, slots=True)
class Profile:
    """``settings`` are overrides of a topic by their names; ``doc`` says who it is for and why."""

    name: str
    settings: Mapping[str, int | bool]
    doc: str


_ALL = (
    Profile(
        "streaming",
        MappingProxyType(
            {
                "segment.bytes": 3 * 2**29,
                "segment.ms": _DAY_MS,
                "segment.jitter.ms": _HOUR_MS,
            }
        ),
        "A steady flow read from front to back: few, large files (1.5 GiB), sealed once a day at the "
        "latest, not all partitions at the same moment.",
    ),
    Profile(
        "time-series",
        MappingProxyType(
            {
                "segment.bytes": 256 * 2**20,
                "segment.align.ms": _HOUR_MS,
                "segment.ms": 2 * _HOUR_MS,
            }
        ),
        "Measurements asked for by time: 256 MiB, cut where hours end, so that a time range is a run of "
        "whole segments and old hours go one by one.",
    ),
    Profile(
        "event-sourcing",
        MappingProxyType(
            {
                "segment.bytes": 512 * 2**20,
                "segment.ms": 30 * _DAY_MS,
                "retention.ms": -1,
                "key.index.enable": True,
            }
        ),
        "The events are the truth: none expires, and the history of a key is found without a scan; "
        "512 MiB, so that compacting or archiving a segment stays a small piece of work.",
    ),
    Profile(
        "queue",
        MappingProxyType(
            {
                "segment.bytes": 2**30,
                "segment.ms": _DAY_MS,
            }
        ),
        "Work to be done and forgotten: 1 GiB, sealed once a day, so that what was consumed gives its "
        "room back the day its retention ends.",
    ),
)
PROFILES: Mapping[str, Profile] = MappingProxyType({profile.name: profile for profile in _ALL})


def with_profile(config: Mapping[str, object]) -> dict[str, object]:
    """The settings with those of the profile they name added; what they say themselves stays."""
    profile = PROFILES.get(str(config.get(PROFILE)))
    return {**profile.settings, **config} if profile is not None else dict(config)
