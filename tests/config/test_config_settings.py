"""The table of settings, what is parsed by it and what is made of it."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.config import (
    LONG_MAX,
    SETTINGS,
    BrokerConfig,
    Setting,
    TopicConfig,
    canonical,
    describe,
    parse_overrides,
    parse_value,
    topic_config,
)
from stratalog.config.docs import render
from stratalog.config.settings import canonical_number
from stratalog.errors import ConfigError

TOPIC = [setting for setting in SETTINGS if setting.scope == "topic"]
ROOT = pathlib.Path(__file__).parents[2]


def test_names_are_unique_in_each_scope():
    topic = [setting.name for setting in TOPIC]
    broker = [setting.broker_name for setting in SETTINGS if setting.broker_name]
    broker += [synonym.name for setting in SETTINGS for synonym in setting.synonyms]
    assert len(set(topic)) == len(topic)
    assert len(set(broker)) == len(broker)


def test_every_topic_setting_is_a_field_with_the_same_default():
    fields = {field.name: field.default for field in dataclasses.fields(TopicConfig)}
    table: dict[str, object] = {setting.field: setting.default for setting in TOPIC}
    table["cleanup_policy"] = frozenset({"delete"})
    assert fields == table
    assert topic_config(BrokerConfig.parse(None)) == TopicConfig()


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_defaults_are_valid_and_their_text_reads_back(setting):
    assert parse_value(setting, setting.default) == setting.default
    assert parse_value(setting, setting.default_text) == setting.default
    assert setting.doc.endswith(".")


# Printed by Kafka 4.3.1 itself (the main methods of its LogConfig and KafkaConfig).
KAFKA = json.loads((pathlib.Path(__file__).parent / "kafka-4.3.1-settings.json").read_text())
# The deviations: see their rows in the table.
WIDER_HERE = {"segment.bytes", "log.segment.bytes"}
NARROWER_HERE = {
    "segment.index.bytes",
    "log.index.size.max.bytes",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.max.bytes.per.second",
}


def kafka_range(setting: Setting) -> str:
    """A setting's range in the notation of Kafka's documentation."""
    if setting.choices:
        return f"[{', '.join(setting.choices)}]"
    if setting.item_pattern:
        return "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
    if setting.minimum is None:
        return ""
    high = "" if setting.maximum is None else f",{setting.maximum}"
    return f"[{setting.minimum},...{high}]" + "".join(f" or {value}" for value in setting.extra)


def test_topic_settings_are_kafkas():
    ours = {setting.name: setting for setting in TOPIC if not setting.ours}
    assert set(ours) == set(KAFKA["topic"])
    for name, theirs in KAFKA["topic"].items():
        setting = ours[name]
        assert (setting.type, setting.default_text, setting.broker_name) == (
            theirs["type"],
            theirs["default"],
            theirs["broker"],
        )
        if name in WIDER_HERE | NARROWER_HERE:
            assert setting.deviation
        else:
            assert kafka_range(setting) == theirs["valid"], name


def test_broker_settings_are_kafkas():
    for setting in SETTINGS:
        if setting.scope == "topic" or setting.ours:
            continue
        theirs = KAFKA["broker"][setting.name]
        assert (setting.type, setting.default_text) == (theirs["type"], theirs["default"])
        if setting.name not in WIDER_HERE | NARROWER_HERE:
            assert kafka_range(setting) == theirs["valid"], setting.name
    for setting in SETTINGS:
        for synonym in setting.synonyms:
            if synonym.name in KAFKA["broker"] and synonym.type is not None:
                assert synonym.type == KAFKA["broker"][synonym.name]["type"]


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({"segment.bytes": "64MiB"}, {"segment.bytes": "67108864"}),
        ({"segment.bytes": 2**20}, {"segment.bytes": "1048576"}),
        ({"segment.ms": " 1h30m "}, {"segment.ms": "5400000"}),
        ({"retention.ms": "-1"}, {"retention.ms": "-1"}),
        ({"cleanup.policy": "compact, delete"}, {"cleanup.policy": "compact,delete"}),
        ({"cleanup.policy": ["delete", "compact"]}, {"cleanup.policy": "delete,compact"}),
        ({"cleanup.policy": "delete,delete"}, {"cleanup.policy": "delete"}),
        ({"cleanup.policy": ""}, {"cleanup.policy": ""}),
        (
            {"leader.replication.throttled.replicas": "*"},
            {"leader.replication.throttled.replicas": "*"},
        ),
        ({"key.index.enable": "TRUE"}, {"key.index.enable": "true"}),
        ({"key.index.enable": True}, {"key.index.enable": "true"}),
        ({"min.cleanable.dirty.ratio": ".5"}, {"min.cleanable.dirty.ratio": "0.5"}),
        ({"min.cleanable.dirty.ratio": 1}, {"min.cleanable.dirty.ratio": "1.0"}),
        ({"compression.gzip.level": -1}, {"compression.gzip.level": "-1"}),
    ],
)
def test_overrides_become_canonical(given_, expected):
    assert parse_overrides(given_) == expected


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"segment.byte": 1}, "unknown topic setting segment.byte; did you mean segment.bytes?"),
        ({"log.segment.bytes": 1}, "unknown topic setting log.segment.bytes"),
        ({"segment.bytes": "ten"}, "segment.bytes=ten: 'ten' is not a size"),
        ({"segment.bytes": 63}, "segment.bytes=63: out of range, must be at least 64"),
        ({"segment.bytes": 2**31}, "does not fit a int"),
        ({"segment.bytes": True}, "must be a whole number"),
        ({"segment.bytes": 1.5}, "must be a whole number"),
        ({"segment.records": "1k"}, "must be a whole number"),
        ({"segment.ms": "9" * 30}, "segment.ms="),
        ({"compression.gzip.level": 0}, "must be 1 to 9 or -1"),
        ({"compression.type": "LZ4"}, "did you mean lz4?"),
        ({"compression.type": 3}, "must be a string"),
        ({"cleanup.policy": "delete,shred"}, "shred is not one of compact, delete"),
        ({"leader.replication.throttled.replicas": "x"}, "must be * or a list of partition:broker"),
        ({"cleanup.policy": "delete,"}, "no empty items"),
        ({"cleanup.policy": 3}, "must be a comma-separated list"),
        ({"key.index.enable": "yes"}, "must be true or false"),
        ({"min.cleanable.dirty.ratio": "nan"}, "must be a number"),
        ({"min.cleanable.dirty.ratio": "x"}, "must be a number"),
        ({"min.cleanable.dirty.ratio": 1.01}, "must be 0 to 1"),
    ],
)
def test_bad_overrides_name_the_setting(given_, said):
    with pytest.raises(ConfigError) as caught:
        parse_overrides(given_)
    assert said in str(caught.value)
    assert next(iter(given_)) in str(caught.value)


def test_broker_defaults_and_precedence():
    broker = BrokerConfig.parse({"log.roll.hours": 1, "log.segment.bytes": "1MiB"})
    assert broker.get("log.roll.ms") == 3_600_000
    assert broker.get_int("log.segment.bytes") == 2**20
    assert broker.explicit == {"log.roll.hours": "1", "log.segment.bytes": "1048576"}
    config = topic_config(broker, {"segment.bytes": "128"})
    assert (config.segment_bytes, config.segment_ms) == (128, 3_600_000)

    both = {"log.roll.hours": 2, "log.roll.ms": 5}
    for order in (both, dict(reversed(both.items()))):
        assert BrokerConfig.parse(order).get("log.roll.ms") == 5
    three = {"log.retention.hours": 1, "log.retention.minutes": 1, "log.retention.ms": 1}
    assert BrokerConfig.parse(three).get("log.retention.ms") == 1
    assert BrokerConfig.parse(three | {"log.retention.ms": None}).get("log.retention.ms") == 60_000
    assert BrokerConfig.parse({"log.retention.hours": -1}).get("log.retention.ms") == -1
    assert BrokerConfig.parse({"log.flush.scheduler.interval.ms": 7}).get("log.flush.interval.ms") == 7
    assert BrokerConfig.parse({"cleaner.max.time.ratio": "0.25"}).get("log.cleaner.max.time.ratio") == 0.25
    assert BrokerConfig.parse({"log.roll.hours": 1}) == BrokerConfig.parse({"log.roll.ms": 3_600_000})


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"log.segment.byte": 1}, "did you mean log.segment.bytes?"),
        ({"segment.bytes": 1}, "a setting of a topic; the default for every topic is log.segment.bytes"),
        ({"remote.storage.enable": True}, "remote.storage.enable is a setting of a topic"),
        ({"log.roll.hours": 0}, "log.roll.hours=0: out of range, must be at least 1"),
        ({"log.roll.ms": 0}, "log.roll.ms=0: out of range, must be at least 1"),
        ({"log.retention.ms": 0}, "must be -1 (no limit) or at least 1"),
        ({"log.retention.hours": "1h"}, "must be a whole number"),
        ({7: 1}, "must be a string"),
    ],
)
def test_bad_broker_settings(given_, said):
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.parse(given_)
    assert said in str(caught.value)


def test_get_of_an_unknown_name_or_type():
    with pytest.raises(ConfigError):
        BrokerConfig.parse(None).get("nope")
    with pytest.raises(ConfigError):
        BrokerConfig.parse(None).get_int("log.cleaner.enable")


def test_settings_that_contradict_each_other():
    broker = BrokerConfig.parse(None)
    with pytest.raises(ConfigError, match="more than max"):
        topic_config(broker, {"min.compaction.lag.ms": 10, "max.compaction.lag.ms": 9})
    tiered = {"remote.storage.enable": True, "retention.ms": 100}
    for wrong in (101, -1):
        with pytest.raises(ConfigError, match=r"local\.retention\.ms"):
            topic_config(broker, tiered | {"local.retention.ms": wrong})
    assert topic_config(broker, tiered | {"local.retention.ms": 100}).local_retention_ms == 100
    forever = {"remote.storage.enable": True, "retention.ms": -1, "local.retention.ms": 5}
    assert topic_config(broker, forever).local_retention_ms == 5


def test_describe_says_where_each_value_comes_from():
    broker = BrokerConfig.parse({"log.segment.bytes": "1MiB", "log.roll.hours": 1})
    entries = {entry.name: entry for entry in describe(broker, {"retention.ms": "5000", "segment.bytes": 99})}
    assert list(entries) == [setting.name for setting in TOPIC]
    assert (entries["segment.bytes"].value, entries["segment.bytes"].source) == ("99", "topic")
    assert (entries["segment.ms"].value, entries["segment.ms"].source) == ("3600000", "broker")
    assert (entries["flush.ms"].value, entries["flush.ms"].source) == (str(LONG_MAX), "default")


def test_topic_config_is_frozen_and_has_its_shorthands():
    config = topic_config(
        BrokerConfig.parse(None), {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
    )
    assert (config.compact, config.delete, config.log_append_time) == (True, False, True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.segment_ms = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.5, "0.5"),
        (1.0, "1.0"),
        (0.0, "0.0"),
        (1e-4, "1.0E-4"),
        (1.25e10, "1.25E10"),
        (1.7976931348623157e308, "1.7976931348623157E308"),  # Double.MAX_VALUE
    ],
)
def test_doubles_print_as_in_java(number, text):
    assert canonical_number(number) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_printed_doubles_read_back(number):
    assert float(canonical_number(number)) == number


@given(st.sampled_from(TOPIC), st.data())
def test_what_is_printed_is_read_back_unchanged(setting, data):
    low = setting.minimum if setting.minimum is not None else -5
    if setting.type in ("int", "long"):
        high = setting.maximum or (2**31 - 1 if setting.type == "int" else LONG_MAX)
        value = data.draw(st.integers(int(low), int(high)))
    elif setting.type == "double":
        value = data.draw(st.floats(0, 1))
    elif setting.type == "boolean":
        value = data.draw(st.booleans())
    elif setting.choices:
        value = data.draw(st.sampled_from(setting.choices))
    else:
        value = "0:1,1:2"
    text = parse_overrides({setting.name: value})[setting.name]
    assert parse_overrides({setting.name: text}) == {setting.name: text}
    assert canonical(parse_value(setting, text)) == text


@given(
    st.dictionaries(
        st.text(max_size=20), st.one_of(st.text(max_size=20), st.integers(), st.none()), max_size=3
    )
)
def test_any_mapping_is_parsed_or_refused_by_name(mapping):
    for parse in (BrokerConfig.parse, parse_overrides):
        try:
            parse(mapping)
        except ConfigError:
            continue


def test_settings_page_is_current():
    assert (ROOT / "docs" / "SETTINGS.md").read_text() == render(), (
        "run: python -m stratalog.config.docs > docs/SETTINGS.md"
    )
