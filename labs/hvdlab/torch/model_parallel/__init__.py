"""Tensor and pipeline parallelism in PyTorch, written by hand, and formulas for their costs."""
