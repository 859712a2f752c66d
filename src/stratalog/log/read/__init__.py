"""Readers of one partition: by offset, time and key, also beside another process."""
