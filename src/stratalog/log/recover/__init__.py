"""Opening a partition for writing after any kind of stop."""
