"""NovoGrad: momentum over gradients that are divided by the running norm of their layer."""

from typing import Any

import keras
from keras import ops

from hvdlab.keras.optimizers.layerwise import (
    LayerwiseOptimizer,
    LearningRate,
    check_choice,
    check_numbers,
    tensors,
    working_dtype,
)


@keras.saving.register_keras_serializable(package="hvdlab")
class NovoGrad(LayerwiseOptimizer):
    """Momentum over gradients divided by the norm of their layer. See `hvdlab.reference.novograd`.

    Args:
        learning_rate: a float, a schedule or a function. Default 0.001.
        beta_1: decay of the momentum, from 0 to below 1. Default 0.95.
        beta_2: decay of the squared norm, from 0 to below 1. Default 0.98.
        epsilon: added to the norm, above 0. Default 1e-8.
        weight_decay: factor of the weights that are added to the normalised gradient. Default 0.
        grad_averaging: whether the normalised gradient is multiplied by 1 - beta_1 before it is added to
            the momentum. Default False.
        exclude_1d: whether variables of at most one dimension (biases, scales of norms) get no weight
            decay. Their gradients are normalised in any case, as the algorithm says. Default True.
        name: name of the optimizer, which prefixes the names of its variables. Default "novograd".
        **kwargs: other arguments of Keras' optimizers; see `hvdlab.keras.optimizers`.

    Raises:
        ValueError: an argument is out of its range.

    Source: Ginsburg et al., Stochastic Gradient Methods with Layer-wise Adaptive Moments, 2019,
    algorithm 1, arXiv:1905.11286.
    """

    own_arguments = "beta_1", "beta_2", "epsilon", "grad_averaging"

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.95,
        beta_2: float = 0.98,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        grad_averaging: bool = False,
        exclude_1d: bool = True,
        name: str = "novograd",
        **kwargs: Any,
    ) -> None:
        check_numbers(beta_1=beta_1, beta_2=beta_2, below=1)
        check_numbers(epsilon=epsilon)
        if epsilon == 0:
            raise ValueError(
                "epsilon must be above 0: a gradient of zero is divided by it. Received: epsilon=0"
            )
        check_choice("grad_averaging", grad_averaging, True, False)
        super().__init__(learning_rate, weight_decay, exclude_1d, name=name, **kwargs)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.grad_averaging = grad_averaging

    def build(self, variables: list[keras.Variable]) -> None:
        """Create the state of each variable; Keras calls this before the first update."""
        if not self.built:
            super().build(variables)
            self._momentums = self.add_optimizer_variables(variables, "momentum")
            self._squares = [
                self.add_variable((), dtype=working_dtype(v), name="square") for v in variables
            ]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable and its state; Keras calls this in each update."""
        i = self._get_variable_index(variable)
        state = self._momentums[i], self._squares[i]
        w, g, m, v, rate = tensors(variable, gradient, *state, learning_rate)

        square = ops.sum(ops.square(g))
        v = ops.where(v == 0, square, self.beta_2 * v + (1 - self.beta_2) * square)
        u = g / (ops.sqrt(v) + self.epsilon) + self._decay(variable) * w
        m = self.beta_1 * m + ((1 - self.beta_1) * u if self.grad_averaging else u)
        self.assign(state[0], m)
        self.assign(state[1], v)
        self.assign(variable, w - rate * m)
