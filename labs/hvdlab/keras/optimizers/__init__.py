"""LARS, LARC, LAMB and NovoGrad for Keras 3, on any backend: a learning rate for each layer.

The formulas are those of `hvdlab.reference`. Common to the three:

  weight_decay   is part of the update, inside norms and moments. Keras' own decay, which shrinks the
                 weights beside the update, stays off: the attribute `optimizer.weight_decay` is None.
  exclude_1d     spares biases and the scales of norms. `exclude_from_weight_decay` names more. Like
                 all such calls it is not part of the config: call it on the optimizer that trains,
                 for instance on what `hvd.DistributedOptimizer` returns.
  **kwargs       are clipnorm, clipvalue, global_clipnorm, use_ema, ema_momentum, loss_scale_factor,
                 ema_overwrite_frequency and gradient_accumulation_steps of Keras' optimizers.
  ValueError     names an argument that is out of its range.
  precision      a step is computed in float32 at least, also for float16 and bfloat16 variables, whose
                 moments however have the variable's dtype, as in Keras. Prefer "mixed_..." policies.
  sparse         gradients (`tf.IndexedSlices`, of embeddings) are made dense, repeated rows summed:
                 momentum and decay move all rows in any case.
  NaN and inf    in gradients end in NaN weights, as in Keras' optimizers; see `LossScaleOptimizer`.
"""

import keras

from hvdlab.keras.optimizers.lamb import LAMB
from hvdlab.keras.optimizers.lars import LARS
from hvdlab.keras.optimizers.novograd import NovoGrad

# hvd.DistributedOptimizer makes subclasses, which Keras saves under their plain names.
keras.saving.get_custom_objects().update(LARS=LARS, LAMB=LAMB, NovoGrad=NovoGrad)

__all__ = ["LAMB", "LARS", "NovoGrad"]
