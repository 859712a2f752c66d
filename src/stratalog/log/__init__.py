"""One partition: its file names, segments, writer, reader, recovery, policies and producer state.

May import ``format``, ``fs``, ``config`` and ``kernel``. Nothing here knows of a second partition; the
store owns many of these. Policies and views are pure functions, so the same answer serves the writer,
the janitor, a reader in another process and a preview.
"""
