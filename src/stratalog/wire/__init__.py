"""Kafka's messages: bytes ↔ values by tables, for requests, responses and the records of internal topics.

No sockets and no files. `schema` reads the tables, `messages` gives each message its class and its codec; the
loops are in the kernel. Bytes may be anything: every length is checked, and what does not fit is an error.
"""
