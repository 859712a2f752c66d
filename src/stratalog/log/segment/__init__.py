"""One segment and its directory: the files, what is derived from the log, and what a listing means."""
