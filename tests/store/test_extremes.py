"""Every setting and every timestamp at its extremes, through the whole life of a topic.

The values come from the table of settings itself: its bounds, what lies just inside them, and what lies just
outside, which is refused by name. Whatever was acknowledged is read back as it was told, by every door,
before and after rolling, retention, compaction, altering and reopening; nothing but a typed error comes out.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

import stratalog
from stratalog import Record, Store, Topic
from stratalog.archive.objects import DirectoryObjects
from stratalog.config import BrokerConfig, canonical
from stratalog.config.settings import INT_MAX, Setting, Value
from stratalog.config.tables import BROKER_SETTINGS, TOPIC_SETTINGS
from stratalog.errors import ConfigError, InvalidRecordError, RecordTooLargeError, StratalogError
from stratalog.fs import MemoryFileSystem
from stratalog.model import LONG_MAX
from stratalog.testing import ManualClock

ROOT = "/data/log"
HOUR_MS = 3_600_000
START_MS = ManualClock().now_ms()
ANY_TIME = {"message.timestamp.after.max.ms": LONG_MAX, "message.timestamp.before.max.ms": LONG_MAX}
TYPES = {"int": (-(2**31), INT_MAX), "long": (-(2**63), LONG_MAX), "double": (-1.7e308, 1.7e308)}

TIMESTAMPS = (
    None, -1, 0, 1, 2**31 - 1, 2**31, 2**53, 2**53 + 1, START_MS, LONG_MAX - START_MS, LONG_MAX - HOUR_MS,
    LONG_MAX - 1, LONG_MAX,
)  # fmt: skip
NO_TIMES = (-2, -START_MS, -(2**31) - 1, -(2**53), -(2**63) + 1, -(2**63))
NOT_64_BITS = (2**63, -(2**63) - 1, 2**64, 2**200)


def inside(setting: Setting) -> list[Any]:
    """The bounds, what lies just inside them, and every value that is on its own."""
    if setting.type == "boolean":
        return [False, True]
    if setting.type == "list" and setting.item_pattern:
        return [(), ("*",), ("0:0",), (f"{LONG_MAX}:{LONG_MAX}", "0:0")]
    if setting.type == "list":
        return [(), setting.choices, *[(each,) for each in setting.choices]]
    if setting.type == "string":
        return [*(setting.choices or (setting.default,))]
    low, high = bounds(setting)
    step = 1 if setting.type != "double" else (0.25 if setting.maximum is not None else 1.0)
    found = [low, low + step, high - step, high, *setting.extra]
    if low < 0 < high:
        found += [-1, 0, 1]
    return list(dict.fromkeys(found))


def outside(setting: Setting) -> list[object]:
    """What lies just outside, and what the type cannot hold."""
    if setting.type == "boolean":
        return ["yes", 2, ""]
    if setting.type == "list":
        return [f"{','.join(setting.choices)},neither"]
    if setting.type == "string":
        return ["neither"] if setting.choices else [7]
    low, high = bounds(setting)
    small, large = TYPES[setting.type]
    below = [low - 1] if setting.minimum is not None and low - 1 not in setting.extra else []
    above = [high + 1] if setting.maximum is not None or setting.type != "double" else []
    return [
        *below,
        *above,
        *([large * 2, small * 2] if setting.type != "double" else [float("inf"), float("nan")]),
    ]


def bounds(setting: Setting) -> tuple[Any, Any]:
    small, large = TYPES[setting.type]
    return (
        small if setting.minimum is None else setting.minimum,
        large if setting.maximum is None else setting.maximum,
    )


def cases(settings: tuple[Setting, ...]) -> list[Any]:
    return [
        pytest.param(setting, value, id=f"{setting.name}={value}")
        for setting in settings
        for value in inside(setting)
    ]


def synonyms() -> list[tuple[Setting, str, Setting]]:
    """Every other name of a broker's setting, and a setting with the bounds that hold under it."""
    return [
        (
            setting,
            synonym.name,
            setting
            if synonym.type is None
            else replace(setting, type=synonym.type, minimum=synonym.minimum, maximum=None, extra=()),
        )
        for setting in (*BROKER_SETTINGS, *TOPIC_SETTINGS)
        for synonym in setting.synonyms
    ]


