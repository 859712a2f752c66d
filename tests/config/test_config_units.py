"""Sizes, durations and times as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.config.units import (
    format_bytes,
    format_duration_ms,
    format_time,
    parse_bytes,
    parse_duration_ms,
    parse_time,
)
from stratalog.errors import InvalidArgumentError

NOW = 1_767_225_600_000  # 2026-01-01T00:00:00Z


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("64MiB", 64 * 2**20),
        ("64 mib", 64 * 2**20),
        ("1K", 1024),
        ("1kB", 1000),
        ("1.5GB", 1_500_000_000),
        ("1G", 2**30),
        ("2TiB", 2**41),
        ("10b", 10),
        (" 0 ", 0),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_bytes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1XB", "1 2", "1..2M", "٣", "1e3", "1" * 50])
def test_not_bytes(text):
    with pytest.raises(InvalidArgumentError, match="is not a size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "span_ms"),
    [
        ("250", 250),
        ("250ms", 250),
        ("90s", 90_000),
        ("10m", 600_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        ("0s", 0),
    ],
)
def test_durations(text, span_ms):
    assert parse_duration_ms(text) == span_ms


@pytest.mark.parametrize("text", ["", "h", "1x", "1h30", "-5m", "1h,30m", "soon"])
def test_not_durations(text):
    with pytest.raises(InvalidArgumentError, match="is not a duration"):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "timestamp"),
    [
        ("now", NOW),
        ("NOW", NOW),
        ("-10m", NOW - 600_000),
        ("+1h", NOW + 3_600_000),
        ("1767225600000", NOW),
        ("2026-01-01", NOW),
        ("2026-01-01T00:00:00Z", NOW),
        ("2026-01-01T00:00:00.250Z", NOW + 250),
        ("2026-01-01 02:00+02:00", NOW),
        ("2026-01-01T00:00", NOW),
        ("1969-12-31T23:59:59.999Z", -1),
    ],
)
def test_times(text, timestamp):
    assert parse_time(text, NOW) == timestamp


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "-", "-5", "10m", "2026-01-01T25:00"])
def test_not_times(text):
    with pytest.raises(InvalidArgumentError):
        parse_time(text, NOW)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (150 * 1024, "150 KiB"),
        (1024 * 1024 - 1, "1.0 MiB"),
        (2**30, "1.0 GiB"),
        (2**62, "4.0 EiB"),
    ],
)
def test_sizes_for_people(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1500, "1.5s"),
        (60_000, "1m"),
        (5_400_000, "1h 30m"),
        (86_400_000, "1d"),
        (86_400_000 + 1000, "1d"),
        (-600_000, "-10m"),
    ],
)
def test_spans_for_people(span_ms, text):
    assert format_duration_ms(span_ms) == text


def test_times_for_people():
    assert format_time(NOW + 7) == "2026-01-01T00:00:00.007Z"
    assert format_time(-1) == "1969-12-31T23:59:59.999Z"
    assert format_time(2**63 - 1) == str(2**63 - 1)


@given(st.integers(min_value=-62_135_596_800_000, max_value=253_402_300_799_999))
def test_printed_times_read_back(timestamp):
    assert parse_time(format_time(timestamp), NOW) == timestamp


@given(st.text(max_size=30))
def test_any_text_is_a_value_or_a_clear_refusal(text):
    for parse in (parse_bytes, parse_duration_ms, lambda value: parse_time(value, NOW)):
        try:
            assert isinstance(parse(text), int)
        except InvalidArgumentError:
            continue
