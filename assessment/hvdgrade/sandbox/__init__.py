"""The sandbox around one command: isolation levels, mounts, control groups and dropped privileges."""
