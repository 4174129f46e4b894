"""Optimizers, layers, callbacks and networks for Keras 3, on TensorFlow or PyTorch.

`hvdlab.keras.horovod` is Horovod for Keras 3. The optimizers and the layer below can be imported from
this package itself; everything else from its modules.

Raises:
    ImportError: the environment variable KERAS_BACKEND names a backend that is not installed.
"""

import os

try:
    import keras  # noqa: F401
except ModuleNotFoundError as error:
    if "KERAS_BACKEND" not in os.environ or error.name not in ("jax", "tensorflow", "torch"):
        raise
    raise ImportError(
        f"Keras cannot run on {os.environ['KERAS_BACKEND']}, because {error.name} is not installed: set "
        "KERAS_BACKEND to tensorflow or torch, whichever is installed, before Python starts."
    ) from error

from hvdlab.keras.normalization import GhostBatchNorm, GhostBatchNormalization
from hvdlab.keras.optimizers import LAMB, LARS, NovoGrad

__all__ = ["LAMB", "LARS", "GhostBatchNorm", "GhostBatchNormalization", "NovoGrad"]
