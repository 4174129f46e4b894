"""`hvdgrade token`: secrets of programs that use the service."""
