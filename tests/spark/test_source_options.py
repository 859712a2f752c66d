"""Options and schemas: what is wrong is said at once, in a last line that names it and what it takes."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

from stratalog.errors import ConfigError, NotFoundError, UnknownPartitionError, UnknownTopicError
from stratalog.spark.options import parse_options
from stratalog.spark.source import StratalogSource
from tests.spark.direct import START_MS, fill, offsets, plan, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("options") / "log"
    fill(where, partitions=2, records=10)
    return where


@pytest.mark.parametrize(
    ("options", "last_line"),
    [
        ({"startingOffset": "earliest"}, "option 'startingoffset': there is no such option (did you mean"),
        ({"failOnDataLoss": "maybe"}, "option 'failOnDataLoss': got 'maybe'; expected true or false"),
        ({"minPartitions": "0"}, "option 'minPartitions': got '0'; expected a whole number from 1 on"),
        ({"startingOffsets": "yesterday"}, "option 'startingOffsets': got 'yesterday';"),
        ({"startingOffsets": "5"}, "option 'startingOffsets': '5' is a number without a"),
        ({"startingOffsets": '{"orders": 1}'}, "option 'startingOffsets': "),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "option 'startingOffsets': orders-0 has offset -3;"),
        ({"endingOffsets": "earliest"}, "option 'endingOffsets': 'earliest' would read nothing;"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "option 'endingOffsets': -2 (earliest) would read"),
        ({"startingTimestamp": "soon"}, "option 'startingTimestamp': got 'soon'; expected epoch"),
        ({"endingOffsetsByTimestamp": "{"}, "option 'endingOffsetsByTimestamp': '{' cannot be read"),
        ({"isolationLevel": "dirty"}, "option 'isolationLevel': got 'dirty'; expected read"),
        ({"view": "keys"}, "option 'view': got 'keys'; expected records or segments or batches"),
        ({"assign": '{"orders": [0]}'}, "option 'assign': subscribe is given too; expected only one of"),
        (
            {"subscribe": " , "},
            "option 'subscribe': ' , ' names no topic; expected topics separated by commas",
        ),
        ({"maxBytesPerTrigger": "many"}, "option 'maxBytesPerTrigger': 'many' is not a size"),
        ({"maxTriggerDelay": "-1"}, "option 'maxTriggerDelay': '-1' is not a duration"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"}, "option 'minOffsetsPerTrigger': 9 is"),
        ({"path": "s3://bucket/x"}, "option 'path': 's3://bucket/x' is a URL; expected a local directory"),
        ({"paths": "no json"}, "option 'paths': "),
        ({"log.archive.retries": "x"}, "option 'log.archive.*': "),
    ],
)
def test_wrong_options(options: dict[str, str], last_line: str) -> None:
    with pytest.raises(ConfigError) as error:
        StratalogSource({"path": "/data/log", "subscribe": "orders", **options})
    assert str(error.value).splitlines()[-1].startswith(last_line), str(error.value)
    assert "; expected " in str(error.value).splitlines()[-1]


def test_a_table_in_the_catalog_is_refused_with_the_way_out() -> None:
    """Spark hands the place of a table over as the option 'location'."""
    with pytest.raises(ConfigError, match="CREATE TEMPORARY VIEW"):
        StratalogSource({"path": "/data/log", "subscribe": "orders", "location": "file:/data/log"})


def test_one_of_three_must_be_given() -> None:
    with pytest.raises(ConfigError, match="option 'subscribe': no topics to read"):
        StratalogSource({"path": "/data/log"}).schema()
    with pytest.raises(ConfigError, match="option 'assign': '{' is not JSON"):
        parse_options({"path": "/data", "assign": "{"})
    with pytest.raises(ConfigError, match="option 'subscribePattern': .* is not a pattern"):
        parse_options({"path": "/data", "subscribePattern": "("})
    with pytest.raises(ConfigError, match="option 'path': no log given"):
        parse_options({"subscribe": "orders"})


def test_options_of_kafka_are_ignored_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    said = {
        "path": "/data/log",
        "subscribe": "orders",
        "kafka.bootstrap.servers": "a:9092",
        "kafka.security.protocol": "SSL",
        "groupIdPrefix": "x",
        "KAFKA.ISOLATION.LEVEL": "read_committed",
    }
    with caplog.at_level(logging.WARNING, "stratalog.spark"):
        parsed = parse_options(said)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("stratalog reads files, not a broker: ignored groupidprefix, kafka.bootstrap.")
    assert parsed.isolation == "read_committed", "that one means something here"
    assert pickle.loads(pickle.dumps(parsed)) == parsed


@pytest.mark.parametrize(
    ("schema", "last_line"),
    [
        ("value string", "schema: column 'value' is string, expected binary; cast it in the query"),
        ("value binary not null", "schema: column 'value' is NOT NULL; make it nullable"),
        ("payload binary", "schema: unknown column 'payload'; expected some of key, value, topic, partition"),
        ("value binary, value binary", "schema: column 'value' occurs twice; name each column once"),
    ],
)
def test_wrong_schemas(spark: SparkSession, log: Path, schema: str, last_line: str) -> None:
    source = StratalogSource({"path": str(log), "subscribe": "orders"})
    with pytest.raises(ConfigError) as error:
        source.reader(StructType().fromDDL(schema))  # type: ignore[arg-type]
    assert str(error.value).splitlines()[-1].startswith(last_line)


def test_load_says_it_at_once(spark: SparkSession, log: Path) -> None:
    reader = spark.read.format("stratalog").option("subscribe", "orders")
    with pytest.raises(Exception, match="option 'minPartitions': got 'few'; expected a whole number"):
        reader.option("minPartitions", "few").load(str(log))


def test_a_narrow_schema(spark: SparkSession, log: Path) -> None:
    frame = (
        spark.read.format("stratalog")
        .option("subscribe", "orders")
        .schema("offset long, value binary")
        .load(str(log))
    )
    assert frame.columns == ["offset", "value"]
    assert frame.where("offset = 3").selectExpr("decode(value, 'utf-8') as v").collect()[0].v == "value 3"


def ms(at: int) -> int:
    return START_MS + at * 1000


@pytest.mark.parametrize(
    ("options", "first", "end"),
    [
        ({}, (0, 0), (40, 40)),
        ({"startingOffsets": '{"orders": {"0": 5, "1": -2}}'}, (5, 0), (40, 40)),
        ({"endingOffsets": '{"orders": {"0": 5, "1": -1}}'}, (0, 0), (5, 40)),
        ({"startingTimestamp": ms(12)}, (12, 12), (40, 40)),
        ({"startingTimestamp": "2023-11-14T22:13:32.000Z"}, (12, 12), (40, 40)),
        ({"startingOffsets": "2023-11-14T22:13:31.5Z"}, (12, 12), (40, 40)),
        ({"endingTimestamp": ms(12)}, (0, 0), (12, 12)),
        ({"endingTimestamp": ms(9000)}, (0, 0), (40, 40)),
        ({"startingOffsetsByTimestamp": f'{{"orders": {{"0": {ms(3)}, "1": {ms(4)}}}}}'}, (3, 4), (40, 40)),
        ({"endingOffsetsByTimestamp": f'{{"orders": {{"0": {ms(3)}, "1": {ms(4)}}}}}'}, (0, 0), (3, 4)),
        ({"startingOffsets": "-10m"}, (40, 40), (40, 40)),
        ({"startingTimestamp": ms(3), "startingOffsets": "latest"}, (3, 3), (40, 40)),
    ],
)
def test_where_a_read_begins_and_ends(
    log: Path, options: dict[str, Any], first: tuple[int, int], end: tuple[int, int]
) -> None:
    found = offsets(rows(log, subscribe="orders", **options))
    assert found == [(part, at) for part in (0, 1) for at in range(first[part], end[part])]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "option 'startingOffsets': 'latest' would read nothing in a batch"),
        ({"startingOffsets": '{"orders": {"0": 1}}'}, "option 'startingOffsets': no offset for orders-1;"),
        (
            {"startingOffsets": '{"orders": {"0": 1, "1": 1, "2": 1}}'},
            "option 'startingOffsets': not read, but named: orders-2; expected every",
        ),
        ({"startingTimestamp": ms(9000)}, "option 'startingTimestamp': no record of orders-0 is at"),
    ],
)
def test_what_only_the_log_can_tell(log: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan(log, subscribe="orders", **options)
    assert str(error.value).splitlines()[-1].startswith(message)


def test_strategy_for_times_past_the_end(log: Path) -> None:
    late: dict[str, Any] = {"startingTimestamp": ms(9000), "startingOffsetsByTimestampStrategy": "latest"}
    assert rows(log, subscribe="orders", **late) == []


def test_which_topics(log: Path, tmp_path: Path) -> None:
    assert {part.partition for part in plan(log, assign='{"orders": [1]}')} == {1}
    assert len(plan(log, subscribePattern="or.*")) == 2
    assert plan(log, subscribePattern="or") == [], "the whole name must match, as in Kafka"
    with pytest.raises(UnknownTopicError, match="no topic 'nope'"):
        plan(log, subscribe="orders,nope")
    with pytest.raises(UnknownPartitionError, match="orders has no partition 7, takes 0 to 1"):
        plan(log, assign='{"orders": [7]}')
    with pytest.raises(NotFoundError, match="option 'path': no log directory at"):
        plan(tmp_path / "missing", subscribe="orders")


def test_headers_only_when_asked_for(log: Path) -> None:
    assert "headers" not in rows(log, subscribe="orders")[0]
    assert rows(log, subscribe="orders", includeHeaders="true")[0]["headers"] is None
