"""Base classes of LARS, LAMB and NovoGrad: weight decay, exclusions, dtypes and checks of arguments."""

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import keras
from keras import ops

LearningRate = float | keras.optimizers.schedules.LearningRateSchedule | Callable[[], Any]


class LayerwiseOptimizer(keras.optimizers.Optimizer):
    """Base class: applies weight decay inside the update, but not to excluded variables.

    Args:
        learning_rate: a float of at least 0, a schedule or a function.
        weight_decay: factor of the weights in the update, at least 0.
        exclude_1d: whether variables of at most one dimension are excluded from decay.
        **kwargs: other arguments of `keras.optimizers.Optimizer`.

    Raises:
        ValueError: an argument is out of its range.
    """

    own_arguments: tuple[str, ...]  # names of the subclass's arguments, which are also attributes

    def __init__(
        self, learning_rate: LearningRate, weight_decay: float, exclude_1d: bool, **kwargs: Any
    ) -> None:
        if isinstance(learning_rate, int | float):
            check_numbers(learning_rate=learning_rate)
        check_numbers(weight_decay=weight_decay)
        check_choice("exclude_1d", exclude_1d, True, False)
        # weight_decay is not passed on, because Keras would decay the weights a second time.
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.inner_weight_decay, self.exclude_1d = weight_decay, exclude_1d

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, from which `from_config` makes an equal optimizer."""
        own = {name: getattr(self, name) for name in ("exclude_1d", *self.own_arguments)}
        return {**super().get_config(), "weight_decay": self.inner_weight_decay, **own}

    def _is_excluded(self, variable: Any) -> bool:
        return self.exclude_1d and len(variable.shape) <= 1

    def _keras_variable(self, variable: Any) -> Any:
        """Return the Keras variable of a variable that `update_step` receives.

        On TensorFlow `update_step` receives TensorFlow's variable, which has another name.
        """
        return self._trainable_variables[self._get_variable_index(variable)]

    def _decay(self, variable: Any) -> float:
        used = self._use_weight_decay(self._keras_variable(variable))
        return self.inner_weight_decay if used and not self._is_excluded(variable) else 0.0


class TrustRatioOptimizer(LayerwiseOptimizer):
    """Base class of LARS and LAMB: decides which variables get a separate learning rate."""

    _unadapted, _unadapted_names = frozenset(), ()

    def exclude_from_adaptation(
        self, var_list: Iterable[Any] | None = None, var_names: Iterable[str] | None = None
    ) -> None:
        """Make some variables get the plain update at the global learning rate.

        Their weight decay does not change: see Keras' `exclude_from_weight_decay`.

        Args:
            var_list: variables to exclude. Default: none.
            var_names: regular expressions that are searched in the paths of variables, such as
                "dense_1/bias". (`exclude_from_weight_decay` searches names, such as "bias".) Default:
                none.
        """
        self._unadapted = frozenset(self._var_key(variable) for variable in var_list or ())
        self._unadapted_names = tuple(var_names or ())

    def _adapts(self, variable: Any) -> bool:
        listed = self._var_key(variable) in self._unadapted
        keras_variable = self._keras_variable(variable)
        path = getattr(keras_variable, "path", keras_variable.name)  # a tf.Variable has no path
        named = any(re.search(name, path) for name in self._unadapted_names)
        return not (listed or named or self._is_excluded(variable))


def working_dtype(variable: Any) -> str:
    """Return the dtype to compute in: the variable's, but at least float32."""
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def tensors(variable: Any, gradient: Any, *values: Any) -> list[Any]:
    """Return a variable, its gradient and other values as dense tensors of one dtype.

    Args:
        variable: variable of the backend or of Keras.
        gradient: dense, or `tf.IndexedSlices`.
        *values: tensors, variables or numbers.
    """
    if hasattr(gradient, "dense_shape"):  # tf.IndexedSlices
        gradient = ops.add(ops.zeros_like(variable), gradient)
    # ops.cast would not do: TensorFlow would round Python's numbers to float32 first.
    return [
        ops.convert_to_tensor(x, working_dtype(variable)) for x in (variable, gradient, *values)
    ]


def norm(x: Any) -> Any:
    """Return the L2 norm of a tensor, as a scalar tensor."""
    return ops.sqrt(ops.sum(ops.square(x)))


def is_number(value: Any) -> bool:
    """Return whether a value is an int or a float; a bool is not a number here."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_numbers(below: float = math.inf, **numbers: Any) -> None:
    """Check that arguments are numbers of at least 0 and below a limit.

    Args:
        below: the limit. Default: none.
        **numbers: values by the name of the argument.

    Raises:
        ValueError: an argument is out of its range.
    """
    for name, value in numbers.items():
        if not (is_number(value) and 0 <= value < below):
            until = "" if below == math.inf else f" and below {below}"
            raise ValueError(
                f"{name} must be a number of at least 0{until}. Received: {name}={value!r}"
            )


def check_choice(name: str, value: Any, *choices: Any) -> None:
    """Check that an argument has one of the allowed values.

    Raises:
        ValueError: the value is another one.
    """
    if value not in choices:
        expected = " or ".join(map(repr, choices))
        raise ValueError(f"{name} must be {expected}. Received: {name}={value!r}")
