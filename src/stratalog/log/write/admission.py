"""What a topic takes and what it refuses: sizes, keys and timestamps, by its settings."""

from __future__ import annotations

from stratalog.config import TopicConfig
from stratalog.errors import InvalidRecordError, RecordTooLargeError
from stratalog.model import CREATE_TIME, LOG_APPEND_TIME, LONG_MAX


class Admission:
    """The rules of one topic. Pure: values in, an error or nothing out."""

    __slots__ = (
        "_after_ms",
        "_before_ms",
        "_config",
        "_topic",
        "max_batch_bytes",
        "needs_key",
        "timestamp_type",
    )

    def __init__(self, topic: str, config: TopicConfig) -> None:
        self._topic = topic
        self._config = config
        self._after_ms = config.message_timestamp_after_max_ms
        self._before_ms = config.message_timestamp_before_max_ms
        self.max_batch_bytes = min(config.max_message_bytes, config.segment_bytes)
        self.needs_key = config.compact
        self.timestamp_type = LOG_APPEND_TIME if config.log_append_time else CREATE_TIME

    def keyless(self) -> InvalidRecordError:
        """The error for a record without a key in a compacted topic."""
        return InvalidRecordError(
            f"{self._topic} is compacted: every record needs a key (cleanup.policy contains 'compact')"
        )

    def too_large(self, size: int) -> RecordTooLargeError:
        """The error for a batch past ``max_batch_bytes``."""
        return RecordTooLargeError(
            f"{self._topic}: a batch of {size} bytes is larger than {self.max_batch_bytes}, the smaller of"
            f" max.message.bytes={self._config.max_message_bytes} and"
            f" segment.bytes={self._config.segment_bytes}"
        )

    def check_timestamps(self, oldest: int, newest: int, now_ms: int) -> None:
        """Raise when producers' own timestamps lie too far from now; the log's own never do."""
        if self._config.log_append_time:
            return
        for timestamp in (newest, oldest):
            if timestamp > LONG_MAX or not -self._before_ms <= timestamp - now_ms <= self._after_ms:
                raise InvalidRecordError(
                    f"{self._topic}: timestamp {timestamp} is too far from now ({now_ms}); see"
                    " message.timestamp.before.max.ms and message.timestamp.after.max.ms"
                )
