"""How much is measured: the full run, a quick one, and a smoke run for tests."""

from __future__ import annotations

from dataclasses import dataclass

KEY_BYTES = 10
VALUE_BYTES = 90
RECORD_BYTES = KEY_BYTES + VALUE_BYTES
BATCH = 1_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """Records, unless the name says otherwise. ``slow`` ones are for diskcache, which would take minutes."""

    append: int
    append_slow: int
    large: int
    single: int
    single_slow: int
    synced_batches: int
    synced: int
    scan: int
    scan_slow: int
    point: int
    point_slow: int
    reads: int
    crash_bytes: int
    crash_single_bytes: int
    dump_bytes: int
    compact: int
    compact_keys: int
    archive_bytes: int


FULL = Sizes(
    append=300_000,
    append_slow=20_000,
    large=100_000,
    single=40_000,
    single_slow=4_000,
    synced_batches=60,
    synced=400,
    scan=500_000,
    scan_slow=50_000,
    point=200_000,
    point_slow=50_000,
    reads=2_000,
    crash_bytes=512 << 20,
    crash_single_bytes=96 << 20,
    dump_bytes=64 << 20,
    compact=10_000_000,
    compact_keys=600_000,
    archive_bytes=256 << 20,
)
QUICK = Sizes(
    append=30_000,
    append_slow=3_000,
    large=20_000,
    single=3_000,
    single_slow=500,
    synced_batches=5,
    synced=40,
    scan=50_000,
    scan_slow=5_000,
    point=10_000,
    point_slow=3_000,
    reads=300,
    crash_bytes=32 << 20,
    crash_single_bytes=4 << 20,
    dump_bytes=8 << 20,
    compact=1_000_000,
    compact_keys=60_000,
    archive_bytes=32 << 20,
)
SMOKE = Sizes(
    append=2_000,
    append_slow=1_000,
    large=1_500,
    single=100,
    single_slow=50,
    synced_batches=2,
    synced=5,
    scan=3_000,
    scan_slow=1_000,
    point=1_000,
    point_slow=1_000,
    reads=20,
    crash_bytes=1 << 20,
    crash_single_bytes=1 << 16,
    dump_bytes=1 << 18,
    compact=3_000,
    compact_keys=200,
    archive_bytes=1 << 18,
)
BY_NAME = {"full": FULL, "quick": QUICK, "smoke": SMOKE}
