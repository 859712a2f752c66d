"""Verify and repair: find damage in a partition, name it, and give up only what was asked for."""
