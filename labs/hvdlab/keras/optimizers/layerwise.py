"""What LARS, LAMB and NovoGrad share: decay, exceptions, tensors of one dtype, checks of arguments."""

import math
import re

import keras
from keras import ops


class LayerwiseOptimizer(keras.optimizers.Optimizer):
    """What the three share: decay inside the update, and who is spared it."""

    own_arguments: tuple[str, ...]

    def __init__(self, learning_rate, weight_decay, exclude_1d, **kwargs):
        if isinstance(learning_rate, int | float):
            check_numbers(learning_rate=learning_rate)
        check_numbers(weight_decay=weight_decay)
        check_choice("exclude_1d", exclude_1d, True, False)
        # Not weight_decay: the base class would decay the weights a second time.
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.inner_weight_decay, self.exclude_1d = weight_decay, exclude_1d

    def get_config(self):
        own = {name: getattr(self, name) for name in ("exclude_1d", *self.own_arguments)}
        return {**super().get_config(), "weight_decay": self.inner_weight_decay, **own}

    def _is_spared(self, variable):
        return self.exclude_1d and len(variable.shape) <= 1

    def _of_keras(self, variable):
        """What update_step gets is on TensorFlow a variable of its own, under another name."""
        return self._trainable_variables[self._get_variable_index(variable)]

    def _decay(self, variable):
        decays = self._use_weight_decay(self._of_keras(variable)) and not self._is_spared(variable)
        return self.inner_weight_decay if decays else 0.0


class TrustRatioOptimizer(LayerwiseOptimizer):
    """What LARS and LAMB share: which variables get a rate of their own."""

    _unadapted, _unadapted_names = frozenset(), ()

    def exclude_from_adaptation(self, var_list=None, var_names=None):
        """Give variables the plain update at the global rate. Their decay is another matter.

        Args:
            var_list: variables.
            var_names: regular expressions to search for in the paths of variables, such as
                "dense_1/bias". (`exclude_from_weight_decay` of Keras searches names: "bias".)
        """
        self._unadapted = frozenset(self._var_key(variable) for variable in var_list or ())
        self._unadapted_names = tuple(var_names or ())

    def _adapts(self, variable):
        listed = self._var_key(variable) in self._unadapted
        of_keras = self._of_keras(variable)
        path = getattr(of_keras, "path", of_keras.name)  # a tf.Variable has none
        named = any(re.search(name, path) for name in self._unadapted_names)
        return not (listed or named or self._is_spared(variable))


def working_dtype(variable):
    """The dtype to compute in: the variable's, but float32 at least."""
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def tensors(variable, gradient, *values):
    """Return the variable, its gradient and other values as dense tensors of one dtype."""
    if hasattr(gradient, "dense_shape"):  # tf.IndexedSlices
        gradient = ops.add(ops.zeros_like(variable), gradient)
    # Not ops.cast: TensorFlow would round Python's numbers to float32 first.
    return [
        ops.convert_to_tensor(x, working_dtype(variable)) for x in (variable, gradient, *values)
    ]


def norm(x):
    return ops.sqrt(ops.sum(ops.square(x)))


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_numbers(below=math.inf, **numbers):
    for name, value in numbers.items():
        if not (is_number(value) and 0 <= value < below):
            until = "" if below == math.inf else f" and below {below}"
            raise ValueError(
                f"{name} must be a number of at least 0{until}. Received: {name}={value!r}"
            )


def check_choice(name, value, *choices):
    if value not in choices:
        expected = " or ".join(map(repr, choices))
        raise ValueError(f"{name} must be {expected}. Received: {name}={value!r}")
