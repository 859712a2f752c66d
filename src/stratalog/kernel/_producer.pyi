ADMITTED: int
DUPLICATE: int
FENCED: int
UNSEQUENCED: int
NEW_EPOCH: int
GAP: int
NOT_TRANSACTIONAL: int
COORDINATOR_FENCED: int

class Producer:
    epoch: int
    coordinator_epoch: int
    last_timestamp: int
    txn_first_offset: int
    @property
    def count(self) -> int: ...
    def copy(self) -> Producer: ...
    def last_sequence(self) -> int: ...
    def last_batch(self) -> tuple[int, int, int, int] | None: ...
    def find(self, epoch: int, base_sequence: int, last_sequence: int) -> tuple[int, int, int] | None: ...
    def check(self, epoch: int, base_sequence: int, transactional: bool, client: bool) -> int: ...
    def check_marker(self, epoch: int, coordinator_epoch: int, transaction_version: int) -> int: ...
    def add(
        self,
        epoch: int,
        last_sequence: int,
        last_offset: int,
        offset_delta: int,
        timestamp: int,
        transactional: bool,
    ) -> bool: ...
    def end(self, epoch: int, coordinator_epoch: int, timestamp: int) -> int: ...
