"""`hvdgrade doctor`: which isolation levels work on this machine, and what they block."""
