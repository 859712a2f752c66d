"""What a dump is asked to do, and how it ends. Plain values."""

from __future__ import annotations

from dataclasses import dataclass

MAX_INT = 2**31 - 1
DEFAULT_MAX_MESSAGE_SIZE = 5 * 1024 * 1024

EXIT_OK = 0  # every file was read to its end; bad checksums and index mismatches are text, as in Kafka's tool
EXIT_UNREADABLE = 1  # something could not be read or decoded; stderr says what, the rest was dumped
EXIT_USAGE = 2  # the command line makes no sense
EXIT_NOT_FOUND = 3  # a path is not there, or a directory has no segment files; the rest was dumped
EXIT_PIPE = 141  # the reader of our output went away: what a shell shows for SIGPIPE


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """The flags of Kafka's dump tool, less its Java decoder classes, plus ``json``."""

    print_data_log: bool = False
    deep_iteration: bool = False
    verify_index_only: bool = False
    index_sanity_check: bool = False
    max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE
    max_bytes: int = MAX_INT
    skip_record_metadata: bool = False
    offsets_decoder: bool = False
    transaction_log_decoder: bool = False
    cluster_metadata_decoder: bool = False
    share_group_state_decoder: bool = False
    json: bool = False

    @property
    def decoder(self) -> str | None:
        """Which of the broker's own topics this is said to be; the first one asked for, as in Kafka."""
        if self.offsets_decoder:
            return "offsets"
        if self.transaction_log_decoder:
            return "transaction-log"
        if self.cluster_metadata_decoder:
            return "cluster-metadata"
        return "share-group-state" if self.share_group_state_decoder else None

    @property
    def contents(self) -> bool:
        """Keys and payloads are printed; any decoder implies it."""
        return self.print_data_log or self.decoder is not None

    @property
    def deep(self) -> bool:
        """Batches are opened; printing contents implies it."""
        return self.deep_iteration or self.contents
