"""Optimizers, layers, networks and devices for PyTorch.

The optimizers and the layers below can be imported from this package itself; everything else from its
modules. `hvdlab.torch.model_parallel` has tensor and pipeline parallelism.
"""

from hvdlab.torch.normalization import GhostBatchNorm1d, GhostBatchNorm2d
from hvdlab.torch.optimizers import LAMB, LARS, NovoGrad

__all__ = ["LAMB", "LARS", "GhostBatchNorm1d", "GhostBatchNorm2d", "NovoGrad"]
