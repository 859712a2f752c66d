"""Consumer groups of clients: the classic protocol, and committed offsets.

`classic` is the life of one group as a pure state machine: requests and the time go in, answers come out.
`coordinator` has all groups, writes them to `__consumer_offsets` and answers requests; `committed` has the
offsets.
"""
