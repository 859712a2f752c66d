"""The table of settings: names, types, ranges and defaults of Kafka 4.3, and a few of our own.

Pure data, read once. A setting is a paragraph whose further lines are indented:

    <name> <type> <default> [store=…] [min=…] [max=…] [or=…] [one=…|…] [also=…] [items=…] [ours]
        what it does
        Kafka: how it differs there

``store`` is the name that sets the default for every topic of a store, ``or`` a value allowed outside min and
max, ``one`` the valid values, ``also`` further store names, with ``:unit:minimum`` when they count another
unit of time, ``items`` a pattern for the items of a list; ``ours`` means that Kafka does not have it. The
default ``max`` is the largest long, ``-`` is empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from stratalog.config.settings import Scope, Setting, Synonym, parse_value
from stratalog.config.units import parse_duration_ms
from stratalog.model import LONG_MAX

PROFILE = "stratalog.profile"
NO_PROFILE = "none"

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS


@dataclass(frozen=True, slots=True)
class Profile:
    """The usual segment size and rolling for a kind of topic: a starting point.

    Its settings become the topic's own when it is chosen, explicit settings win, and its name stays with the
    topic as ``stratalog.profile``.
    """

    name: str
    settings: Mapping[str, int | bool]
    doc: str


_ALL = (
    Profile(
        "streaming",
        {"segment.bytes": 3 * 2**29, "segment.ms": _DAY_MS, "segment.jitter.ms": _HOUR_MS},
        "A steady flow read from front to back: few, large files (1.5 GiB), sealed once a day at the "
        "latest, not all partitions at the same moment.",
    ),
    Profile(
        "time-series",
        {"segment.bytes": 256 * 2**20, "segment.align.ms": _HOUR_MS, "segment.ms": 2 * _HOUR_MS},
        "Measurements read by time: 256 MiB, cut where hours end, so that a time range is a run of "
        "whole segments and old hours go one by one.",
    ),
    Profile(
        "event-sourcing",
        {
            "segment.bytes": 512 * 2**20,
            "segment.ms": 30 * _DAY_MS,
            "retention.ms": -1,
            "key.index.enable": True,
        },
        "The events are the truth: none expires, and the history of a key is found without a scan; "
        "512 MiB, so that compacting or archiving a segment stays a small piece of work.",
    ),
    Profile(
        "queue",
        {"segment.bytes": 2**30, "segment.ms": _DAY_MS},
        "Work to be done and forgotten: 1 GiB, sealed once a day, so that consumed records free their "
        "space the day their retention ends.",
    ),
)
PROFILES: Mapping[str, Profile] = MappingProxyType({profile.name: profile for profile in _ALL})


def with_profile(config: Mapping[str, object]) -> dict[str, object]:
    """Add the settings of the profile that ``config`` names; its own settings win."""
    profile = PROFILES.get(str(config.get(PROFILE)))
    return {**profile.settings, **config} if profile is not None else dict(config)


_KEPT = (
    "Kept with the topic and handed on when it moves to a Kafka cluster; "
    "one copy on one machine has no use for it."
)

_TOPIC = f"""
stratalog.profile string none one={NO_PROFILE}|{"|".join(PROFILES)} ours
    What kind of topic it is. Choosing a profile sets the usual segment size and rolling for it
    (docs/LIFECYCLE.md lists them); what is set explicitly wins. Unsetting it takes the name away, not the
    settings.
# Rolling: when the active segment is sealed and a new one begun.
segment.bytes int 1GiB store=log.segment.bytes min=64
    The active segment is sealed before it would grow past this size. Retention and compaction work on whole
    segments: smaller ones go sooner, larger ones mean fewer files.
    Kafka: Kafka 4.3 refuses less than 1 MiB. Set 1 MiB or more on a topic that will move to a Kafka broker.
segment.ms long 7d store=log.roll.ms min=1 also=log.roll.hours:1h:1
    The active segment is sealed when this much time has passed, full or not, idle or not.
    Kafka: Kafka rolls on the next append only; here an idle segment is sealed too.
segment.jitter.ms long 0 store=log.roll.jitter.ms min=0 also=log.roll.jitter.hours:1h:0
    At most this much, chosen at random per segment, is taken off segment.ms so that many partitions do not
    roll at the same moment.
segment.records long max store=log.segment.records min=1 ours
    The active segment is sealed before it would hold more records than this.
segment.align.ms long 0 store=log.segment.align.ms min=0 ours
    Segments end where wall-clock windows of this length do (3600000: every full hour, UTC), judged by
    record time, so that a time range is a run of whole segments. 0 turns it off.
segment.index.bytes int 10MiB store=log.index.size.max.bytes min=24
    The most an offset or time index may take; a full index seals the segment.
    Kafka: Kafka accepts 4, which leaves no room for an entry. Indexes are not preallocated here.
