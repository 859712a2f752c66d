"""The settings of a topic: names, types, ranges and defaults of Kafka 4.3, and a few of our own.

Each row may be overridden per topic; its ``broker_name`` sets the default for every topic of a store.
"""

from __future__ import annotations

from stratalog.config.profiles import NO_PROFILE, PROFILE, PROFILES
from stratalog.config.settings import Setting, SettingType, Synonym, Value
from stratalog.model import LONG_MAX

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_KEPT = (
    "Kept with the topic and handed on when it moves to a Kafka cluster; "
    "one copy on one machine has no use for it."
)


def _topic(
    name: str,
    type: SettingType,
    default: Value,
    doc: str,
    *,
    broker: str | None = None,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    synonyms: tuple[Synonym, ...] = (),
    extra: tuple[int, ...] = (),
    deviation: str = "",
    ours: bool = False,
    items: str = "",
) -> Setting:
    return Setting(
        name, type, default, "topic", broker, low, high, choices, doc, synonyms, extra, deviation, ours, items
    )


TOPIC_SETTINGS: tuple[Setting, ...] = (
    _topic(
        PROFILE,
        "string",
        NO_PROFILE,
        "What kind of topic it is. Choosing a profile sets segment size and rolling as practice has them "
        "(docs/LIFECYCLE.md lists them); what is set explicitly wins. Unsetting it takes the name away, not "
        "the settings.",
        choices=(NO_PROFILE, *PROFILES),
        ours=True,
    ),
    # Rolling: when the active segment is sealed and a new one begun.
    _topic(
        "segment.bytes",
        "int",
        2**30,
        "The active segment is sealed before it would grow past this size. Retention and compaction work "
        "on whole segments: smaller ones go sooner, larger ones mean fewer files.",
        broker="log.segment.bytes",
        low=64,
        deviation=(
            "Kafka 4.3 refuses less than 1 MiB. Set 1 MiB or more on a topic that will move to a Kafka "
            "broker."
        ),
    ),
    _topic(
        "segment.ms",
        "long",
        7 * _DAY_MS,
        "The active segment is sealed when this much time has passed, full or not, idle or not.",
        broker="log.roll.ms",
        low=1,
        synonyms=(Synonym("log.roll.hours", _HOUR_MS, "int", 1),),
        deviation="Kafka rolls on the next append only; here an idle segment is sealed too.",
    ),
    _topic(
        "segment.jitter.ms",
        "long",
        0,
        "At most this much, chosen at random per segment, is taken off segment.ms so that many partitions "
        "do not roll at the same moment.",
        broker="log.roll.jitter.ms",
        low=0,
        synonyms=(Synonym("log.roll.jitter.hours", _HOUR_MS, "int", 0),),
    ),
    _topic(
        "segment.records",
        "long",
        LONG_MAX,
        "The active segment is sealed before it would hold more records than this.",
        broker="log.segment.records",
        low=1,
        ours=True,
    ),
    _topic(
        "segment.align.ms",
        "long",
        0,
        "Segments end where wall-clock windows of this length do (3600000: every full hour, UTC), judged "
        "by record time, so that a time range is a run of whole segments. 0 turns it off.",
        broker="log.segment.align.ms",
        low=0,
        ours=True,
    ),
    _topic(
        "segment.index.bytes",
        "int",
        10 * 2**20,
        "The most an offset or time index may take; a full index seals the segment.",
        broker="log.index.size.max.bytes",
        low=24,
        deviation="Kafka accepts 4, which leaves no room for an entry. Indexes are not preallocated here.",
    ),
    _topic(
        "index.interval.bytes",
        "int",
        4096,
        "An index entry is written after about this many bytes of log: less means shorter searches and "
        "larger indexes.",
        broker="log.index.interval.bytes",
        low=0,
    ),
    _topic(
        "key.index.enable",
        "boolean",
        False,
        "Sealed segments get a .keyindex file, and reads by key look only where the key is.",
        broker="log.key.index.enable",
        ours=True,
    ),
    _topic(
        "preallocate",
        "boolean",
        False,
        "Reserve a segment's full size on disk when it is made.",
        broker="log.preallocate",
        deviation="Kept with the topic; segments grow by their writes here whatever it says.",
    ),
    # Durability: when appended data is forced to the disk without being asked.
    _topic(
        "flush.messages",
        "long",
        LONG_MAX,
        "The log is synced after this many records. 1 syncs every append; the default leaves it to the "
        "operating system, and to appends with sync=True.",
        broker="log.flush.interval.messages",
        low=1,
    ),
    _topic(
        "flush.ms",
        "long",
        LONG_MAX,
        "Records are synced at most this long after they were appended.",
        broker="log.flush.interval.ms",
        low=0,
        synonyms=(Synonym("log.flush.scheduler.interval.ms"),),
    ),
    # What a record may be.
    _topic(
        "max.message.bytes",
        "int",
        2**20 + 12,
        "The largest record batch accepted, measured as it is stored (compressed where it is).",
        broker="message.max.bytes",
        low=0,
    ),
    _topic(
        "compression.type",
        "string",
        "producer",
        "The codec batches are stored with. producer keeps what the writer chose (none for records "
        "appended through the library).",
        broker="compression.type",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    _topic(
        "compression.gzip.level",
        "int",
        -1,
        "The level when the topic compresses with gzip; -1 is the codec's own default.",
        broker="compression.gzip.level",
        low=1,
        high=9,
        extra=(-1,),
    ),
    _topic(
        "compression.lz4.level",
        "int",
        9,
        "The level when the topic compresses with lz4.",
        broker="compression.lz4.level",
        low=1,
        high=17,
    ),
    _topic(
        "compression.zstd.level",
        "int",
        3,
        "The level when the topic compresses with zstd.",
        broker="compression.zstd.level",
        low=-131072,
        high=22,
    ),
    _topic(
        "message.timestamp.type",
        "string",
        "CreateTime",
        "CreateTime keeps the time a record came with; LogAppendTime stamps it with the time it was "
        "appended.",
        broker="log.message.timestamp.type",
        choices=("CreateTime", "LogAppendTime"),
    ),
    _topic(
        "message.timestamp.before.max.ms",
        "long",
        LONG_MAX,
        "With CreateTime, how far a record's time may lie in the past when it is appended.",
        broker="log.message.timestamp.before.max.ms",
        low=0,
    ),
    _topic(
        "message.timestamp.after.max.ms",
        "long",
        _HOUR_MS,
        "With CreateTime, how far a record's time may lie in the future when it is appended.",
        broker="log.message.timestamp.after.max.ms",
        low=0,
    ),
    # Retention and compaction.
    _topic(
        "cleanup.policy",
        "list",
        ("delete",),
        "What happens to old segments: delete drops them by retention.ms, retention.bytes and "
        "retention.segments; compact keeps the latest record of every key; both together do both; empty "
        "keeps everything.",
        broker="log.cleanup.policy",
        choices=("compact", "delete"),
    ),
    _topic(
        "retention.ms",
        "long",
        7 * _DAY_MS,
        "A sealed segment is deleted when its newest record is older than this. -1: no limit by time.",
        broker="log.retention.ms",
        low=-1,
        synonyms=(
            Synonym("log.retention.minutes", 60_000, "int"),
            Synonym("log.retention.hours", _HOUR_MS, "int"),
        ),
    ),
    _topic(
        "retention.bytes",
        "long",
        -1,
        "The oldest sealed segments of a partition are deleted while the rest still holds this many bytes. "
        "-1: no limit by size.",
        broker="log.retention.bytes",
        deviation=(
            "Kafka takes any negative number for no limit; it is stored as given and means the same here."
        ),
    ),
    _topic(
        "retention.segments",
        "int",
        -1,
        "The oldest sealed segments of a partition are deleted beyond this many. -1: no limit by count.",
        broker="log.retention.segments",
        low=1,
        extra=(-1,),
        ours=True,
    ),
    _topic(
        "file.delete.delay.ms",
        "long",
        60_000,
        "Deleted files stay this long, renamed to .deleted, for readers still inside them.",
        broker="log.segment.delete.delay.ms",
        low=0,
    ),
    _topic(
        "delete.retention.ms",
        "long",
        _DAY_MS,
        "How long a tombstone outlives the compaction that first met it, so that a reader from offset 0 "
        "can see it.",
        broker="log.cleaner.delete.retention.ms",
        low=0,
    ),
    _topic(
        "min.compaction.lag.ms",
        "long",
        0,
        "A record is not compacted away before it is this old.",
        broker="log.cleaner.min.compaction.lag.ms",
        low=0,
    ),
    _topic(
        "max.compaction.lag.ms",
        "long",
        LONG_MAX,
        "A record that could be compacted waits no longer than this, whatever the dirty ratio.",
        broker="log.cleaner.max.compaction.lag.ms",
        low=1,
    ),
    _topic(
        "min.cleanable.dirty.ratio",
        "double",
        0.5,
        "A partition is compacted when the part not yet compacted is more than this share of the log.",
        broker="log.cleaner.min.cleanable.ratio",
        low=0,
        high=1,
    ),
    _topic(
        "cleaner.min.segment.age.ms",
        "long",
        _HOUR_MS,
        "A segment is left alone by compaction until it has been sealed this long: compaction must not "
        "feed itself.",
        broker="log.cleaner.min.segment.age.ms",
        low=0,
        ours=True,
    ),
    # The archive.
    _topic("remote.storage.enable", "boolean", False, "Sealed segments are copied to the archive."),
    _topic(
        "local.retention.ms",
        "long",
        -2,
        "With an archive, how long an archived segment also stays here. -2: as long as retention.ms says.",
        broker="log.local.retention.ms",
        low=-2,
    ),
    _topic(
        "local.retention.bytes",
        "long",
        -2,
        "With an archive, how many bytes of a partition also stay here. -2: as many as retention.bytes says.",
        broker="log.local.retention.bytes",
        low=-2,
    ),
    _topic(
        "remote.log.copy.disable",
        "boolean",
        False,
        "The archive of this topic takes no new segments; what it has stays readable.",
    ),
    _topic(
        "remote.log.delete.on.disable",
        "boolean",
        False,
        "Turning remote.storage.enable off deletes what the archive has of this topic.",
    ),
    # Replication: nothing to do on one machine.
    _topic(
        "min.insync.replicas",
        "int",
        1,
        "How many replicas must have a record before acks=all is answered.",
        broker="min.insync.replicas",
        low=1,
        deviation=_KEPT,
    ),
    _topic(
        "unclean.leader.election.enable",
        "boolean",
        False,
        "Whether a replica that is behind may become leader.",
        broker="unclean.leader.election.enable",
        deviation=_KEPT,
    ),
    _topic(
        "leader.replication.throttled.replicas",
        "list",
        (),
        "Replicas whose outgoing replication is throttled, as partition:broker, or *.",
        deviation=_KEPT,
        items=r"[0-9]+:[0-9]+",
    ),
    _topic(
        "follower.replication.throttled.replicas",
        "list",
        (),
        "Replicas whose incoming replication is throttled, as partition:broker, or *.",
        deviation=_KEPT,
        items=r"[0-9]+:[0-9]+",
    ),
)
