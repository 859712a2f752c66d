"""The broker beside a real Kafka: ``python -m bench.broker``.

Both serve the same loads in turn, on one filesystem: librdkafka and frames of our own (``load.c``, compiled
here, so that the client is not what is measured), and Kafka's perf tools. A server's CPU time comes from
``/proc``, because the clients share its cores. Kafka is warm: it has served every kind of load before it is
measured. A bar that is missed is printed as missed.
"""
