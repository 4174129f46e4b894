"""Measure the step time of the Keras optimizers on TensorFlow, ours and Keras' own, on the same weights.

It runs in its own process with one thread: `python -m hvdlab.bench.keras_optimizers NETWORK REPEATS`.
"""

import os
import sys
from collections.abc import Callable, Sequence

from hvdlab.bench import ranks, results
from hvdlab.bench.weight_shapes import NETWORKS, Shape

# Label -> (algorithm, function of the modules `keras` and `hvdlab.keras` that returns the optimizer).
KERAS_OPTIMIZERS = {
    "hvdlab Keras LARS": ("LARS", lambda k, ours: ours.LARS(1e-6, weight_decay=1e-4)),
    "hvdlab Keras LAMB": ("LAMB", lambda k, ours: ours.LAMB(1e-6)),
    "hvdlab Keras NovoGrad": ("NovoGrad", lambda k, ours: ours.NovoGrad(1e-6, weight_decay=1e-4)),
    "Keras Lamb": ("LAMB", lambda k, ours: k.optimizers.Lamb(1e-6, weight_decay=0.01)),
    "Keras SGD": ("SGD", lambda k, ours: k.optimizers.SGD(1e-6, momentum=0.9)),
    "Keras AdamW": ("AdamW", lambda k, ours: k.optimizers.AdamW(1e-6)),
}
WARM_UP_STEPS = 2  # the first one also traces the graph


def measure(shapes: Sequence[Shape], repeats: int) -> dict[str, list[float]]:
    """Measure steps in a TensorFlow graph; the optimizers take turns on the same weights.

    Args:
        repeats: number of timed steps.

    Returns:
        Label -> [milliseconds per step].
    """
    import keras
    import numpy as np
    import tensorflow as tf

    import hvdlab.keras as ours

    rng = np.random.default_rng(0)
    variables = [keras.Variable(0.05 * rng.standard_normal(s).astype("f4")) for s in shapes]
    gradients = [tf.constant(1e-3 * rng.standard_normal(s).astype("f4")) for s in shapes]

    def step_of(make: Callable) -> Callable[[], object]:
        optimizer = make(keras, ours)
        optimizer.build(variables)
        step = tf.function(lambda: optimizer.apply(gradients, variables))
        # The copy waits until a GPU has made the step.
        return lambda: (step(), keras.ops.convert_to_numpy(variables[-1]))

    steps = {label: step_of(make) for label, (_, make) in KERAS_OPTIMIZERS.items()}
    return results.milliseconds_in_turns(steps, repeats, WARM_UP_STEPS)


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    times = measure(NETWORKS[sys.argv[1]](), int(sys.argv[2]))
    ranks.tell({"milliseconds": times, "device": ranks.device_of_tensorflow()})