@dataclass
class Life:
    """A store in memory, with an archive, and what it acknowledged."""

    config: Mapping[str, object] | None = None
    told: dict[int, tuple[bytes | None, bytes | None, int]] = field(default_factory=dict)
    refused: list[StratalogError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.fs = MemoryFileSystem(clock=self.clock.now_ns)
        self.objects = DirectoryObjects(MemoryFileSystem(clock=self.clock.now_ns), "/cloud")
        self.serial = itertools.count()
        self.open()

    def open(self) -> Store:
        self.store = stratalog.open(
            ROOT, self.config, fs=self.fs, clock=self.clock, objects=self.objects, background=False
        )
        return self.store

    def beside(self) -> Store:
        return stratalog.open(ROOT, read_only=True, fs=self.fs, clock=self.clock, objects=self.objects)

    @property
    def topic(self) -> Topic:
        return self.store.topic("t")

    def note(self, offset: int, record: Record, timestamp: int | None) -> None:
        assert offset not in self.told
        assert timestamp is not None
        self.told[offset] = (record.value, record.key, timestamp)

    def append(self, timestamp: int | None, *, tombstone: bool = False) -> None:
        """One record, which is acknowledged or refused."""
        number = next(self.serial)
        value, key = (None if tombstone else b"v%d" % number), b"k%d" % (number % 3)
        kept = self.clock.now_ms() if timestamp is None or self.topic.config.log_append_time else timestamp
        record = Record(value, key, (), timestamp)
        try:
            where = self.topic.append(value, key, (), timestamp)
            assert where.timestamp == kept
            self.note(where.offset, record, kept)
        except (InvalidRecordError, RecordTooLargeError) as error:
            self.refused.append(error)

    def fill(self, step: int = 1) -> None:
        """Records of every time, upwards or (-1) downwards, and all of them at once."""
        for number, timestamp in enumerate(TIMESTAMPS[::step]):
            self.append(timestamp, tombstone=number % 5 == 4)
        rows = [
            Record(b"m%d" % at, b"k%d" % (at % 3), (), each) for at, each in enumerate(TIMESTAMPS[::step])
        ]
        self.many(rows, rows)
        timed = [row for row in rows if row.timestamp is not None]
        columns = {
            "key": pa.array([row.key for row in timed], pa.binary()),
            "value": pa.array([row.value for row in timed], pa.binary()),
            "timestamp": pa.array([row.timestamp for row in timed], pa.int64()).cast(
                pa.timestamp("ms", "UTC")
            ),
        }
        self.many(pa.table(columns), timed)
        self.topic.flush()

    def many(self, given: Any, rows: list[Record]) -> None:
        """All of them in one call: the batches span as much time as there is."""
        stamped = self.topic.config.log_append_time
        try:
            (placed,) = self.topic.append_many(given)
        except (InvalidRecordError, RecordTooLargeError) as error:
            self.refused.append(error)
            return
        for at, row in enumerate(rows):
            at_ms = self.clock.now_ms() if stamped or row.timestamp is None else row.timestamp
            self.note(placed.offset + at, row, at_ms)

    def found(self, store: Store | None = None) -> dict[int, tuple[bytes | None, bytes | None, int]]:
        topic = (store or self.store).topic("t")
        return {each.offset: (each.value, each.key, each.timestamp or 0) for each in topic.read()}

    def check(self, *, thinned: bool = False) -> None:
        """Reading gives what was told: all of it, or where records may go, nothing else."""
        rows = self.found()
        if not thinned:
            assert rows == self.told
        assert rows.items() <= self.told.items()

    def check_doors(self, *, thinned: bool) -> None:
        """The same by scan, by offset, by key, by time, and for a reader beside."""
        self.check(thinned=thinned)
        rows = self.found()
        table = self.topic.scan().read_all()
        columns = [table.column(name).to_pylist() for name in ("offset", "value", "key")]
        times = table.column("timestamp").cast(pa.int64()).to_pylist()
        assert {o: (v, k, t) for o, v, k, t in zip(*columns, times, strict=True)} == rows
        for offset, (value, key, timestamp) in list(rows.items())[::7]:
            record = self.topic.at(offset)
            assert record is not None
            assert (record.value, record.key, record.timestamp) == (value, key, timestamp)
        for key in {row[1] for row in rows.values()}:
            newest = max(at for at, row in rows.items() if row[1] == key)
            found = self.topic.get(key or b"")
            assert (None if found is None else found.value) == rows[newest][0]
        for since in (0, 2**53, LONG_MAX - HOUR_MS, LONG_MAX):
            wanted = [at for at, row in rows.items() if row[2] >= since]
            assert self.topic.offset_for_time(0, since) == (min(wanted) if wanted else None)
            some = self.topic.scan(since=since, columns=["offset"]).read_all()
            assert some.column("offset").to_pylist() == wanted
            some = self.topic.scan(until=since, columns=["offset"]).read_all()
            assert some.column("offset").to_pylist() == [at for at, row in rows.items() if row[2] < since]
        with self.beside() as beside:
            assert self.found(beside) == rows

    def look_after(self) -> None:
        """Everything that works on whole segments."""
        self.topic.roll()
        self.store.janitor(preview=True)
        self.store.lifecycle()
        self.store.retain()
        self.store.compact("t") if self.topic.config.compact else None
        self.store.archive("t") if self.topic.config.remote_storage_enable else None
        self.store.janitor()
        self.clock.advance(HOUR_MS)
        self.store.tick()

    def reopen(self) -> None:
        self.store.close()
        verified(self)
        self.open()

    def live(self) -> None:
        """A whole life; after the first look after it records may be gone, but none is wrong."""
        self.fill()
        self.check()
        self.look_after()
        self.check(thinned=True)
        self.reopen()
        self.fill(-1)
        self.check_doors(thinned=True)
        self.look_after()
        self.reopen()
        self.check(thinned=True)
        self.store.close()


def verified(life: Life) -> None:
    with life.beside() as store:
        report = stratalog.verify(store)
        assert report.ok, report


TAKES_FOR_EVER = {
    ("log.cleaner.io.max.bytes.per.second", "1.0"),  # a byte a second, as it was told
    *(("num.partitions", str(count)) for count in (2, INT_MAX - 1, INT_MAX)),
}
BASE: dict[str, object] = {
    **ANY_TIME,
    "retention.ms": -1,
    "segment.bytes": 400,
    "index.interval.bytes": 50,
    "key.index.enable": True,
}
TIERED: dict[str, object] = {"remote.storage.enable": True, "local.retention.ms": 1}
COMPACTED: dict[str, object] = {
    "cleanup.policy": "compact,delete",
    "min.cleanable.dirty.ratio": 0,
    "cleaner.min.segment.age.ms": 0,
}


def usable(own: Mapping[str, object]) -> bool:
    """Two settings may exclude each other."""
    least, most = own.get("min.compaction.lag.ms", 0), own.get("max.compaction.lag.ms", LONG_MAX)
    assert isinstance(least, int)
    assert isinstance(most, int)
    return least <= most


@pytest.mark.parametrize(("setting", "value"), cases(TOPIC_SETTINGS))
def test_a_topic_lives_with_every_value_of_every_setting(setting: Setting, value: object) -> None:
    """Created with it; what is about the archive with records in it."""
    life = Life()
    tiered = setting.name.startswith(("remote.", "local."))
    own = {**BASE, **(TIERED if tiered else COMPACTED), setting.name: value}
    if not usable(own):
        with pytest.raises(ConfigError, match=setting.name):
            life.store.create_topic("t", 1, own)
        assert life.store.topics() == []
        life.store.close()
        return
    life.store.create_topic("t", 1, own)
    life.live()


@pytest.mark.parametrize(("setting", "value"), cases(TOPIC_SETTINGS))
def test_a_topic_is_altered_to_every_value_and_back(setting: Setting, value: object) -> None:
    """With records in it, and the store opened again in between."""
    life = Life()
    life.store.create_topic("t", 1, {**BASE, **COMPACTED})
    life.fill()
    if usable({**BASE, **COMPACTED, setting.name: value}):
        life.store.alter_topic("t", {setting.name: value})
    life.fill(-1)
    life.check()
    life.reopen()
    life.look_after()
    life.store.alter_topic("t", {setting.name: None})
    life.store.alter_topic("t", {setting.name: BASE.get(setting.name)})
    life.append(START_MS)
    life.check_doors(thinned=True)
    life.reopen()
    life.store.close()


@pytest.mark.parametrize(("setting", "value"), cases((*BROKER_SETTINGS, *TOPIC_SETTINGS)))
def test_a_store_opens_with_every_value_of_every_setting(setting: Setting, value: Value) -> None:
    """The store's own settings, and its defaults for topics; the value is remembered by the next open."""
    name = setting.broker_name
    if name is None:
        return
    if (name, value) == ("log.retention.ms", 0):  # Kafka takes it from a topic and not from a broker
        with pytest.raises(ConfigError, match=name):
            Life({name: value})
        return
    life = Life({name: value})
    if (name, canonical(value)) in TAKES_FOR_EVER:
        life.store.close()
        return
    live_by_default(life, setting)
    life.config = None  # what was kept with the store
    life.reopen()
    assert life.store.config.get(name) == BrokerConfig.parse({name: value}).get(name)
    life.append(START_MS)
    life.check(thinned=True)
    life.store.close()


def live_by_default(life: Life, setting: Setting) -> None:
    """A topic that has everything but this from the test."""
    own = {key: each for key, each in (BASE | COMPACTED).items() if key != setting.name}
    life.store.create_topic("t", 1, own)
    life.fill()
    life.check()
    life.look_after()
    life.check(thinned=True)


@pytest.mark.parametrize(
    ("setting", "name", "value"),
    [
        pytest.param(setting, name, value, id=f"{name}={value}")
        for setting, name, alike in synonyms()
        for value in inside(alike)
    ],
)
def test_a_store_opens_with_every_value_of_every_synonym(setting: Setting, name: str, value: Value) -> None:
    if value == 0 and setting.name == "retention.ms":
        with pytest.raises(ConfigError, match=name):
            Life({name: value})
        return
    life = Life({name: value})
    live_by_default(life, setting)
    life.reopen()
    life.check(thinned=True)
    life.store.close()


@pytest.mark.parametrize("setting", TOPIC_SETTINGS, ids=lambda setting: setting.name)
def test_what_lies_outside_is_refused_by_name_and_changes_nothing(setting: Setting) -> None:
    life = Life()
    life.store.create_topic("t", 1, BASE)
    before = life.store.describe_topic("t")
    for value in outside(setting):
        for act in (
            lambda: life.store.create_topic("u", 1, {setting.name: value}),  # noqa: B023
            lambda: life.store.alter_topic("t", {setting.name: value}),  # noqa: B023
        ):
            with pytest.raises(ConfigError) as caught:
                act()
            assert setting.name in str(caught.value)
    assert life.store.topics() == ["t"]
    assert life.store.describe_topic("t") == before
    life.reopen()
    assert life.store.describe_topic("t") == before
    life.store.close()


NAMED = [(each.broker_name, each) for each in (*BROKER_SETTINGS, *TOPIC_SETTINGS) if each.broker_name]
NAMED += [(name, alike) for _, name, alike in synonyms()]


@pytest.mark.parametrize(("name", "setting"), NAMED, ids=[name for name, _ in NAMED])
def test_a_store_is_not_opened_with_what_lies_outside(name: str, setting: Setting) -> None:
    fs = MemoryFileSystem()
    for value in outside(setting):
        with pytest.raises(ConfigError) as caught:
            stratalog.open(ROOT, {name: value}, fs=fs, background=False)
        assert name in str(caught.value)


@pytest.mark.parametrize("timestamp", [*NO_TIMES, *NOT_64_BITS])
@pytest.mark.parametrize("codec", ["producer", "zstd"])
def test_what_is_no_time_is_refused_and_nothing_is_written(timestamp: int, codec: str) -> None:
    life = Life()
    topic = life.store.create_topic("t", 1, {**BASE, "compression.type": codec})
    life.append(0)
    record = Record(b"v", b"k", (), timestamp)
    with pytest.raises(InvalidRecordError):
        topic.append(b"v", b"k", (), timestamp)
    with pytest.raises(InvalidRecordError):
        topic.append_many([record])
    with pytest.raises(InvalidRecordError):
        topic.append_many([Record(b"good"), record])
    if timestamp in NO_TIMES:
        with pytest.raises(InvalidRecordError):
            topic.append_many(pa.table({"value": [b"v"], "timestamp": pa.array([timestamp], pa.int64())}))
    life.check()
    if timestamp in NO_TIMES:
        assert topic.offset_for_time(0, timestamp) == 0
    assert [each.offset for each in topic.read()] == sorted(life.told)
    life.append(1)
    life.reopen()
    life.check_doors(thinned=False)
    life.store.close()
