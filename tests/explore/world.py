"""A small store in memory, the operations that are run against each other, and what must hold afterwards.

Every operation notes what it is about to ask for and what was acknowledged. `World.check` judges a store by
that: acknowledged records are at their offsets, nothing else is there, nothing deleted comes back, the files
are in order. It serves for the store that goes on, for one that is opened again, and for what a kill or a
power cut leaves in the middle.
"""

from __future__ import annotations

import errno
import hashlib
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import stratalog
from stratalog import OffsetSpec
from stratalog.archive.objects import DirectoryObjects
from stratalog.errors import (
    ClosedError,
    CorruptionError,
    InvalidArgumentError,
    LogDirOfflineError,
    OffsetOutOfRangeError,
    ReadOnlyError,
    StorageError,
    UnknownTopicError,
)
from stratalog.fs import SurvivorMode
from stratalog.log.check.verify import verify_partition
from stratalog.store.admin.admin import run_command
from stratalog.store.store import Store
from stratalog.testing import Fact, FailingFileSystem, Fault, ManualClock, MemoryFileSystem
from tests.crash.driver import encode_batch

ROOTS = ["/one", "/two"]
CONFIG: dict[str, object] = {
    "num.recovery.threads.per.data.dir": 1,
    "log.flush.offset.checkpoint.interval.ms": 10_000,
    "log.archive.threads": 1,
    "log.cleaner.threads": 1,
}
TOPIC, NEIGHBOUR = "t", "neighbour"
HOT, VICTIM = b"hot", b"victim"
RECORDS = 14
SETTINGS: dict[str, object] = {
    "segment.bytes": 420,
    "index.interval.bytes": 100,
    "file.delete.delay.ms": 0,
    "key.index.enable": True,
    "retention.ms": -1,
    "retention.bytes": 900,
    "min.cleanable.dirty.ratio": 0.01,
}
KINDS: dict[str, dict[str, object]] = {
    "plain": {},
    "acks": {"flush.messages": 1},
    "compact": {"cleanup.policy": "compact,delete"},
    "tiered": {"remote.storage.enable": True, "local.retention.ms": 1, "retention.bytes": -1},
    "split": {"remote.storage.enable": True, "local.retention.ms": 1, "retention.bytes": 1500},
}
"""Of ``split`` the first segments are only in the archive, and sealed ones behind them only here."""
STARTS_AT = 3
"""Every world's log starts in the middle of a segment, where only a checkpoint says so."""
LEFTOVERS = (".deleted", ".cleaned", ".swap", ".tmp", "-future", "-delete")
HALF_WRITTEN = (".deleted", ".cleaned", ".swap", ".tmp")
"""Files that a crash may leave and a failing disk may spoil: the harm stays in their partition."""


class WorldError(AssertionError):
    """A promise was broken."""


@dataclass
class Model:
    """What was asked for and acknowledged. Copied when the world is cut short."""

    given: dict[int, tuple[bytes | None, bytes]] = field(default_factory=dict)
    synced: set[int] = field(default_factory=set)
    maybe: set[bytes] = field(default_factory=set)
    start: int = 0
    start_at_most: int = 0
    erased: set[bytes] = field(default_factory=set)
    erasing: set[bytes] = field(default_factory=set)
    compacts: bool = False
    acks_wait: bool = False
    gone: bool = False
    maybe_gone: bool = False
    life: int = 0
    """How often the topic was created anew."""

    def copy(self) -> Model:
        return Model(**{name: _copied(value) for name, value in vars(self).items()})

    def told(self) -> str:
        """All of it; equal models tell the same."""
        return repr([_in_order(value) for value in vars(self).values()])


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, dict | set) else value


def _in_order(value: Any) -> Any:
    return (
        sorted(value.items() if isinstance(value, dict) else value)
        if isinstance(value, dict | set)
        else value
    )


class Judged(set[tuple[bytes, str]]):
    """What was judged and found right: a state of the disks with its model, and how it came about."""


