"""LARS and LARC: the rate of a layer follows the ratio of its weights' norm to its gradient's."""

import keras
from keras import ops

from hvdlab.keras.optimizers.layerwise import (
    TrustRatioOptimizer,
    check_choice,
    check_numbers,
    norm,
    tensors,
)


@keras.saving.register_keras_serializable(package="hvdlab")
class LARS(TrustRatioOptimizer):
    """Layer-wise adaptive rate scaling; with `clip=True` LARC. See `hvdlab.reference.lars`.

    The step of a variable w with gradient g is its momentum times learning_rate and
    trust_coefficient ||w|| / (||g|| + weight_decay ||w|| + epsilon).

    Args:
        learning_rate: global rate: a float, schedule or callable. Default 1.0.
        momentum: from 0 to below 1. Default 0.9.
        weight_decay: inside the adapted step. Default 0.
        trust_coefficient: Default None: 0.001, or 0.02 with `clip`.
        epsilon: added to the denominator. Default 0: a norm of zero is guarded without it.
        clip: LARC: the local rate never exceeds `learning_rate`. Default False.
        nesterov: Nesterov momentum. Default False.
        momentum_form: "torch" (default): the velocity holds gradients and the rate multiplies it;
            "paper": the velocity holds steps that keep the rate of their time, as in Keras' SGD.
        exclude_1d: True (default): variables of at most one dimension get plain momentum SGD at
            `learning_rate`, without decay.

    Source: You, Gitman, Ginsburg, Large Batch Training of Convolutional Networks, 2017,
    arXiv:1708.03888. LARC: NVIDIA apex.
    """

    own_arguments = "momentum", "trust_coefficient", "epsilon", "clip", "nesterov", "momentum_form"

    def __init__(
        self,
        learning_rate=1.0,
        momentum=0.9,
        weight_decay=0.0,
        trust_coefficient=None,
        epsilon=0.0,
        clip=False,
        nesterov=False,
        momentum_form="torch",
        exclude_1d=True,
        name="lars",
        **kwargs,
    ):
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

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self._velocities = self.add_optimizer_variables(variables, "velocity")

    def update_step(self, gradient, variable, learning_rate):
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

    def _local_rate(self, w, g, decay, rate):
        """Return the factor of the update, without the global rate."""
        trust = self.trust_coefficient
        if trust is None:
            trust = 0.02 if self.clip else 0.001
        w_norm, g_norm = norm(w), norm(g)
        local = trust * w_norm / (g_norm + decay * w_norm + self.epsilon)
        if self.clip:
            local = ops.where(local < rate, local / rate, 1.0)
        return ops.where(ops.logical_and(w_norm > 0, g_norm > 0), local, 1.0)
