"""The life of segments in a store: plan and carry out retention, compaction, erasing; report numbers."""
