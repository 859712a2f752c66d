"""The stores that are compared, each set up as somebody who wants speed at that durability would."""

from __future__ import annotations

from bench.systems.contract import System
from bench.systems.diskcaches import DiskCache
from bench.systems.lightning import Lmdb, LmdbWritemap
from bench.systems.ours import Stratalog, StratalogArrow, StratalogSingles
from bench.systems.rocks import RocksDict
from bench.systems.sqlite import Sqlite

PEERS: tuple[type[System], ...] = (RocksDict, Lmdb, Sqlite, DiskCache)
PEER_NAMES = tuple(peer.name for peer in PEERS)

__all__ = ["PEERS", "PEER_NAMES", "LmdbWritemap", "Stratalog", "StratalogArrow", "StratalogSingles", "System"]
