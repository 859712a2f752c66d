"""Verify and repair: find damage in a partition, name it, and remove only what the action names."""
