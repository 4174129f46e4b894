"""Optimizers, layers, callbacks and networks for Keras 3, on TensorFlow or PyTorch.

`hvdlab.keras.horovod` is Horovod for Keras 3. The optimizers and the layer below can be imported from
this package itself; everything else from its modules.
"""

from hvdlab.keras.normalization import GhostBatchNorm, GhostBatchNormalization
from hvdlab.keras.optimizers import LAMB, LARS, NovoGrad

__all__ = ["LAMB", "LARS", "GhostBatchNorm", "GhostBatchNormalization", "NovoGrad"]
