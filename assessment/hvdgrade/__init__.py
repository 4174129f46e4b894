"""hvdgrade: judges a distributed training script from outside its process."""
