"""Profiles: what they set, and that everything said explicitly wins."""

from __future__ import annotations

import pytest

import stratalog
from stratalog.config import (
    PROFILE,
    PROFILES,
    SETTINGS,
    BrokerConfig,
    parse_overrides,
    topic_config,
    with_profile,
)
from stratalog.errors import ConfigError

SIZES = {  # MiB, as practice has them
    "streaming": (1024, 2048),
    "time-series": (100, 500),
    "event-sourcing": (500, 1024),
    "queue": (1024, 1024),
}


def config_of(**settings: object):
    overrides = {name.replace("_", "."): value for name, value in settings.items()}
    return topic_config(BrokerConfig.parse(), parse_overrides(with_profile(overrides)))


def test_every_profile_is_a_choice_and_has_its_segment_size():
    setting = next(each for each in SETTINGS if each.name == PROFILE)
    assert setting.choices == ("none", *PROFILES)
    assert set(PROFILES) == set(SIZES)
    for name, (low, high) in SIZES.items():
        config = config_of(stratalog_profile=name)
        assert low * 2**20 <= config.segment_bytes <= high * 2**20
        assert config.stratalog_profile == name
        assert PROFILES[name].doc


def test_a_time_series_is_cut_at_windows():
    config = config_of(stratalog_profile="time-series")
    assert config.segment_align_ms == 3_600_000
    assert config.segment_ms > config.segment_align_ms, "the window must end a segment, not the age"


def test_events_of_an_event_store_do_not_expire():
    config = config_of(stratalog_profile="event-sourcing")
    assert (config.retention_ms, config.retention_bytes, config.retention_segments) == (-1, -1, -1)


def test_what_is_said_explicitly_wins():
    config = config_of(stratalog_profile="queue", segment_bytes="64MiB")
    assert (config.segment_bytes, config.segment_ms) == (64 * 2**20, 86_400_000)
    assert with_profile({"segment.bytes": 5}) == {"segment.bytes": 5}
    assert with_profile({PROFILE: "none"}) == {PROFILE: "none"}
    with pytest.raises(ConfigError, match="streaming, time-series"):
        config_of(stratalog_profile="nonsense")


def test_a_store_takes_a_profile_as_a_setting(tmp_path):
    with stratalog.open(str(tmp_path)) as store:
        topic = store.create_topic("t", config={PROFILE: "time-series", "segment.bytes": "1MiB"})
        assert (topic.config.segment_bytes, topic.config.segment_align_ms) == (2**20, 3_600_000)
        store.alter_topic("t", {PROFILE: "queue"})
        assert (topic.config.segment_bytes, topic.config.stratalog_profile) == (2**30, "queue")
        store.alter_topic("t", {PROFILE: None})
        assert (topic.config.segment_bytes, topic.config.stratalog_profile) == (2**30, "none")
    with stratalog.open(str(tmp_path), read_only=True) as store:
        assert store.topic("t").config.segment_bytes == 2**30
