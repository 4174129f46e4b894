"""Step time of the Keras optimizers on TensorFlow, ours and Keras' own, on the same networks.

A process of its own with one thread: `python -m hvdlab.bench.keras_optimizers NETWORK REPEATS`.
"""

import os
import sys
import time

from hvdlab.bench import ranks

# label: (algorithm, function that makes it)
KERAS_OPTIMIZERS = {
    "hvdlab Keras LARS": ("LARS", lambda k, ours: ours.LARS(1e-6, weight_decay=1e-4)),
    "hvdlab Keras LAMB": ("LAMB", lambda k, ours: ours.LAMB(1e-6)),
    "hvdlab Keras NovoGrad": ("NovoGrad", lambda k, ours: ours.NovoGrad(1e-6, weight_decay=1e-4)),
    "Keras Lamb": ("LAMB", lambda k, ours: k.optimizers.Lamb(1e-6, weight_decay=0.01)),
    "Keras SGD": ("SGD", lambda k, ours: k.optimizers.SGD(1e-6, momentum=0.9)),
    "Keras AdamW": ("AdamW", lambda k, ours: k.optimizers.AdamW(1e-6)),
}


def measure(shapes, repeats: int) -> dict[str, list[float]]:
    """Label -> milliseconds of `repeats` steps in a graph, in turns, on weights they share."""
    import keras
    import numpy as np
    import tensorflow as tf

    import hvdlab.keras as ours

    rng = np.random.default_rng(0)
    variables = [keras.Variable(0.05 * rng.standard_normal(s).astype("f4")) for s in shapes]
    gradients = [tf.constant(1e-3 * rng.standard_normal(s).astype("f4")) for s in shapes]

    def step_of(make):
        optimizer = make(keras, ours)
        optimizer.build(variables)
        return tf.function(lambda: optimizer.apply(gradients, variables))

    steps = {label: step_of(make) for label, (_, make) in KERAS_OPTIMIZERS.items()}
    times = {label: [] for label in steps}
    for round in range(repeats + 2):
        for label, step in steps.items():
            started = time.perf_counter()
            step()
            keras.ops.convert_to_numpy(variables[-1])  # a GPU has made the step then
            if round >= 2:  # after tracing and a first step
                times[label].append(1000 * (time.perf_counter() - started))
    return times


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    from hvdlab.bench.optimizers import NETWORKS

    times = measure(NETWORKS[sys.argv[1]](), int(sys.argv[2]))
    ranks.tell({"milliseconds": times, "device": ranks.device_of_tensorflow()})
