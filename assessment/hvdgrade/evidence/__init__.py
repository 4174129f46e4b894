"""What a run left behind, as data types, and the process that reads and recomputes it."""
