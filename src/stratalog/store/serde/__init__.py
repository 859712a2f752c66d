"""Keys and values that are not bytes: serializers, and a topic that uses them."""

from __future__ import annotations

from stratalog.store.serde.serialized_topic import SerializedTopic
from stratalog.store.serde.serializers import Deserializer, Serde, Serializer

__all__ = ["Deserializer", "Serde", "SerializedTopic", "Serializer"]
