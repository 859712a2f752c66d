from collections.abc import Sequence
from typing import Any

def use_error(error: type[Exception]) -> None: ...
def encode_one(
    value: bytes | None,
    key: bytes | None,
    headers: Sequence[tuple[str, bytes | None]] | None,
    timestamp: int,
    base_offset: int,
    leader_epoch: int,
    timestamp_type: int,
) -> bytes: ...
def encode_tuples(
    target: bytearray,
    records: list[Any],
    start: int,
    now_ms: int,
    max_bytes: int,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> tuple[int, int, int, int, int]: ...
