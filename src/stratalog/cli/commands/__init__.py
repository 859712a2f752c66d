"""The commands: a function for each, declared with ``@command`` or ``@command_anywhere`` of `session`.

`files` and `formats` hold what several commands share: output files, and the formats of keys and values.
"""