index.interval.bytes int 4096 store=log.index.interval.bytes min=0
    An index entry is written after about this many bytes of log: less means shorter searches and larger
    indexes.
key.index.enable boolean false store=log.key.index.enable ours
    Sealed segments get a .keyindex file, and reads by key look only where the key is.
preallocate boolean false store=log.preallocate
    Reserve a segment's full size on disk when it is made.
    Kafka: Kept with the topic; segments grow by their writes here whatever it says.
# Durability: when appended data is forced to the disk without being asked.
flush.messages long max store=log.flush.interval.messages min=1
    The log is synced after this many records. 1 syncs every append; the default leaves it to the operating
    system, and to appends with sync=True.
flush.ms long max store=log.flush.interval.ms min=0 also=log.flush.scheduler.interval.ms
    Records are synced at most this long after they were appended.
# What a record may be.
max.message.bytes int 1048588 store=message.max.bytes min=0
    The largest record batch accepted, measured as it is stored (compressed where it is).
compression.type string producer store=compression.type one=uncompressed|zstd|lz4|snappy|gzip|producer
    The codec batches are stored with. producer keeps what the writer chose (none for records appended
    through the library).
compression.gzip.level int -1 store=compression.gzip.level min=1 max=9 or=-1
    The level when the topic compresses with gzip; -1 is the codec's own default.
compression.lz4.level int 9 store=compression.lz4.level min=1 max=17
    The level when the topic compresses with lz4.
compression.zstd.level int 3 store=compression.zstd.level min=-131072 max=22
    The level when the topic compresses with zstd.
message.timestamp.type string CreateTime store=log.message.timestamp.type one=CreateTime|LogAppendTime
    CreateTime keeps the time a record came with; LogAppendTime stamps it with the time it was appended.
message.timestamp.before.max.ms long max store=log.message.timestamp.before.max.ms min=0
    With CreateTime, how far a record's time may lie in the past when it is appended.
message.timestamp.after.max.ms long 1h store=log.message.timestamp.after.max.ms min=0
    With CreateTime, how far a record's time may lie in the future when it is appended.
# Retention and compaction.
cleanup.policy list delete store=log.cleanup.policy one=compact|delete
    What happens to old segments: delete drops them by retention.ms, retention.bytes and retention.segments;
    compact keeps the latest record of every key; both together do both; empty keeps everything.
retention.ms long 7d store=log.retention.ms min=-1 also=log.retention.minutes:1m,log.retention.hours:1h
    A sealed segment is deleted when its newest record is older than this. -1: no limit by time.
retention.bytes long -1 store=log.retention.bytes
    The oldest sealed segments of a partition are deleted while the rest still holds this many bytes. -1: no
    limit by size.
    Kafka: Kafka takes any negative number for no limit; it is stored as given and means the same here.
retention.segments int -1 store=log.retention.segments min=1 or=-1 ours
    The oldest sealed segments of a partition are deleted beyond this many. -1: no limit by count.
file.delete.delay.ms long 60s store=log.segment.delete.delay.ms min=0
    Deleted files stay this long, renamed to .deleted, for readers still inside them.
delete.retention.ms long 1d store=log.cleaner.delete.retention.ms min=0
    How long a tombstone is kept after the first compaction that processed it, so that a reader that started
    at offset 0 sees it.
min.compaction.lag.ms long 0 store=log.cleaner.min.compaction.lag.ms min=0
    A record is not compacted away before it is this old.
max.compaction.lag.ms long max store=log.cleaner.max.compaction.lag.ms min=1
    A record that could be compacted waits no longer than this, whatever the dirty ratio.
min.cleanable.dirty.ratio double 0.5 store=log.cleaner.min.cleanable.ratio min=0 max=1
    A partition is compacted when the part not yet compacted is more than this share of the log.
cleaner.min.segment.age.ms long 1h store=log.cleaner.min.segment.age.ms min=0 ours
    A segment is left alone by compaction until it has been sealed this long: compaction must not feed
    itself.
# The archive.
remote.storage.enable boolean false
    Sealed segments are copied to the archive.
local.retention.ms long -2 store=log.local.retention.ms min=-2
    With an archive, how long an archived segment also stays here. -2: as long as retention.ms says.
local.retention.bytes long -2 store=log.local.retention.bytes min=-2
    With an archive, how many bytes of a partition also stay here. -2: as many as retention.bytes says.
remote.log.copy.disable boolean false
    The archive of this topic takes no new segments; what it has stays readable.
remote.log.delete.on.disable boolean false
    Turning remote.storage.enable off deletes what the archive has of this topic.
# Replication: nothing to do on one machine.
min.insync.replicas int 1 store=min.insync.replicas min=1
    How many replicas must have a record before acks=all is answered.
    Kafka: {_KEPT}
