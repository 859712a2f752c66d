"""The writer of one partition: append, roll, sync, producer state, and the ends that readers wait for."""
