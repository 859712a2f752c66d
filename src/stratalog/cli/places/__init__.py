"""Where a command works: on the files of a store (`--data`), or on a Kafka cluster (`--bootstrap-server`).

``contract`` is the interface that commands use. ``local`` implements it for a store; ``cluster`` with
librdkafka, ``cluster_reading`` is its reader, and ``client`` holds its settings and errors.
"""
