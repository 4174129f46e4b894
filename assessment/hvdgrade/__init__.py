"""hvdgrade: judges a distributed training script from outside its process."""

__version__ = "0.1.0"


class HvdgradeError(Exception):
    """Base of all exceptions of this package. The message is a sentence for the user."""
