"""What a store must do to take part. Preparing the objects it takes is never part of the time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bench.records import Row
from bench.sizes import KEY_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_RECORD = 1 << 20


class System(ABC):
    """A store used as a log: records get offsets 0, 1, 2 … and come back by offset, by key and all in order.

    ``sync`` False: an append returns when the kernel has the data, so that a killed process loses nothing
    and a power cut may. ``sync`` True: it returns when the data is on disk. ``keyed`` also keeps what finding
    the latest record of a key needs.
    """

    name: ClassVar[str]
    slow: ClassVar[bool] = False
    """So slow that it gets fewer records; rates are per second all the same."""

    def __init__(self, path: Path, *, sync: bool = False, keyed: bool = False) -> None:
        self.path = path
        self.sync = sync
        self.keyed = keyed
        path.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def prepare(self, rows: Sequence[Row]) -> Any:
        """The objects `append_batch` takes."""

    @abstractmethod
    def append_batch(self, prepared: Any) -> None:
        """All of them in one go (one transaction, one batch)."""

    def prepare_single(self, row: Row) -> tuple[Any, ...]:
        """The arguments of one call of `single`."""
        raise NotImplementedError

    def single(self) -> Callable[..., object]:
        """A function that appends one record."""
        raise NotImplementedError

    @abstractmethod
    def scan(self) -> pa.Table:
        """Everything in offset order: key and value as binary, offset as int64."""

    def by_offset(self, offset: int) -> Row:
        """One record."""
        raise NotImplementedError

    def by_key(self, key: bytes) -> Row:
        """The latest record of a key."""
        raise NotImplementedError

    @abstractmethod
    def close(self) -> None: ...


def table_of(keys: pa.Array, values: pa.Array, offsets: pa.Array) -> pa.Table:
    import pyarrow as pa

    return pa.table({"key": keys, "value": values, "offset": offsets})


def table_of_packed(packed: Sequence[bytes], offsets: pa.Array) -> pa.Table:
    """The table of records stored as key and value in one, taken apart by Arrow and not by Python.

    That all keys have one known length is a favour to these stores: else each record would need its lengths.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    both = pa.array(packed, pa.binary())
    keys = pc.binary_slice(both, 0, KEY_BYTES)
    # With no stop given the kernel overflows its own estimate of the room it needs.
    return table_of(keys, pc.binary_slice(both, KEY_BYTES, LONGEST_RECORD), offsets)
