"""What a watched rank does, as typed records: one JSON line each in a file per rank."""
