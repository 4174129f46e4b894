"""LARS, LARC, LAMB and NovoGrad for Keras 3, on any backend: a learning rate for each layer.

The formulas are those of `hvdlab.reference`. These rules hold for all of the optimizers:

* Weight decay is part of the update, inside norms and moments. Keras' own decay, which shrinks the
  weights in addition to the update, stays off: the attribute `optimizer.weight_decay` is None.
* `exclude_1d` excludes biases and the scales of norms. The method `exclude_from_weight_decay` excludes
  more variables. Keras does not save such calls in the config, so call the method of the optimizer that
  trains, for example of the optimizer that `hvd.DistributedOptimizer` returns.
* `**kwargs` are clipnorm, clipvalue, global_clipnorm, use_ema, ema_momentum, ema_overwrite_frequency,
  loss_scale_factor and gradient_accumulation_steps of Keras' optimizers.
* An argument that is out of its range raises a ValueError that names the argument.
* A step is computed in float32 at least, also for float16 and bfloat16 variables. However, their moments
  have the dtype of the variable, as in Keras. Prefer the "mixed_..." policies.
* Sparse gradients (`tf.IndexedSlices`, of embeddings) are made dense, and repeated rows are summed,
  because momentum and decay move all rows in any case.
* NaN and infinity in gradients lead to NaN weights, as in Keras' optimizers; see `LossScaleOptimizer`.
"""

import keras

from hvdlab.keras.optimizers.lamb import LAMB
from hvdlab.keras.optimizers.lars import LARS
from hvdlab.keras.optimizers.novograd import NovoGrad

# hvd.DistributedOptimizer makes subclasses, which Keras saves under the plain names.
keras.saving.get_custom_objects().update(LARS=LARS, LAMB=LAMB, NovoGrad=NovoGrad)

__all__ = ["LAMB", "LARS", "NovoGrad"]
