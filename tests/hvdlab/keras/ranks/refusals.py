"""One process, no MPI: what hvd refuses, and that one rank alone sends nothing."""

import keras
from common import flat, raises

import hvdlab.keras.horovod as hvd

SGD, wrap = keras.optimizers.SGD, hvd.DistributedOptimizer
raises(TypeError, "keras.optimizers.Optimizer", wrap, "sgd")
raises(TypeError, "keras.optimizers.Optimizer", wrap, SGD)
raises(ValueError, "op must be", wrap, SGD(), op=hvd.Min)
raises(ValueError, "op must be", wrap, SGD(), op=hvd.Adasum)
raises(ValueError, "groups", wrap, SGD(), groups=[[1]])
raises(ValueError, "groups", wrap, SGD(), groups=0)
raises(
    ValueError, "gradient_predivide_factor", wrap, SGD(), op=hvd.Sum, gradient_predivide_factor=2
)
raises(ValueError, "average_aggregated_gradients", wrap, SGD(), backward_passes_per_step=2)
twice = {"backward_passes_per_step": 2, "average_aggregated_gradients": True}
raises(ValueError, "a new optimizer", wrap, SGD(gradient_accumulation_steps=2), **twice)
raises(ValueError, "wrapped already", wrap, wrap(SGD()))
scaled = keras.optimizers.LossScaleOptimizer
raises(ValueError, "wrapped already", wrap, scaled(wrap(SGD())))
raises(ValueError, "wrapped already", wrap, wrap(scaled(SGD())))
raises(AttributeError, "course does not use it", getattr, hvd, "elastic")
raises(AttributeError, "course does not use it", getattr, hvd, "PartialDistributedOptimizer")
raises(AttributeError, "no attribute", getattr, hvd, "no_such_name")
raises(AttributeError, "ModelCheckpoint", getattr, hvd.callbacks, "BestModelCheckpoint")
raises(ValueError, "initial_lr", hvd.callbacks.LearningRateScheduleCallback, None, 0.5)

keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).save("no_optimizer.keras")
raises(TypeError, "optimizer", hvd.load_model, "no_optimizer.keras")

# Everything but elastic, and the names of the Horovod documentation, is there.
import horovod.tensorflow.keras as official  # noqa: E402

public = {n for n in vars(official) if not n.startswith("_")} - {
    *(
        "K",
        "elastic",
        "inspect",
        "is_version_greater_equal_than",
        "keras",
        "tf",
        "version",
        "warnings",
    )
}
missing = {name for name in public if not hasattr(hvd, name)}
assert not missing, missing
names = {n for n in vars(official.callbacks) if n.endswith("Callback")}
assert names and all(hasattr(hvd.callbacks, name) for name in names), names

# The wrapped class passes for the original, and an optimizer that has run keeps its state.
variable = keras.Variable([1.0])
old = SGD(0.1, momentum=0.9)
old.apply([keras.ops.ones(1)], [variable])
hvd.init()
new = wrap(old)
assert (type(new).__name__, type(new).__module__) == ("SGD", SGD.__module__) and isinstance(
    new, SGD
)
assert flat(new.variables).tolist() == flat(old.variables).tolist() and new.iterations.numpy() == 1
new.apply([keras.ops.ones(1)], [variable])
assert abs(variable.numpy()[0] - (1 - 0.1 - 0.19)) < 1e-6
