"""hvdgrade: judges a distributed training script from outside its process."""

__version__ = "0.1.0"
