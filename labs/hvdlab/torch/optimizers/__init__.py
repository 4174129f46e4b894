"""LARS, LARC, LAMB and NovoGrad for PyTorch: a learning rate for each layer, from norms.

The formulas are those of `hvdlab.reference`, one function each. Each class has them twice:

  `_foreach`  on lists of tensors, on any device and without a wait for the GPU;
  `_fused`    on CPUs, with the kernels of torch's own fused SGD and Adam, one call a tensor: their
              `dampening` is the local rate of LARS and the normalisation of NovoGrad, and Adam on a
              scratch tensor is the update of LAMB. One pass over memory instead of four or more.

Under Horovod, wrap them in `hvd.DistributedOptimizer` as any optimizer: they then see the averaged
gradient, as they must, because the norm of a mean is not the mean of norms.
"""

from hvdlab.torch.optimizers.lamb import LAMB
from hvdlab.torch.optimizers.lars import LARS
from hvdlab.torch.optimizers.novograd import NovoGrad

__all__ = ["LAMB", "LARS", "NovoGrad"]
