"""The helper package for PyTorch."""

from hvdlab.torch.normalization import GhostBatchNorm1d, GhostBatchNorm2d
from hvdlab.torch.optimizers import LAMB, LARS, NovoGrad

__all__ = ["LAMB", "LARS", "GhostBatchNorm1d", "GhostBatchNorm2d", "NovoGrad"]
