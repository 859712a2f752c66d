"""Staged commits that enter the log exactly once."""
