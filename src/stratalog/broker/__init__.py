"""The broker: any Kafka client talks to a store.

One thread runs an event loop over all connections; what waits for a disk or an object store runs in a few
others. `server` has the listener and the table of APIs, `connection` the bytes of one client; the other
modules answer requests. The messages are those of `stratalog.wire`.
"""

from stratalog.broker.server import Broker, serve

__all__ = ["Broker", "serve"]
