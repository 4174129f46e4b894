"""`hvdgrade db`: the database of the service."""
