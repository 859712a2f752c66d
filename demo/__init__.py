"""The demonstration behind ``make demo``: a million events in, found again, and kept through a kill.

It makes a topic in a temporary directory (or the one it is given, which must not hold a store) and removes it
afterwards unless told to keep it. Every line it shows is checked against what was put in; a check that fails
ends it with exit code 1. Nothing is imported here: the process that gets killed needs only a part of it.
"""
