"""The helper package for Keras 3, on TensorFlow or PyTorch. `hvdlab.keras.horovod` is Horovod for it."""

from hvdlab.keras.normalization import GhostBatchNorm, GhostBatchNormalization
from hvdlab.keras.optimizers import LAMB, LARS, NovoGrad

__all__ = ["LAMB", "LARS", "GhostBatchNorm", "GhostBatchNormalization", "NovoGrad"]