unclean.leader.election.enable boolean false store=unclean.leader.election.enable
    Whether a replica that is behind may become leader.
    Kafka: {_KEPT}
leader.replication.throttled.replicas list - items=[0-9]+:[0-9]+
    Replicas whose outgoing replication is throttled, as partition:broker, or *.
    Kafka: {_KEPT}
follower.replication.throttled.replicas list - items=[0-9]+:[0-9]+
    Replicas whose incoming replication is throttled, as partition:broker, or *.
    Kafka: {_KEPT}
"""

_STORE = """
num.partitions int 1 min=1
    The number of partitions of a topic that is created without one.
num.recovery.threads.per.data.dir int 2 min=1
    Threads per log directory that recover partitions when a store is opened after a crash.
log.max.open.files int 0 min=0 ours
    The most file handles the store keeps open; segments beyond it are opened when they are read. 0: half of
    what the process may open.
log.flush.offset.checkpoint.interval.ms int 60s min=0
    How often recovery-point-offset-checkpoint is written.
log.flush.start.offset.checkpoint.interval.ms int 60s min=0
    How often log-start-offset-checkpoint is written.
log.retention.check.interval.ms long 300s min=1
    How often the janitor looks for segments to delete.
producer.id.expiration.ms int 1d min=1
    An idempotent producer that has been silent this long, with no transaction open, is forgotten.
log.cleaner.enable boolean true
    Whether compaction runs at all.
log.cleaner.threads int 1 min=0
    Partitions compacted at the same time.
log.cleaner.dedupe.buffer.size long 128MiB min=1048576 also=cleaner.dedupe.buffer.bytes
    Memory for the keys of a compaction, all threads together. More keys than fit mean more passes, not more
    memory.
    Kafka: Kafka has no lower limit here but fails at start-up when there is too little for a thread.
log.cleaner.io.max.bytes.per.second double 1.7976931348623157E308 min=0
    The most that compaction reads and writes per second, all threads together.
log.cleaner.backoff.ms long 15s min=0
    How long compaction sleeps when there is nothing to compact.
log.cleaner.max.time.ratio double 0.5 min=0 max=1 also=cleaner.max.time.ratio ours
    Compaction runs at most this share of the time.
log.archive.url string - ours
    Where topics with remote.storage.enable keep their archive: a directory, or s3://, gs:// or az:// with
    bucket and prefix (credentials from the environment). Empty: a directory beside the first log directory,
    named like it with .archive behind.
log.archive.cache.bytes long 256MiB min=8388608 ours
    The most that blocks of archived segments take, once fetched.
log.archive.cache.dir string - ours
    A directory for those blocks, outside the log directories. Empty: they are kept in memory.
log.archive.timeout.ms int 60s min=1 ours
    How long one request to the object store may take.
log.archive.retries int 5 min=0 ours
    How often a request that the object store failed to answer is sent again.
log.archive.threads int 4 min=1 max=64 ours
    Requests of one upload, verification or read-ahead that are under way at the same time.
"""


def _rows(text: str, scope: Scope) -> tuple[Setting, ...]:
    paragraphs = re.split(r"\n(?! )", re.sub(r"^#.*\n", "", text.strip("\n"), flags=re.MULTILINE))
    return tuple(_row(paragraph, scope) for paragraph in paragraphs)


def _row(text: str, scope: Scope) -> Setting:
    head, _, rest = text.partition("\n    ")
    name, kind, default, *words = head.split()
    doc, _, deviation = " ".join(rest.split()).partition(" Kafka: ")
    facts = dict(word.split("=", 1) for word in words if "=" in word)
    setting = Setting(
        name=name,
        type=kind,  # type: ignore[arg-type]  # a test compares it with Kafka's
        default="",
        scope=scope,
        broker_name=name if scope == "broker" else facts.get("store"),
        minimum=_number(facts.get("min")),
        maximum=_number(facts.get("max")),
        choices=tuple(facts["one"].split("|")) if "one" in facts else (),
        doc=doc,
        synonyms=tuple(map(_synonym, facts["also"].split(","))) if "also" in facts else (),
        extra=(int(facts["or"]),) if "or" in facts else (),
        deviation=deviation,
        ours="ours" in words,
        item_pattern=facts.get("items", ""),
    )
    value = LONG_MAX if default == "max" else "" if default == "-" else default
    return replace(setting, default=parse_value(setting, value))


def _number(text: str | None) -> float | None:
    return None if text is None else int(text)


def _synonym(text: str) -> Synonym:
    name, *unit = text.split(":")
    if not unit:
        return Synonym(name)
    return Synonym(name, parse_duration_ms(unit[0]), "int", int(unit[1]) if len(unit) > 1 else None)


TOPIC_SETTINGS = _rows(_TOPIC, "topic")
BROKER_SETTINGS = _rows(_STORE, "broker")
SETTINGS = TOPIC_SETTINGS + BROKER_SETTINGS
