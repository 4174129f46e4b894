"""LARS, LARC, LAMB and NovoGrad for PyTorch: a learning rate for each layer, from norms.

The formulas are those of `hvdlab.reference`, which has one function for each. Each class implements its
formula twice:

  `_foreach`  works on lists of tensors, on any device, and does not wait for the GPU.
  `_fused`    works on CPUs, with one call per tensor of the kernels of torch's fused SGD and Adam. The
              `dampening` of SGD takes the local learning rate of LARS and the normalisation of NovoGrad,
              and Adam on a scratch tensor computes the update of LAMB. So each tensor is read from memory
              once instead of four times or more.

Under Horovod, wrap them in `hvd.DistributedOptimizer` like any optimizer. They then get the averaged
gradient, which they need because the norm of a mean is not the mean of the norms.
"""

from hvdlab.torch.optimizers.lamb import LAMB
from hvdlab.torch.optimizers.lars import LARS
from hvdlab.torch.optimizers.novograd import NovoGrad

__all__ = ["LAMB", "LARS", "NovoGrad"]
