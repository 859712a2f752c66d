"""The Spark source beside Spark's own Kafka connector: ``python -m bench.spark``.

The records are produced once, into a real broker. The connector asks that broker for them; our source reads
the segments the broker wrote, and a store that adopted them by hard links, so both sides read the same bytes.
Every figure is a median of runs taken in turn in one session; the broker's CPU time is shown beside the
connector's, because it shares the cores. Results are compared before any speed is shown.
"""
