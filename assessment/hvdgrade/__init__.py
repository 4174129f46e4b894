"""hvdgrade: judges a distributed training script from outside its process."""

from hvdlab import __version__ as __version__


class HvdgradeError(Exception):
    """Base of all exceptions of this package. The message is a sentence for the user."""
