"""Transactions: records of several topics, and committed offsets, become visible together or not at all.

state         the life of a transaction as pure functions, and its records in `__transaction_state`
coordinator   carries the steps out on a store: records, then markers; finishes what a crash cut short
transaction   what a program uses
"""

from __future__ import annotations

from stratalog.store.transactions.coordinator import Coordinator
from stratalog.store.transactions.transaction import Transaction

__all__ = ["Coordinator", "Transaction"]
