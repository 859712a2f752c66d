"""Where a command works: on the files of a store (`--data`), or on a Kafka cluster (`--bootstrap-server`).

``contract`` is what commands may ask of either. ``local`` fulfils it with a store; ``cluster`` with
librdkafka, ``cluster_reading`` is its reader, and ``client`` holds its settings and errors.
"""
