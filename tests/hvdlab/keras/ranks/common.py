"""Helpers of the rank scripts: tiny data, a model seeded differently on every rank, and invariants.

A test starts a rank script through mpirun on two ranks. It exits with 0 when its assertions held on
all ranks; mpirun ends the other rank when one fails.
"""

import keras
import numpy as np
from settings import BATCH_SIZE, STEPS, data  # noqa: F401

import hvdlab.keras.horovod as hvd


def my_share(x):
    """Return every second row, so that batch i of two ranks together is batch i of the whole."""
    return x[hvd.rank() :: 2]


def seeded_model(input_shape=True):
    """Return a two-layer network whose initial weights differ from rank to rank."""
    keras.utils.set_random_seed(100 + hvd.rank())
    first = [keras.Input((5,))] if input_shape else []
    return keras.Sequential(
        [*first, keras.layers.Dense(7, activation="tanh"), keras.layers.Dense(3)]
    )


def flat(variables):
    return np.concatenate([keras.ops.convert_to_numpy(v).ravel() for v in variables])


def on_all_ranks(variables):
    """Return one row of flattened variables a rank."""
    return hvd.allgather(flat(variables)[None]).numpy()


def assert_equal_on_all_ranks(variables):
    rows = on_all_ranks(variables)
    assert len(rows) == 2
    np.testing.assert_array_equal(rows[0], rows[1])


class EqualRanks(keras.callbacks.Callback):
    """Assert after every step that weights and optimizer state agree, and count the steps."""

    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        assert_equal_on_all_ranks(self.model.weights)
        state = self.model.optimizer.variables
        assert_equal_on_all_ranks([v for v in state if "gradient_accumulator" not in v.path])
        self.steps += 1


def serial_weights(weights, optimizer, batch_size=2 * BATCH_SIZE, **compile_options):
    """Train alone, with a plain optimizer, on the union of both ranks' batches."""
    model = seeded_model()
    model.set_weights(weights)
    model.compile(optimizer, "mse", **compile_options)
    x, y = data()
    model.fit(x, y, batch_size=batch_size, epochs=2, shuffle=False, verbose=0)
    return flat(model.weights)


def root_weights(model):
    """Return rank 0's weights without changing the model's own."""
    return [hvd.broadcast(w, 0).numpy() for w in model.get_weights()]


def raises(kind, text, function, *args, **kwargs):
    """Assert that a call raises `kind` with `text` in a message of one line."""
    try:
        function(*args, **kwargs)
    except kind as error:
        assert text in str(error) and "\n" not in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__} with {text!r}")
