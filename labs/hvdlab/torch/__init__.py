"""The helper package for PyTorch."""

from hvdlab.torch.optimizers import LAMB, LARS, NovoGrad

__all__ = ["LAMB", "LARS", "NovoGrad"]
