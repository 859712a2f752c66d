"""The options of the source, checked when ``load()`` is called.

Names and meanings are those of Spark's Kafka source; names are case-insensitive there and here. An option
that has no meaning without a broker (``kafka.*``, tuning of its consumers) is ignored with one warning; an
unknown one is an error, because a misspelt ``startingOffsets`` would read the wrong data. Touches no file.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from stratalog.archive.objects import absolute_url
from stratalog.config.broker import BrokerConfig
from stratalog.config.units import parse_bytes, parse_duration_ms
from stratalog.errors import ConfigError, InvalidArgumentError
from stratalog.log.read.reader import Isolation
from stratalog.spark.offsets import (
    Pair,
    Position,
    Strategy,
    bad_option,
    parse_assign,
    parse_offsets_option,
    parse_time_option,
    parse_times_option,
)
from stratalog.store.paths import absolute_places

logger = logging.getLogger("stratalog.spark")

View = Literal["records", "segments", "batches", "totals"]
VIEWS: dict[str, View] = {each: each for each in get_args(View)}

SUBSCRIPTIONS = ("subscribe", "assign", "subscribePattern")
READ_OPTIONS = (
    "path",
    "paths",
    "archive",
    *SUBSCRIPTIONS,
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "isolationLevel",
    "view",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
)
WRITE_OPTIONS: tuple[str, ...] = (
    "topic",
    "commitTimeout",
    "txnAppId",
    "txnVersion",
    "checkpointLocation",
    "queryName",
)
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"
"""A query's run is the job group of everything that it starts."""
MICRO_BATCH = "stratalog.microBatch"
"""Set by `stratalog.spark.session` when a ``foreachBatch`` saves: the micro-batch, as JSON."""
IGNORED = (
    "groupIdPrefix",
    "useDeprecatedOffsetFetching",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
STORE_PREFIX = "log.archive."
"""Settings of the store that matter to a reader: cache, time-outs, retries."""


@dataclass(frozen=True)
class Where:
    """Which logs: log directories, an archive, or both as one. The same on driver and executors."""

    paths: tuple[str, ...] = ()
    archive: str = ""
    config: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Subscription:
    """Which topics or partitions. Exactly one of the three is set, or none for a view of everything."""

    topics: tuple[str, ...] = ()
    pairs: tuple[Pair, ...] = ()
    pattern: str = ""

    def __bool__(self) -> bool:
        return bool(self.topics or self.pairs or self.pattern)


@dataclass(frozen=True)
class Limits:
    """The limits of a micro-batch; None is no limit."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_bytes: int | None = None
    max_delay_ms: int = 900_000

    @property
    def any(self) -> bool:
        return any(each is not None for each in (self.max_offsets, self.min_offsets, self.max_bytes))


@dataclass(frozen=True)
class SourceOptions:
    """All options, parsed. Picklable."""

    where: Where
    subscription: Subscription
    starting: Position | None = None
    ending: Position | None = None
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    isolation: Isolation = "read_uncommitted"
    view: View = "records"
    limits: Limits = field(default_factory=Limits)


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Check every option; the last line of a ConfigError names the wrong one and what is expected."""
    given = Given(options)
    given.check_names()
    strategy = given.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    subscription = _subscription(given)
    return SourceOptions(
        where=_where(given),
        subscription=subscription,
        starting=_position(given, "starting", "latest" if strategy == "latest" else "error"),
        ending=_position(given, "ending", "latest"),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        min_partitions=given.count("minPartitions"),
        max_records_per_partition=given.count("maxRecordsPerPartition"),
        include_headers=given.flag("includeHeaders", False),
        isolation=_isolation(given),
        view=_view(given),
        limits=_limits(given),
    )


class Given:
    """The options by their lower-case names."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): str(value) for name, value in options.items()}

    def get(self, name: str) -> str | None:
        return self._options.get(name.lower())

    def items(self) -> list[tuple[str, str]]:
        return sorted(self._options.items())

    def check_names(self) -> None:
        known = {name.lower(): name for name in (*READ_OPTIONS, *WRITE_OPTIONS)}
        ignored = {name.lower() for name in IGNORED}
        unused = []
        for name in self._options:
            if name in known or name in (MICRO_BATCH.lower(), "kafka.isolation.level"):
                continue
            if name.startswith(STORE_PREFIX):
                continue
            if name.startswith("kafka.") or name in ignored:
                unused.append(name)
                continue
            if name == "location":  # the catalog adds it to the options of a table
                raise ConfigError(
                    "CREATE TABLE … USING stratalog is not supported;"
                    " CREATE TEMPORARY VIEW … USING stratalog OPTIONS (path '…', subscribe '…') makes a view"
                )
            close = difflib.get_close_matches(name, known, 1)
            hint = f" (did you mean {known[close[0]]}?)" if close else ""
            raise bad_option(name, f"there is no such option{hint}", ", ".join(known.values()))
        if unused:
            logger.warning("stratalog reads files, not a broker: ignored %s", ", ".join(sorted(unused)))

    def flag(self, name: str, default: bool) -> bool:
        text = self.get(name)
        if text is None:
            return default
        if text.strip().lower() not in ("true", "false"):
            raise bad_option(name, f"got {text!r}", "true or false")
        return text.strip().lower() == "true"

    def count(self, name: str) -> int | None:
        text = self.get(name)
        if text is None:
            return None
        if not re.fullmatch(r"\s*[0-9]{1,18}\s*", text) or int(text) < 1:
            raise bad_option(name, f"got {text!r}", "a whole number from 1 on")
        return int(text)

    def parsed(self, name: str, parse: Callable[[str], int], expected: str) -> int | None:
        text = self.get(name)
        try:
            return None if text is None else parse(text)
        except InvalidArgumentError as error:
            raise bad_option(name, str(error), expected) from None

    def choice(self, name: str, values: tuple[str, ...], default: str) -> str:
        text = self.get(name)
        if text is None:
            return default
        if text.strip().lower() not in values:
            raise bad_option(name, f"got {text!r}", " or ".join(values))
        return text.strip().lower()


def _where(given: Given) -> Where:
    paths: list[str] = []
    if (listed := given.get("paths")) is not None:
        try:
            paths = json.loads(listed)
        except ValueError:
            raise bad_option(
                "paths", f"{listed!r} is not JSON", 'a list such as ["/data/a", "/data/b"]'
            ) from None
        if not isinstance(paths, list) or not all(isinstance(each, str) for each in paths):
            raise bad_option(
                "paths", f"{listed!r} is not a list of texts", 'a list such as ["/data/a", "/data/b"]'
            )
    if (one := given.get("path")) is not None:
        paths = [one, *paths]
    # The same directory by two names is one directory.
    named = {
        os.path.realpath(_local_path(each)): os.path.abspath(_local_path(each)) for each in reversed(paths)
    }
    unique = list(reversed(named.values()))
    archive = absolute_url((given.get("archive") or "").strip())
    if not unique and not archive:
        expected = (
            "one or several log directories such as load('/data/log'), or the option 'archive' with a URL"
        )
        raise bad_option("path", "no log given", expected)
    settings = {name: value for name, value in given.items() if name.startswith(STORE_PREFIX)}
    config = tuple((name, str(value)) for name, value in absolute_places(settings).items())
    if archive:
        config = (*(pair for pair in config if pair[0] != "log.archive.url"), ("log.archive.url", archive))
    try:
        BrokerConfig.parse(dict(config))
    except InvalidArgumentError as error:
        raise bad_option(STORE_PREFIX + "*", str(error), "the store's settings of that name") from None
    return Where(tuple(unique), archive, config)


def _local_path(text: str) -> str:
    if text.startswith("file:"):
        return "/" + text.removeprefix("file:").lstrip("/")
    if "://" in text:
        raise bad_option("path", f"{text!r} is a URL", "a local directory; a URL goes into 'archive'")
    if not text.strip():
        raise bad_option("path", "it is empty", "a log directory")
    return text


def _subscription(given: Given) -> Subscription:
    names = [name for name in SUBSCRIPTIONS if given.get(name) is not None]
    if len(names) > 1:
        raise bad_option(names[1], f"{names[0]} is given too", f"only one of {', '.join(SUBSCRIPTIONS)}")
    if not names:
        return Subscription()
    name = names[0]
    text = given.get(name) or ""
    if name == "assign":
        return Subscription(pairs=parse_assign(name, text))
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise bad_option(name, f"{text!r} is not a pattern ({error})", "a regular expression") from None
        if not text.strip():
            raise bad_option(name, "it is empty", "a regular expression")
        return Subscription(pattern=text)
    topics = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    if not topics:
        raise bad_option(name, f"{text!r} names no topic", "topics separated by commas")
    return Subscription(topics=topics)


def _position(given: Given, side: str, strategy: Strategy) -> Position | None:
    """By the precedence of Kafka's source: one timestamp, then timestamps, then offsets."""
    by_time, by_times, by_offsets = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    if (text := given.get(by_time)) is not None:
        return parse_time_option(by_time, text, strategy)
    if (text := given.get(by_times)) is not None:
        return parse_times_option(by_times, text, strategy)
    if (text := given.get(by_offsets)) is None:
        return None
    position = parse_offsets_option(by_offsets, text)
    if side == "ending" and position.kind == "earliest":
        raise bad_option(by_offsets, "'earliest' would read nothing", "latest, a time or JSON with offsets")
    if side == "ending" and position.kind == "offsets" and -2 in position.offsets.values():
        raise bad_option(by_offsets, "-2 (earliest) would read nothing", "-1 (latest) or offsets from 0 on")
    return position


def _isolation(given: Given) -> Isolation:
    name = "isolationLevel" if given.get("isolationLevel") is not None else "kafka.isolation.level"
    level = given.choice(name, ("read_uncommitted", "read_committed"), "read_uncommitted")
    return "read_committed" if level == "read_committed" else "read_uncommitted"


def _view(given: Given) -> View:
    return VIEWS[given.choice("view", tuple(VIEWS), "records")]


def _limits(given: Given) -> Limits:
    max_offsets, min_offsets = given.count("maxOffsetsPerTrigger"), given.count("minOffsetsPerTrigger")
    if max_offsets is not None and min_offsets is not None and min_offsets > max_offsets:
        raise bad_option(
            "minOffsetsPerTrigger", f"{min_offsets} is more than maxOffsetsPerTrigger", "at most that"
        )
    max_bytes = given.parsed("maxBytesPerTrigger", parse_bytes, "a size such as 64MiB")
    delay_ms = given.parsed("maxTriggerDelay", parse_duration_ms, "a duration such as 15m")
    return Limits(
        max_offsets,
        min_offsets,
        None if max_bytes is None else max(max_bytes, 1),
        Limits.max_delay_ms if delay_ms is None else delay_ms,
    )
