"""Breaches of the rules in `stratalog.locks` that are known and being repaired; to become empty."""

from __future__ import annotations

from stratalog.testing.locks import Known

KNOWN = (
    # The object store under locks that appends or reads may need.
    Known("partition.maintenance", "NETWORK", "drop_local", "the archive is asked under maintenance"),
)
