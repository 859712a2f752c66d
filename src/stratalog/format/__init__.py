"""Every file kind of the log: pure functions between bytes and values.

A module is one file kind, with its bytes drawn at the top and a word on what a crash may leave. Nothing
here opens a file, reads a clock or knows a policy. Damage raises CorruptionError, another version
UnsupportedFormat, and hostile bytes cost bounded memory.
"""
