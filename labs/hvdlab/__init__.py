"""hvdlab: the helper package of the course. Importing it imports no framework."""

__version__ = "0.1.0"
