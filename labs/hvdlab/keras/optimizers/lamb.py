"""LAMB: Adam with a separate learning rate for each layer."""

from typing import Any

import keras
from keras import ops

from hvdlab.keras.optimizers.layerwise import (
    LearningRate,
    TrustRatioOptimizer,
    check_choice,
    check_numbers,
    is_number,
    norm,
    tensors,
)


@keras.saving.register_keras_serializable(package="hvdlab")
class LAMB(TrustRatioOptimizer):
    """Adam whose step of a variable has the length learning_rate * ||w||. See `hvdlab.reference.lamb`.

    In contrast to `keras.optimizers.Lamb`, the weight decay is inside the adapted step, as in the paper.

    Args:
        learning_rate: global learning rate: a float, a schedule or a function. Default 0.001.
        beta_1: decay of the average of the gradient, from 0 to below 1. Default 0.9.
        beta_2: decay of the average of the squared gradient, from 0 to below 1. Default 0.999.
        epsilon: added to the square root, outside of it. Default 1e-6.
        weight_decay: factor of the weights that are added to Adam's update, inside the adapted step.
            Default 0.01.
        bias_correction: whether the averages are divided by 1 - beta ** step. Default True.
        clip: (low, high), the range to which the norm of the weights is clipped. Default None: no
            clipping.
        exclude_1d: whether variables of at most one dimension (biases, scales of norms) get Adam at
            `learning_rate`, without decay. Default True.
        name: name of the optimizer, which prefixes the names of its variables. Default "lamb".
        **kwargs: other arguments of Keras' optimizers; see `hvdlab.keras.optimizers`.

    Raises:
        ValueError: an argument is out of its range.

    Source: You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes,
    2020, algorithm 2, arXiv:1904.00962.
    """

    own_arguments = "beta_1", "beta_2", "epsilon", "bias_correction", "clip"

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = True,
        clip: tuple[float, float] | None = None,
        exclude_1d: bool = True,
        name: str = "lamb",
        **kwargs: Any,
    ) -> None:
        check_numbers(beta_1=beta_1, beta_2=beta_2, below=1)
        check_numbers(epsilon=epsilon)
        check_choice("bias_correction", bias_correction, True, False)
        if clip is not None and not _is_range(clip):
            raise ValueError(
                f"clip must be None or (low, high) with 0 <= low <= high. Received: clip={clip!r}"
            )
        super().__init__(learning_rate, weight_decay, exclude_1d, name=name, **kwargs)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.bias_correction, self.clip = bias_correction, clip

    def build(self, variables: list[keras.Variable]) -> None:
        """Create the state of each variable; Keras calls this before the first update."""
        if not self.built:
            super().build(variables)
            names = ["momentum", "velocity"]
            self._momentums, self._velocities = self.add_optimizer_variables(variables, names)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable and its state; Keras calls this in each update."""
        i = self._get_variable_index(variable)
        state = self._momentums[i], self._velocities[i]
        t = self.iterations + 1
        w, g, m, v, rate, t = tensors(variable, gradient, *state, learning_rate, t)

        m = self.beta_1 * m + (1 - self.beta_1) * g
        v = self.beta_2 * v + (1 - self.beta_2) * ops.square(g)
        c1, c2 = (1 - self.beta_1**t, 1 - self.beta_2**t) if self.bias_correction else (1.0, 1.0)
        r = m / c1 / (ops.sqrt(v / c2) + self.epsilon) + self._decay(variable) * w
        ratio = self._ratio(w, r) if self._adapts(variable) else 1.0
        self.assign(state[0], m)
        self.assign(state[1], v)
        self.assign(variable, w - rate * ratio * r)

    def _ratio(self, w: Any, r: Any) -> Any:
        """Return ||w|| / ||r||, or 1 where one of them is 0, for weights w and their update r."""
        w_norm, r_norm = norm(w), norm(r)
        phi = ops.clip(w_norm, *self.clip) if self.clip else w_norm
        return ops.where(ops.logical_and(w_norm > 0, r_norm > 0), phi / r_norm, 1.0)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, from which `from_config` makes an equal optimizer."""
        # A list, because Keras writes a tuple in a form that from_config cannot read.
        return {**super().get_config(), "clip": self.clip and list(self.clip)}


def _is_range(value: Any) -> bool:
    is_pair = isinstance(value, tuple | list) and len(value) == 2 and all(map(is_number, value))
    return is_pair and 0 <= value[0] <= value[1]