class World:
    """One store and its model."""

    def __init__(
        self, memory: MemoryFileSystem, cloud: MemoryFileSystem, model: Model, judged: Judged | None = None
    ) -> None:
        self.clock = ManualClock()
        self.memory, self.cloud = memory, cloud
        self.fs = FailingFileSystem(memory)
        self.cloud_fs = FailingFileSystem(cloud)
        self.model = model
        self.judged = Judged() if judged is None else judged
        self.interrupted = threading.Event()
        """The first operation was: it may leave files to the next opening."""
        self.mutex = threading.Lock()
        self.numbers = 0
        self.padding = 20
        self.errors: dict[str, BaseException] = {}
        self.observed: list[tuple[int, bytes | None, bytes]] = []
        self.delete_before = 7
        self.store = self.opened(self.fs, self.cloud_fs)
        self.beside: Store | None = None
        """A read-only store, as another process has it."""

    def opened(
        self,
        fs: FailingFileSystem | MemoryFileSystem,
        cloud: FailingFileSystem | MemoryFileSystem,
        *,
        read_only: bool = False,
    ) -> Store:
        return stratalog.open(
            ROOTS,
            None if read_only else CONFIG,
            read_only=read_only,
            fs=fs,
            clock=self.clock,
            background=False,
            objects=DirectoryObjects(cloud, "/cloud"),
        )

    @property
    def topic(self) -> stratalog.Topic:
        return self.store.topic(TOPIC)

    def topic_of(self, beside: bool) -> stratalog.Topic:
        """The topic as the holder has it, or as a reader beside it does."""
        if not beside:
            return self.topic
        assert self.beside is not None
        return self.beside.topic(TOPIC)

    # -- noting ----------------------------------------------------------------------------------------

    def fresh(self) -> bytes:
        with self.mutex:
            self.numbers += 1
            value = b"%d of %d " % (self.numbers, self.model.life) + b"v" * self.padding
            self.padding = 20  # what is cut short at first is longer than what would cover it
            self.model.maybe.add(value)
            return value

    def acknowledged(self, life: int, offset: int, key: bytes | None, value: bytes, *, synced: bool) -> None:
        with self.mutex:
            if life != self.model.life:
                return
            known = self.model.given.get(offset)
            if known is not None and known != (key, value):
                raise WorldError(f"offset {offset} was given to {known} and to {(key, value)}")
            self.model.given[offset] = (key, value)
            if synced:
                self.model.synced.add(offset)

    def all_synced(self, offsets: set[int]) -> None:
        with self.mutex:
            self.model.synced |= offsets

    def before(self) -> dict[int, tuple[bytes | None, bytes]]:
        with self.mutex:
            return dict(self.model.given)

    # -- judging ---------------------------------------------------------------------------------------

    def look(self, modes: tuple[SurvivorMode, ...], seed: int) -> None:
        """Judge what a crash of each kind would leave at this moment."""
        with self.mutex:
            model = self.model.copy()
        for mode in modes:
            memory, cloud = self.survivors(mode, seed)
            half_written = _half_written(memory)
            self._judge(memory, cloud, model, mode)
            if mode == "kill" and half_written:
                path = half_written[seed % len(half_written)]
                memory, cloud = self.survivors(mode, seed)
                _spoil(memory, path, seed // len(half_written))
                self._judge(memory, cloud, model, f"kill, {path} spoiled")

    def survivors(self, mode: SurvivorMode, seed: int) -> tuple[MemoryFileSystem, MemoryFileSystem]:
        rng = random.Random(seed)
        return self.memory.survivor(mode, rng), self.cloud.survivor("kill", rng)

    def _judge(self, memory: MemoryFileSystem, cloud: MemoryFileSystem, model: Model, how: str) -> None:
        """Open what a crash left, as a reader and as the next holder, unless the same was judged before."""
        state = self._state(memory, cloud, model)
        if (state, "kill") in self.judged or (state, how) in self.judged:  # after a kill most is asked
            return
        power_cut, spoiled = not how.startswith("kill"), "spoiled" in how
        for read_only in (True, False):
            try:
                with self.opened(memory, cloud, read_only=read_only) as store:
                    try:
                        check(
                            store,
                            model,
                            power_cut=power_cut,
                            calm=False,
                            recovered=not read_only,
                            spoiled=spoiled,
                        )
                    except (LogDirOfflineError, CorruptionError):
                        if not spoiled:
                            raise
                    check_neighbour(store)
            except Exception as error:
                told = f"{how}, read only" if read_only else how
                raise WorldError(f"after a crash ({told}): {type(error).__name__}: {error}") from error
        self.judged.add((state, how))

    def _state(self, memory: MemoryFileSystem, cloud: MemoryFileSystem, model: Model) -> bytes:
        """Tell this state of the disks, together with what is asked of it, from every other one.

        Files have the same times if these have the same milliseconds and the same order. What a lock says of
        its dead holder is nothing.
        """
        digest = hashlib.blake2b(f"{model.told()} {self.clock.now_ms()}".encode(), digest_size=16)
        for fs in (memory, cloud):
            stats = {path: fs.stat(path) for path in _tree(fs, "/")}
            order = {at: n for n, at in enumerate(sorted({stat.mtime_ns for stat in stats.values()}))}
            for path, stat in stats.items():
                time = f"{stat.mtime_ns // 1_000_000} {order[stat.mtime_ns]}"
                digest.update(f"\n{path} {stat.size} {time} {stat.is_dir}\n".encode())
                if not stat.is_dir and not path.endswith("/.lock"):
                    digest.update(fs.read_file(path))
        return digest.digest()

    def finish(self) -> None:
        """Judge the store as it is, go on with it, close it, judge what is there then."""
        model = self.model
        self.fs.heal()
        if self.beside is not None:
            if not model.maybe_gone:
                check(self.beside, model, power_cut=False, calm=False, recovered=False)
            self.beside.close()
            if self.beside.open_files():
                raise WorldError(f"the reader beside has {self.beside.open_files()} files open")
        if not any(isinstance(error, StorageError | ReadOnlyError) for error in self.errors.values()):
            closed = isinstance(_closed(self.store), ClosedError)
        else:
            closed = True
        if closed:
            self.store.close()
            self.store = self.opened(self.fs, self.cloud_fs)
        check(self.store, model, power_cut=False, calm=not self.errors)
        for offset, key, value in self.observed:
            known = model.given.get(offset)
            if known is None and value in model.maybe:
                continue
            if known != (key, value) and not model.maybe_gone:
                raise WorldError(f"a reader saw {(key, value)} at {offset}, where {known} is")
        if not model.gone:
            try:
                self.store.topic(TOPIC)
            except UnknownTopicError:
                model.gone = True
        if not model.gone:
            for sync in (False, True):
                append(self, sync=sync)
            check(self.store, model, power_cut=False, calm=True)
        self.store.close()
        if self.store.open_files() and not self.interrupted.is_set():
            raise WorldError(f"{self.store.open_files()} files are still open")
        if not self.interrupted.is_set():
            self._nothing_left()
        memory, cloud = self.survivors("kill", 0)
        state = self._state(memory, cloud, model)
        if (state, "closed") not in self.judged:
            self.store = self.opened(self.fs, self.cloud_fs)
            check(self.store, model, power_cut=False, calm=True)
            self.store.close()
            self._nothing_left()
            self.judged.add((state, "closed"))

    def _nothing_left(self) -> None:
        left = [path for root in ROOTS for path in _tree(self.memory, root) if path.endswith(LEFTOVERS)]
        if self.interrupted.is_set():  # the next one to write that file begins it anew
            left = [path for path in left if not path.endswith(".tmp")]
        if left:
            raise WorldError(f"left behind: {left}")


def _closed(store: Store) -> Exception | None:
    try:
        store.topics()
    except ClosedError as error:
        return error
    return None


def _half_written(fs: MemoryFileSystem) -> list[str]:
    """Files of the topic's partition that were being made or done away with."""
    return [path for root in ROOTS for path in _tree(fs, root) if path.endswith(HALF_WRITTEN)]


def _spoil(fs: MemoryFileSystem, path: str, seed: int) -> None:
    """Cut the file in half, or turn a bit in its middle."""
    half = fs.stat(path).size // 2
    with fs.open(path, "a") as file:
        if seed % 2:
            file.truncate(half)
        elif half:
            file.pwrite(bytes([file.pread(1, half)[0] ^ 1]), half)


def _tree(fs: MemoryFileSystem, path: str) -> list[str]:
    found = []
    for name in fs.list_dir(path):
        inside = f"{path.rstrip('/')}/{name}"
        found.append(inside)
        if fs.stat(inside).is_dir:
            found += _tree(fs, inside)
    return found


def check_neighbour(store: Store) -> None:
    """Raise WorldError if the other topic does not hold its only record."""
    found = [(record.offset, record.value) for record in store.topic(NEIGHBOUR).read()]
    if found != [(0, NEIGHBOUR.encode())]:
        raise WorldError(f"the neighbour holds {found}")


def check(
    store: Store, model: Model, *, power_cut: bool, calm: bool, recovered: bool = True, spoiled: bool = False
) -> None:
    """Raise WorldError if the topic does not hold what ``model`` says it must.

    A reader that comes before recovery after a power cut may be shown less: the tail may be an older one.
    A file that was ``spoiled`` is named by verify; records need not be harmed by it.
    """
    check_neighbour(store)
    if model.gone:
        if TOPIC in store.topics():
            raise WorldError("a deleted topic is back")
        return
    if TOPIC not in store.topics():
        if model.maybe_gone:
            return
        raise WorldError("the topic is gone")
    topic = store.topic(TOPIC)
    start, end = topic.log_start_offset(), topic.log_end_offset()
    right = model.start <= start <= max(model.start_at_most, model.start)
    if not (right or model.maybe_gone or (power_cut and start == end)):
        raise WorldError(f"the log starts at {start}, not from {model.start} to {model.start_at_most}")
    found: dict[int, tuple[bytes | None, bytes]] = {}
    for record in topic.read():
        if record.offset in found:
            raise WorldError(f"offset {record.offset} was read twice")
        found[record.offset] = (record.key, record.value or b"")
    values = [value for _, value in found.values()]
    if len(set(values)) != len(values):
        raise WorldError("a record is in the log twice")
    for offset, pair in found.items():
        known = model.given.get(offset)
        if pair != known and pair[1] not in model.maybe:
            raise WorldError(f"offset {offset} holds {pair}, not {known}")
        if known is not None and pair != known and not model.maybe_gone:
            raise WorldError(f"offset {offset} holds {pair}, not {known}")
        if pair[0] in model.erased:
            raise WorldError(f"offset {offset} holds the erased key {pair[0]!r}")
    newest = {key: offset for offset, (key, _) in sorted(model.given.items())}
    for offset, (key, value) in model.given.items():
        if offset < start or offset in found or model.maybe_gone or (power_cut and not recovered):
            continue
        if key in model.erasing or (
            model.compacts and (newest[key] != offset or _superseded(found, key, offset))
        ):
            continue
        if power_cut and offset not in model.synced:
            continue
        raise WorldError(
            f"offset {offset}, acknowledged with {value!r}, is missing; the log is {start} to {end}"
        )
    if not power_cut and not model.compacts and not model.erasing:
        shown = end if recovered else topic.high_watermark()  # as far as the dead writer published it
        holes = set(range(start, shown)) - found.keys()
        if holes:
            raise WorldError(f"offsets {sorted(holes)} are missing in a log from {start} to {end}")
    if calm and topic.high_watermark() != end:
        raise WorldError(f"readers see up to {topic.high_watermark()} of {end}")
    report = verify_partition(store.partitions.view(TOPIC, 0))
    if report.damages and not spoiled:
        raise WorldError(f"damage: {report.damages}")


def _superseded(found: dict[int, tuple[bytes | None, bytes]], key: bytes | None, offset: int) -> bool:
    return any(at > offset and other == key for at, (other, _) in found.items())


# -- operations ----------------------------------------------------------------------------------------


def append(world: World, *, sync: bool = False, key: bytes = HOT) -> None:
    value, life = world.fresh(), world.model.life
    waits = world.model.acks_wait
    done = world.topic.append(value, key, sync=sync)
    world.acknowledged(life, done.offset, key, value, synced=sync or (waits and world.model.acks_wait))


def append_sync(world: World) -> None:
    append(world, sync=True)


def batch(world: World) -> None:
    """A producer's batch, durable when acknowledged. Two of them in a schedule are a batch and its retry."""
    facts = [
        Fact(b"batch %d of %d" % (at, world.model.life), b"b%d" % at, world.clock.now_ms()) for at in range(3)
    ]
    with world.mutex:
        world.model.maybe |= {fact.value for fact in facts if fact.value is not None}
    life = world.model.life
    done = world.topic.append_batches(0, encode_batch(facts, 7, 0), sync=True)
    for at, fact in enumerate(facts):
        world.acknowledged(life, done.base_offset + at, fact.key, fact.value or b"", synced=True)


def command(world: World) -> None:
    """What the control socket runs."""
    value, life = world.fresh(), world.model.life
    payload = encode_batch([Fact(value, HOT, world.clock.now_ms())], -1, -1)
    arguments = {"topic": TOPIC, "partition": 0, "sync": True}
    ((_, offset, _),) = run_command(world.store, "append", arguments, payload)
    world.acknowledged(life, offset, HOT, value, synced=True)


def read(world: World, *, beside: bool = False) -> None:
    known, life = world.before(), world.model.life
    found = [(each.offset, each.key, each.value or b"") for each in world.topic_of(beside).read()]
    _judge_read(world, known, life, found)


def read_beside(world: World) -> None:
    read(world, beside=True)


def scan_beside(world: World) -> None:
    known, life = world.before(), world.model.life
    table = world.topic_of(True).scan(columns=["offset", "key", "value"], threads=1).read_all()
    columns = (table[name].to_pylist() for name in ("offset", "key", "value"))
    _judge_read(world, known, life, list(zip(*columns, strict=True)))


def _judge_read(
    world: World,
    known: dict[int, tuple[bytes | None, bytes]],
    life: int,
    found: list[tuple[int, bytes | None, bytes]],
) -> None:
    with world.mutex:
        model = world.model
        if life != model.life or model.maybe_gone:
            return
        world.observed += found
        offsets = [offset for offset, _, _ in found]
        first = max(model.start_at_most, model.start)
        if model.compacts or model.erasing:
            return
        missing = [at for at in known if at >= first and at not in offsets]
        if missing:
            raise WorldError(f"a reader was not shown {missing}")
        tail = [at for at in offsets if at >= first]
        if tail != list(range(tail[0], tail[0] + len(tail))) if tail else False:
            raise WorldError(f"a reader was shown {tail}")


def follow(world: World) -> None:
    """Follow for a moment, committed records only; a transaction is open."""
    life = world.model.life
    found = [
        (each.offset, each.key, each.value or b"")
        for each in world.topic.read(follow=True, timeout_s=0.02, isolation="read_committed")
    ]
    with world.mutex:
        if life == world.model.life:
            world.observed += found


def follow_until_closed(world: World) -> None:
    """Follow until the log is closed or deleted: the end must be told, unless that was interrupted."""
    topic = world.topic
    try:
        for _ in topic.read(start=topic.log_end_offset(), follow=True, stop=world.interrupted):
            pass
    except (ClosedError, UnknownTopicError):
        return
    if world.interrupted.is_set():
        return
    raise WorldError("a follower ended without a word")


def look_beside(world: World) -> None:
    """Everything else that a reader asks: ends, segments, offsets by time, a batch as it is stored."""
    topic, life = world.topic_of(True), world.model.life
    known = world.before()
    start, end, segments = topic.log_start_offset(), topic.high_watermark(), topic.segments()
    at = topic.list_offset(0, OffsetSpec.EARLIEST).offset
    stable = topic.high_watermark(isolation="read_committed")
    since = topic.offset_for_time(0, 0)
    with topic.fetch(0, at, 1 << 20) as fetched:
        if len(fetched.read()) != fetched.length:
            raise WorldError(f"fetch promised {fetched.length} bytes")
    with world.mutex:
        if life != world.model.life or world.model.maybe_gone:
            return
        last = max(known, default=-1)
        if end <= last or stable > end or (since is not None and since < start):
            raise WorldError(f"end {end}, stable end {stable}, first by time {since}: {start} to {last}")
        if not segments or segments[-1].base_offset > end:
            raise WorldError(f"segments {segments}")


def get_beside(world: World) -> None:
    get(world, beside=True)


def get(world: World, *, beside: bool = False) -> None:
    known, life = world.before(), world.model.life
    latest = max((at for at, (key, _) in known.items() if key == HOT), default=-1)
    found = world.topic_of(beside).get(HOT)
    with world.mutex:
        model = world.model
        if life != model.life or model.maybe_gone or latest < max(model.start, model.start_at_most):
            return
        if found is None or found.offset < latest:
            raise WorldError(f"get found {found}; offset {latest} was acknowledged before")
        world.observed.append((found.offset, found.key, found.value or b""))


def roll(world: World) -> None:
    world.topic.roll()


def flush(world: World) -> None:
    known = set(world.before())
    world.topic.flush()
    world.all_synced(known)


def delete_records(world: World) -> None:
    with world.mutex:
        life = world.model.life
        world.model.start_at_most = max(world.model.start_at_most, world.delete_before)
    start = world.topic.delete_records(0, world.delete_before)
    with world.mutex:
        if life == world.model.life:
            world.model.start = max(world.model.start, start)


def retain(world: World) -> None:
    with world.mutex:
        life = world.model.life
        world.model.start_at_most = 1 << 62
    world.store.retain(TOPIC)
    start = world.topic.log_start_offset()
    with world.mutex:
        if life == world.model.life:
            world.model.start = max(world.model.start, start)


def compact(world: World) -> None:
    world.store.compact(TOPIC, force=True)


def erase(world: World) -> None:
    with world.mutex:
        world.model.erasing.add(VICTIM)
    report = world.store.erase(TOPIC, [VICTIM])
    with world.mutex:
        if not world.model.maybe_gone and not report.notes:  # a note says what was not finished
            world.model.erased.add(VICTIM)


def archive(world: World) -> None:
    world.store.archive(TOPIC)


def alter(world: World) -> None:
    with world.mutex:
        world.model.acks_wait = False
    world.store.alter_topic(TOPIC, {"flush.messages": None, "segment.bytes": 500})


def move(world: World) -> None:
    here = world.store.partitions.place(TOPIC, 0)[0].path
    world.store.move_partition(TOPIC, 0, next(root for root in ROOTS if root != here))


def tick(world: World) -> None:
    """The background thread's round, with the checkpoints."""
    world.clock.advance(11_000)
    world.store.tick()


def delete_topic(world: World) -> None:
    with world.mutex:
        world.model.maybe_gone = True
    world.store.delete_topic(TOPIC)
    with world.mutex:
        world.model.gone = True


def recreate(world: World) -> None:
    """Delete the topic and create another one of its name; what that one is given must stay."""
    with world.mutex:
        world.model.maybe_gone = True
    world.store.delete_topic(TOPIC)
    with world.mutex:
        model = world.model
        world.model = Model(compacts=model.compacts, life=model.life + 1, maybe=model.maybe, maybe_gone=True)
        world.observed.clear()
    world.store.create_topic(TOPIC, 1, {**SETTINGS})
    with world.mutex:
        world.model.maybe_gone = False
    for _ in range(6):
        append(world, sync=True)


def close(world: World) -> None:
    known = set(world.before())
    was_open = world.store.partitions.closed is None
    world.store.close()
    if was_open:  # else a close before this one told what became of them
        world.all_synced(known)


def close_failing(world: World) -> None:
    """A close on a disk whose syncs fail."""
    world.fs.inject(Fault("sync", error=errno.EIO))
    world.store.close()


Operation = Callable[[World], None]
BESIDE: dict[str, Operation] = {
    each.__name__: each for each in (read_beside, scan_beside, get_beside, look_beside)
}
OPERATIONS: dict[str, Operation] = {
    each.__name__: each
    for each in (
        append, append_sync, batch, command, read, follow, get, roll, flush, delete_records, retain, compact,
        erase, archive, alter, move, tick, delete_topic, recreate, close, close_failing, follow_until_closed,
    )
}  # fmt: skip
ENDS = {"close", "close_failing", "delete_topic"}


def kind_of(first: str, second: str) -> str:
    """The kind of topic on which two operations meet."""
    pair = {first, second}
    if pair & BESIDE.keys():
        return "compact" if pair & {"compact", "erase"} else "split"
    if "archive" in pair:
        return "tiered"
    if pair & {"compact", "erase"}:
        return "compact"
    if "alter" in pair:
        return "acks"
    # Beside a tick on a plain topic: an archive would tell where the log starts, were its checkpoint lost.
    return "split" if "move" in pair and "tick" not in pair else "plain"


def allowed(name: str, other: str, error: BaseException) -> bool:
    """True if ``error`` is what this operation may answer beside the other one."""
    if "close" in other and isinstance(error, ClosedError):
        return True
    if "close_failing" in (name, other) and isinstance(error, StorageError | ClosedError | ReadOnlyError):
        return True
    if name == other == "close" and isinstance(error, StorageError):
        return isinstance(error.__cause__, KeyboardInterrupt)  # the other one was interrupted, and says so
    if other in ("delete_topic", "recreate") and isinstance(error, ClosedError | UnknownTopicError):
        return True
    if (name, other) == ("delete_records", "recreate") and isinstance(error, InvalidArgumentError):
        return True  # the new topic is shorter
    return other in ("delete_records", "retain") and isinstance(error, OffsetOutOfRangeError)


_bases: dict[str, tuple[MemoryFileSystem, MemoryFileSystem, Model]] = {}


def base_of(kind: str) -> tuple[MemoryFileSystem, MemoryFileSystem, Model]:
    """A store with a topic of several segments and an open transaction, cleanly closed; made once."""
    if kind not in _bases:
        clock = ManualClock()
        memory, cloud = MemoryFileSystem(clock=clock.now_ns), MemoryFileSystem(clock=clock.now_ns)
        world = World(memory, cloud, Model(compacts=kind == "compact"))
        world.store.create_topic(NEIGHBOUR).append(NEIGHBOUR.encode(), sync=True)
        world.store.create_topic(TOPIC, 1, {**SETTINGS, **KINDS[kind]})
        for at in range(RECORDS):
            append(world, key=VICTIM if at == 2 else HOT if at % 3 == 0 else b"k%d" % (at % 5))
        value = world.fresh()
        done = world.topic.append_batches(
            0, encode_batch([Fact(value, b"open", clock.now_ms())], 9, 0, transactional=True)
        )
        world.acknowledged(0, done.base_offset, b"open", value, synced=False)
        append(world)
        if kind == "split":
            _split(world)
        world.topic.delete_records(0, STARTS_AT)
        world.model.start = world.model.start_at_most = STARTS_AT
        world.model.acks_wait = kind == "acks"
        world.all_synced(set(world.model.given))
        world.store.close()
        _bases[kind] = (memory, cloud, world.model)
    return _bases[kind]


def _split(world: World) -> None:
    """Leave the first segments to the archive, and add some that it does not have."""
    for _ in range(2):
        world.clock.advance(1000)
        world.store.archive(TOPIC)
    for at in range(RECORDS):
        append(world, key=HOT if at % 3 == 0 else b"k%d" % (at % 5))


def world_of_kind(kind: str, judged: Judged) -> World:
    """A store of its own, with a topic of this kind."""
    memory, cloud, model = base_of(kind)
    rng = random.Random(0)
    world = World(memory.survivor("kill", rng), cloud.survivor("kill", rng), model.copy(), judged)
    world.numbers, world.padding = 1000, 60
    return world


def world_of(first: str, second: str, judged: Judged) -> World:
    """A store on which these two operations meet."""
    kind = kind_of(first, second)
    world = world_of_kind(kind, judged)
    if kind == "split":
        world.delete_before = max(world.model.given) - 4
    if {first, second} & BESIDE.keys():
        world.beside = world.opened(world.fs, world.cloud_fs, read_only=True)
        list(world.topic_of(True).read())  # it has been reading for a while
    if first.startswith("close"):
        append(world)  # else there is nothing to do at the end
    return world
