"""How much of what is new a micro-batch takes: pure functions of offsets and sizes.

The rules are those of Spark's Kafka source: a limit is shared out among the partitions by how much each
has, and every partition that has anything moves by at least one offset.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from stratalog.spark.offsets import Offsets, Pair
from stratalog.spark.options import Limits
from stratalog.spark.planning import Span


def new_offsets(starts: Mapping[Pair, int], ends: Mapping[Pair, int]) -> dict[Pair, int]:
    """How many offsets each partition has that were not read."""
    return {pair: max(end - starts.get(pair, end), 0) for pair, end in ends.items()}


def worth_a_batch(limits: Limits, waiting: int, waited_ms: int) -> bool:
    """Whether ``minOffsetsPerTrigger`` is reached, or has been waited for long enough."""
    return limits.min_offsets is None or waiting >= limits.min_offsets or waited_ms > limits.max_delay_ms


def by_offsets(starts: Mapping[Pair, int], ends: Mapping[Pair, int], most: int) -> Offsets:
    """Ends that take at most about ``most`` offsets altogether."""
    sizes = new_offsets(starts, ends)
    total = sum(sizes.values())
    if total <= most:
        return dict(ends)
    return {
        pair: min(end, starts[pair] + _share(most, sizes[pair], total)) if sizes[pair] else end
        for pair, end in ends.items()
    }


def by_bytes(spans: Mapping[Pair, Sequence[Span]], ends: Mapping[Pair, int], most: int) -> Offsets:
    """Ends that take at most about ``most`` bytes of log altogether."""
    sizes = {pair: sum(span.size_bytes for span in found) for pair, found in spans.items()}
    total = sum(sizes.values())
    if total <= most:
        return dict(ends)
    return {
        pair: min(end, _reach(spans[pair], _share(most, sizes[pair], total))) if spans.get(pair) else end
        for pair, end in ends.items()
    }


def _share(most: int, size: int, total: int) -> int:
    share = most * size / total
    return math.ceil(share) if share < 1 else math.floor(share)


def _reach(spans: Sequence[Span], size_bytes: int) -> int:
    """How far so many bytes reach; inside a span bytes are taken to be spread evenly."""
    at = spans[0].start
    for span in spans:
        if span.size_bytes > size_bytes:
            part = (span.end - span.start) * size_bytes // span.size_bytes
            return max(span.start + part, spans[0].start + 1)
        size_bytes -= span.size_bytes
        at = span.end
    return at


def lag(read: Mapping[Pair, int], latest: Mapping[Pair, int]) -> dict[str, int | float]:
    """How far behind the logs' ends a query is, under the names of Kafka's source."""
    behind = [max(end - read.get(pair, end), 0) for pair, end in latest.items()]
    return {
        "minOffsetsBehindLatest": min(behind, default=0),
        "maxOffsetsBehindLatest": max(behind, default=0),
        "avgOffsetsBehindLatest": sum(behind) / len(behind) if behind else 0.0,
    }
