"""In a single process without MPI: what hvd refuses, and that a single rank sends nothing."""

import keras
import numpy as np
from common import flat, raises

import hvdlab.keras.horovod as hvd
from hvdlab.keras.optimizers import LAMB

SGD, wrap = keras.optimizers.SGD, hvd.DistributedOptimizer
raises(TypeError, "keras.optimizers.Optimizer", wrap, "sgd")
raises(TypeError, "keras.optimizers.Optimizer", wrap, SGD)
raises(ValueError, "op must be", wrap, SGD(), op=hvd.Min)
raises(ValueError, "groups", wrap, SGD(), groups=[[1]])
raises(ValueError, "groups", wrap, SGD(), groups=0)
raises(
    ValueError, "gradient_predivide_factor", wrap, SGD(), op=hvd.Sum, gradient_predivide_factor=2
)
raises(ValueError, "backward_passes_per_step", wrap, SGD(), backward_passes_per_step=0)
accumulating = SGD(gradient_accumulation_steps=2)
raises(ValueError, "a new optimizer", wrap, accumulating, backward_passes_per_step=3)
wrap(accumulating, backward_passes_per_step=2)
used = SGD(0.1)
used.build([keras.Variable([1.0])])
raises(ValueError, "a new optimizer", wrap, used, backward_passes_per_step=2)


class Accumulating(SGD):
    def _backend_apply_gradients(self, grads, trainable_variables):
        raise NotImplementedError


raises(ValueError, "Accumulating with its own", wrap, Accumulating(), backward_passes_per_step=2)
wrap(Accumulating())
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

# What an optimizer leaves alone, its copy does. Without adaptation LAMB takes rate x decay of a weight.
for optimizer, exclude, expected in (
    (keras.optimizers.AdamW(0.1, weight_decay=0.1), "exclude_from_weight_decay", [1, 1, 0.99]),
    (LAMB(0.1, weight_decay=0.1), "exclude_from_adaptation", [0.99, 0.99, 0.9]),
):
    variables = [keras.Variable([[1.0]], name=name) for name in ("bias", "listed", "kernel")]
    getattr(optimizer, exclude)(var_list=variables[1:2], var_names=["bias"])
    wrap(optimizer).apply([keras.ops.zeros((1, 1))] * 3, variables)
    np.testing.assert_allclose(flat(variables), expected, rtol=1e-6)

# So do the optimizers of a MultiOptimizer, each for itself.
decays, adapts = keras.optimizers.AdamW(0.1, weight_decay=0.1), LAMB(0.1, weight_decay=0.1)
decays.exclude_from_weight_decay(var_names=["bias"])
adapts.exclude_from_adaptation(var_names=["listed"])
both = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(decays, {"listed": adapts}))
variables = [keras.Variable([[1.0]], name=name) for name in ("bias", "listed", "kernel")]
wrap(both).apply([keras.ops.zeros((1, 1))] * 3, variables)
np.testing.assert_allclose(flat(variables), [1, 0.99, 0.99], rtol=1e-6)


# A rate may be a function, or a schedule that a script defines.
class Falling(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 1 / (keras.ops.cast(step, "float32") + 2)

    def get_config(self):
        return {}


for rate, after_two in ((lambda: 0.5, 0.0), (Falling(), 1 - 1 / 2 - 1 / 3)):
    variable = keras.Variable([1.0])
    falling = wrap(SGD(rate))
    for _ in range(2):
        falling.apply([keras.ops.ones(1)], [variable])
    assert abs(variable.numpy()[0] - after_two) < 1e-6

# One rank: passes are summed, XLA compiles, and the loss scale around an optimizer keeps its state.
variable = keras.Variable([1.0])
two_passes = wrap(SGD(0.1), backward_passes_per_step=2)
for _ in range(2):
    two_passes.apply([keras.ops.ones(1)], [variable])
assert abs(variable.numpy()[0] - 0.8) < 1e-6
variable = keras.Variable([1.0])
mean_of_two = wrap(SGD(0.1, gradient_accumulation_steps=2))
for _ in range(2):
    mean_of_two.apply([keras.ops.ones(1)], [variable])
assert abs(variable.numpy()[0] - 0.9) < 1e-6
old = scaled(SGD(0.1, momentum=0.9), initial_scale=8.0)
old.apply([keras.ops.ones(1)], [variable])
new = wrap(old)
assert type(new) is scaled and flat(new.variables).tolist() == flat(old.variables).tolist()
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile(wrap(SGD()), "mse", jit_compile=True)
model.fit(keras.ops.ones((4, 1)), keras.ops.ones((4, 1)), verbose=0)
assert model.jit_compile
