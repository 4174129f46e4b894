"""Tensor and pipeline parallelism in PyTorch, written by hand, and their costs by formula."""
