"""The settings of a store as a whole: names, types and defaults of Kafka 4.3's broker, and some of ours."""

from __future__ import annotations

from stratalog.config.settings import Setting, SettingType, Synonym, Value


def _broker(
    name: str,
    type: SettingType,
    default: Value,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    synonyms: tuple[Synonym, ...] = (),
    deviation: str = "",
    ours: bool = False,
) -> Setting:
    return Setting(name, type, default, "broker", name, low, high, (), doc, synonyms, (), deviation, ours)


BROKER_SETTINGS: tuple[Setting, ...] = (
    _broker("num.partitions", "int", 1, "How many partitions a topic gets when nobody says.", low=1),
    _broker(
        "num.recovery.threads.per.data.dir",
        "int",
        2,
        "Threads per log directory that recover partitions when a store is opened after a crash.",
        low=1,
    ),
    _broker(
        "log.max.open.files",
        "int",
        0,
        "The most file handles the store keeps open; segments beyond it are opened when they are read. 0: "
        "half of what the process may open.",
        low=0,
        ours=True,
    ),
    _broker(
        "log.flush.offset.checkpoint.interval.ms",
        "int",
        60_000,
        "How often recovery-point-offset-checkpoint is written.",
        low=0,
    ),
    _broker(
        "log.flush.start.offset.checkpoint.interval.ms",
        "int",
        60_000,
        "How often log-start-offset-checkpoint is written.",
        low=0,
    ),
    _broker(
        "log.retention.check.interval.ms",
        "long",
        300_000,
        "How often the janitor looks for segments to delete.",
        low=1,
    ),
    _broker(
        "producer.id.expiration.ms",
        "int",
        86_400_000,
        "An idempotent producer that has been silent this long, with no transaction open, is forgotten.",
        low=1,
    ),
    _broker("log.cleaner.enable", "boolean", True, "Whether compaction runs at all."),
    _broker("log.cleaner.threads", "int", 1, "Partitions compacted at the same time.", low=0),
    _broker(
        "log.cleaner.dedupe.buffer.size",
        "long",
        128 * 2**20,
        "Memory for the keys of a compaction, all threads together. More keys than fit mean more passes, "
        "not more memory.",
        low=2**20,
        synonyms=(Synonym("cleaner.dedupe.buffer.bytes"),),
        deviation=(
            "Kafka has no lower limit here but fails at start-up when there is too little for a thread."
        ),
    ),
    _broker(
        "log.cleaner.io.max.bytes.per.second",
        "double",
        1.7976931348623157e308,
        "The most that compaction reads and writes per second, all threads together.",
        low=0,
    ),
    _broker(
        "log.cleaner.backoff.ms",
        "long",
        15_000,
        "How long compaction sleeps when there is nothing to compact.",
        low=0,
    ),
    _broker(
        "log.cleaner.max.time.ratio",
        "double",
        0.5,
        "Compaction runs at most this share of the time.",
        low=0,
        high=1,
        synonyms=(Synonym("cleaner.max.time.ratio"),),
        ours=True,
    ),
    _broker(
        "log.archive.url",
        "string",
        "",
        "Where topics with remote.storage.enable keep their archive: a directory, or s3://, gs:// or az:// "
        "with bucket and prefix (credentials from the environment). Empty: a directory beside the first log "
        "directory, named like it with .archive behind.",
        ours=True,
    ),
    _broker(
        "log.archive.cache.bytes",
        "long",
        256 * 2**20,
        "The most that blocks of archived segments take, once fetched.",
        low=8 * 2**20,
        ours=True,
    ),
    _broker(
        "log.archive.cache.dir",
        "string",
        "",
        "A directory for those blocks, outside the log directories. Empty: they are kept in memory.",
        ours=True,
    ),
    _broker(
        "log.archive.timeout.ms",
        "int",
        60_000,
        "How long one request to the object store may take.",
        low=1,
        ours=True,
    ),
    _broker(
        "log.archive.retries",
        "int",
        5,
        "How often a request that the object store failed to answer is sent again.",
        low=0,
        ours=True,
    ),
    _broker(
        "log.archive.threads",
        "int",
        4,
        "Requests of one upload, verification or read-ahead that are under way at the same time.",
        low=1,
        high=64,
        ours=True,
    ),
)
