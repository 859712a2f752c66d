"""Consumer groups of clients: the classic protocol, the newer one (KIP-848), and committed offsets.

`classic` is the life of one group as a pure state machine: requests and the time go in, answers come out.
`consumer` is the same for the newer protocol, with `assignors`; `records` are its records.
`coordinator` has all groups, writes them to `__consumer_offsets` and answers requests; `listing` tells which
groups there are; `committed` has the offsets, and `topics` the topics as groups see them.
"""
