"""LARS and LARC: the learning rate of a layer follows the norm of its weights over that of its gradient."""

from typing import Any

import keras
from keras import ops

from hvdlab.keras.optimizers.layerwise import (
    LearningRate,
    TrustRatioOptimizer,
    check_choice,
    check_numbers,
    norm,
    tensors,
)


@keras.saving.register_keras_serializable(package="hvdlab")
class LARS(TrustRatioOptimizer):
    """Layer-wise adaptive rate scaling (LARS); with `clip=True` LARC. See `hvdlab.reference.lars`.

    The learning rate of a variable w with gradient g is

        learning_rate * trust_coefficient * ||w|| / (||g|| + weight_decay * ||w|| + epsilon)

    Args:
        learning_rate: global learning rate: a float, a schedule or a function. Default 1.0.
        momentum: from 0 to below 1. Default 0.9.
        weight_decay: factor of the weights that are added to the gradient, inside the adapted step.
            Default 0.
        trust_coefficient: see the formula. Default None: 0.001, or 0.02 with `clip`.
        epsilon: added to the denominator. Default 0. A norm of zero needs no epsilon: the learning rate
            is then `learning_rate`.
        clip: whether the learning rate of a variable is at most `learning_rate` (LARC). Default False.
        nesterov: whether to use Nesterov momentum. Default False.
        momentum_form: "torch" (default): the velocity is a sum of gradients, which the current learning
            rate multiplies. "paper": the velocity is a sum of steps, each with the learning rate of its
            time, as in Keras' SGD.
        exclude_1d: whether variables of at most one dimension (biases, scales of norms) get plain
            momentum SGD at `learning_rate`, without decay. Default True.
        name: name of the optimizer, which prefixes the names of its variables. Default "lars".
        **kwargs: other arguments of Keras' optimizers; see `hvdlab.keras.optimizers`.

    Raises:
        ValueError: an argument is out of its range.

    Source: You, Gitman, Ginsburg, Large Batch Training of Convolutional Networks, 2017,
    arXiv:1708.03888. LARC: NVIDIA apex.
    """

    own_arguments = "momentum", "trust_coefficient", "epsilon", "clip", "nesterov", "momentum_form"

    def __init__(
        self,
        learning_rate: LearningRate = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float | None = None,
        epsilon: float = 0.0,
        clip: bool = False,
        nesterov: bool = False,
        momentum_form: str = "torch",
        exclude_1d: bool = True,
        name: str = "lars",
        **kwargs: Any,
    ) -> None:
        check_numbers(momentum=momentum, below=1)
        check_numbers(epsilon=epsilon)
        if trust_coefficient is not None:
            check_numbers(trust_coefficient=trust_coefficient)
        check_choice("clip", clip, True, False)
        check_choice("nesterov", nesterov, True, False)
        check_choice("momentum_form", momentum_form, "torch", "paper")
        super().__init__(learning_rate, weight_decay, exclude_1d, name=name, **kwargs)
        self.momentum, self.trust_coefficient, self.epsilon = momentum, trust_coefficient, epsilon
        self.clip, self.nesterov, self.momentum_form = clip, nesterov, momentum_form

    def build(self, variables: list[keras.Variable]) -> None:
        """Create the state of each variable; Keras calls this before the first update."""
        if not self.built:
            super().build(variables)
            self._velocities = self.add_optimizer_variables(variables, "velocity")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable and its state; Keras calls this in each update."""
        velocity = self._velocities[self._get_variable_index(variable)]
        w, g, v, rate = tensors(variable, gradient, velocity, learning_rate)
        decay = self._decay(variable)

        local = self._local_rate(w, g, decay, rate) if self._adapts(variable) else 1.0
        step = local * (g + decay * w)
        if self.momentum_form == "paper":
            step = rate * step
        v = self.momentum * v + step
        step = step + self.momentum * v if self.nesterov else v
        if self.momentum_form == "torch":
            step = rate * step
        self.assign(velocity, v)
        self.assign(variable, w - step)

    def _local_rate(self, w: Any, g: Any, decay: float, rate: Any) -> Any:
        """Return the factor of a variable's update, without the global learning rate."""
        trust = self.trust_coefficient
        if trust is None:
            trust = 0.02 if self.clip else 0.001
        w_norm, g_norm = norm(w), norm(g)
        local = trust * w_norm / (g_norm + decay * w_norm + self.epsilon)
        if self.clip:
            local = ops.where(local < rate, local / rate, 1.0)
        return ops.where(ops.logical_and(w_norm > 0, g_norm > 0), local, 1.0)
