"""The numbers the dump kernel and its caller share: slots of the state array, flags, return codes.

Plain numbers, no behaviour. dump_slots.pxd says the same to the compiler; a test compares the two.
"""

from __future__ import annotations

# -- slots of `state` ------------------------------------------------------------------------------------
POS = 0  # next unread byte of `view`
END = 1  # bytes of `view` that may be read
BASE = 2  # position in the file of view[0]
OUT = 3  # bytes of `out` already filled
NEED = 4  # how large `view` (MORE) or `out` (GROW) must be to go on
FLAGS = 5
LAST_OFFSET = 6  # of the last record seen in this file, -1 before the first
IN_BATCH = 7  # 1 while the records of the batch at POS are being printed
SIZE = 8  # the batch at POS: bytes, header included ...
COUNT = 9
READ = 10  # ... records already read
BODY = 11  # ... next unread byte of its records
BODY_END = 12
BASE_OFFSET = 13
BASE_TIMESTAMP = 14
MAX_TIMESTAMP = 15
BASE_SEQUENCE = 16
ATTRIBUTES = 17
MAGIC = 18
DETAIL = 19  # what is wrong, as a number
# the record being read
R_NEXT = 24
R_TIMESTAMP = 25
R_OFFSET = 26
R_SEQUENCE = 27
R_KEY = 28
R_KEY_SIZE = 29
R_VALUE = 30
R_VALUE_SIZE = 31
R_HEADERS = 32
R_HEADER_COUNT = 33
V_NEXT = 34  # where the varint just read ended, -1 when it is not one
STATE_SIZE = 40

# -- flags -----------------------------------------------------------------------------------------------
DEEP = 1  # look into batches
CONTENTS = 2  # print keys and payloads
SKIP_METADATA = 4  # print nothing else of a record
OPAQUE_ALL = 8  # the caller prints the records of every batch itself
FINAL = 16  # nothing follows view[END]

# -- what a call returns ---------------------------------------------------------------------------------
DONE = 0  # no whole batch is left
MORE = 1  # the batch at POS runs past END: NEED bytes from POS on, please
FULL = 2  # write out[:OUT], set OUT to 0, call again
GROW = 3  # even an empty `out` is too small for the next line: NEED bytes
OPAQUE = 4  # the header is printed; the records (compressed, control) are the caller's
BAD_LENGTH = 5  # a length field no batch can have: DETAIL; nothing behind it can be found
LEGACY = 6  # message format 0 or 1
SHORT = 7  # a batch of SIZE bytes, less than its own header
BAD_CODEC = 8  # compression id DETAIL
BAD_RECORD = 9  # record number READ of the batch at POS: DETAIL is one of the reasons below

# -- reasons of BAD_RECORD -------------------------------------------------------------------------------
R_OK = 0
NEGATIVE_COUNT = 1
RECORD_SIZE = 2
RECORD_STRUCTURE = 3
HEADER_COUNT = 4
HEADER_KEY_SIZE = 5
RECORD_SIZE_MISMATCH = 6
TRAILING_BYTES = 7

# -- room in `out` ---------------------------------------------------------------------------------------
HEADER_ROOM = 640  # a batch line is shorter
RECORD_ROOM = 256  # a record line without key, value and header keys is shorter
