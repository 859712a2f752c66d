"""Segments between this machine and the archive."""
