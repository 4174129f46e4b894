"""LARS, LARC, LAMB and NovoGrad for Keras 3, on any backend: a learning rate for each layer.

The formulas are those of `hvdlab.reference`. Common to the three:

  weight_decay   is part of the update, inside norms and moments. Keras' own decay, which shrinks the
                 weights beside the update, stays off: the attribute `optimizer.weight_decay` is None.
  exclude_1d     spares biases and the scales of norms. `exclude_from_weight_decay` names more. Like
                 all such calls it is not part of the config: call it on the optimizer that trains,
                 for instance on what `hvd.DistributedOptimizer` returns.
  **kwargs       are clipnorm, clipvalue, global_clipnorm, use_ema, ema_momentum, loss_scale_factor,
                 ema_overwrite_frequency and gradient_accumulation_steps of Keras' optimizers.
  ValueError     names an argument that is out of its range.
  precision      a step is computed in float32 at least, also for float16 and bfloat16 variables, whose
                 moments however have the variable's dtype, as in Keras. Prefer "mixed_..." policies.
  sparse         gradients (`tf.IndexedSlices`, of embeddings) are made dense, repeated rows summed:
                 momentum and decay move all rows in any case.
  NaN and inf    in gradients end in NaN weights, as in Keras' optimizers; see `LossScaleOptimizer`.
"""

import math
import re

import keras
from keras import ops


class _LayerWise(keras.optimizers.Optimizer):
    """What the three share: decay inside the update, and who is spared it."""

    own_arguments: tuple[str, ...]

    def __init__(self, learning_rate, weight_decay, exclude_1d, **kwargs):
        if isinstance(learning_rate, int | float):
            _check_numbers(learning_rate=learning_rate)
        _check_numbers(weight_decay=weight_decay)
        _check_choice("exclude_1d", exclude_1d, True, False)
        # Not weight_decay: the base class would decay the weights a second time.
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.inner_weight_decay, self.exclude_1d = weight_decay, exclude_1d

    def get_config(self):
        own = {name: getattr(self, name) for name in ("exclude_1d", *self.own_arguments)}
        return {**super().get_config(), "weight_decay": self.inner_weight_decay, **own}

    def _is_spared(self, variable):
        return self.exclude_1d and len(variable.shape) <= 1

    def _decay(self, variable):
        decays = self._use_weight_decay(variable) and not self._is_spared(variable)
        return self.inner_weight_decay if decays else 0.0


class _TrustRatio(_LayerWise):
    """What LARS and LAMB share: which variables get a rate of their own."""

    _unadapted, _unadapted_names = frozenset(), ()

    def exclude_from_adaptation(self, var_list=None, var_names=None):
        """Give variables the plain update at the global rate. Their decay is another matter.

        Args:
            var_list: variables.
            var_names: regular expressions to search for in the names of variables.
        """
        self._unadapted = frozenset(self._var_key(variable) for variable in var_list or ())
        self._unadapted_names = tuple(var_names or ())

    def _adapts(self, variable):
        listed = self._var_key(variable) in self._unadapted
        named = any(re.search(name, variable.name) for name in self._unadapted_names)
        return not (listed or named or self._is_spared(variable))


@keras.saving.register_keras_serializable(package="hvdlab")
class LARS(_TrustRatio):
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
        _check_numbers(momentum=momentum, below=1)
        _check_numbers(epsilon=epsilon)
        if trust_coefficient is not None:
            _check_numbers(trust_coefficient=trust_coefficient)
        _check_choice("clip", clip, True, False)
        _check_choice("nesterov", nesterov, True, False)
        _check_choice("momentum_form", momentum_form, "torch", "paper")
        super().__init__(learning_rate, weight_decay, exclude_1d, name=name, **kwargs)
        self.momentum, self.trust_coefficient, self.epsilon = momentum, trust_coefficient, epsilon
        self.clip, self.nesterov, self.momentum_form = clip, nesterov, momentum_form

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self._velocities = self.add_optimizer_variables(variables, "velocity")

    def update_step(self, gradient, variable, learning_rate):
        velocity = self._velocities[self._get_variable_index(variable)]
        w, g, v, rate = _tensors(variable, gradient, velocity, learning_rate)
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
        w_norm, g_norm = _norm(w), _norm(g)
        local = trust * w_norm / (g_norm + decay * w_norm + self.epsilon)
        if self.clip:
            local = ops.where(local < rate, local / rate, 1.0)
        return ops.where(ops.logical_and(w_norm > 0, g_norm > 0), local, 1.0)


@keras.saving.register_keras_serializable(package="hvdlab")
class LAMB(_TrustRatio):
    """Adam whose step of a variable is as long as the rate times its norm; `hvdlab.reference.lamb`.

    Unlike `keras.optimizers.Lamb`, the decay is inside the adapted step, as in the paper.

    Args:
        learning_rate: global rate: a float, schedule or callable. Default 0.001.
        beta_1, beta_2: decay of the averages of the gradient and its square. Default 0.9, 0.999.
        epsilon: added to the root, outside of it. Default 1e-6.
        weight_decay: inside the adapted step. Default 0.01.
        bias_correction: Default True.
        clip: (low, high) for the norm of the weights, or None (default) to take it as it is.
        exclude_1d: True (default): variables of at most one dimension get Adam at
            `learning_rate`, without decay.

    Source: You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes,
    2020, algorithm 2, arXiv:1904.00962.
    """

    own_arguments = "beta_1", "beta_2", "epsilon", "bias_correction", "clip"

    def __init__(
        self,
        learning_rate=0.001,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        weight_decay=0.01,
        bias_correction=True,
        clip=None,
        exclude_1d=True,
        name="lamb",
        **kwargs,
    ):
        _check_numbers(beta_1=beta_1, beta_2=beta_2, below=1)
        _check_numbers(epsilon=epsilon)
        _check_choice("bias_correction", bias_correction, True, False)
        if clip is not None and not _is_range(clip):
            raise ValueError(
                f"clip must be None or (low, high) with 0 <= low <= high. Received: clip={clip!r}"
            )
        super().__init__(learning_rate, weight_decay, exclude_1d, name=name, **kwargs)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.bias_correction, self.clip = bias_correction, clip

    def build(self, variables):
        if not self.built:
            super().build(variables)
            names = ["momentum", "velocity"]
            self._momentums, self._velocities = self.add_optimizer_variables(variables, names)

    def update_step(self, gradient, variable, learning_rate):
        i = self._get_variable_index(variable)
        state = self._momentums[i], self._velocities[i]
        t = self.iterations + 1
        w, g, m, v, rate, t = _tensors(variable, gradient, *state, learning_rate, t)

        m = self.beta_1 * m + (1 - self.beta_1) * g
        v = self.beta_2 * v + (1 - self.beta_2) * ops.square(g)
        c1, c2 = (1 - self.beta_1**t, 1 - self.beta_2**t) if self.bias_correction else (1.0, 1.0)
        r = m / c1 / (ops.sqrt(v / c2) + self.epsilon) + self._decay(variable) * w
        ratio = self._ratio(w, r) if self._adapts(variable) else 1.0
        self.assign(state[0], m)
        self.assign(state[1], v)
        self.assign(variable, w - rate * ratio * r)

    def _ratio(self, w, r):
        w_norm, r_norm = _norm(w), _norm(r)
        phi = ops.clip(w_norm, *self.clip) if self.clip else w_norm
        return ops.where(ops.logical_and(w_norm > 0, r_norm > 0), phi / r_norm, 1.0)

    def get_config(self):
        # A list: Keras writes a tuple in a form that from_config does not read back.
        return {**super().get_config(), "clip": self.clip and list(self.clip)}


@keras.saving.register_keras_serializable(package="hvdlab")
class NovoGrad(_LayerWise):
    """Momentum over gradients divided by their layer's norm; see `hvdlab.reference.novograd`.

    Args:
        learning_rate: a float, schedule or callable. Default 0.001.
        beta_1, beta_2: decay of the momentum and of the squared norm. Default 0.95, 0.98.
        epsilon: added to the norm, above 0. Default 1e-8.
        weight_decay: added to the normalised gradient. Default 0.
        grad_averaging: multiply what enters the momentum by 1 - beta_1. Default False.
        exclude_1d: True (default): variables of at most one dimension are not decayed. They are
            normalised: that is the method.

    Source: Ginsburg et al., Stochastic Gradient Methods with Layer-wise Adaptive Moments, 2019,
    algorithm 1, arXiv:1905.11286.
    """

    own_arguments = "beta_1", "beta_2", "epsilon", "grad_averaging"

    def __init__(
        self,
        learning_rate=0.001,
        beta_1=0.95,
        beta_2=0.98,
        epsilon=1e-8,
        weight_decay=0.0,
        grad_averaging=False,
        exclude_1d=True,
        name="novograd",
        **kwargs,
    ):
        _check_numbers(beta_1=beta_1, beta_2=beta_2, below=1)
        _check_numbers(epsilon=epsilon)
        if epsilon == 0:
            raise ValueError(
                "epsilon must be above 0: a gradient of zero is divided by it. Received: epsilon=0"
            )
        _check_choice("grad_averaging", grad_averaging, True, False)
        super().__init__(learning_rate, weight_decay, exclude_1d, name=name, **kwargs)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.grad_averaging = grad_averaging

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self._momentums = self.add_optimizer_variables(variables, "momentum")
            self._squares = [
                self.add_variable((), dtype=_dtype(v), name="square") for v in variables
            ]

    def update_step(self, gradient, variable, learning_rate):
        i = self._get_variable_index(variable)
        state = self._momentums[i], self._squares[i]
        w, g, m, v, rate = _tensors(variable, gradient, *state, learning_rate)

        square = ops.sum(ops.square(g))
        v = ops.where(v == 0, square, self.beta_2 * v + (1 - self.beta_2) * square)
        u = g / (ops.sqrt(v) + self.epsilon) + self._decay(variable) * w
        m = self.beta_1 * m + ((1 - self.beta_1) * u if self.grad_averaging else u)
        self.assign(state[0], m)
        self.assign(state[1], v)
        self.assign(variable, w - rate * m)


# hvd.DistributedOptimizer makes subclasses, which Keras saves under their plain names.
keras.saving.get_custom_objects().update(LARS=LARS, LAMB=LAMB, NovoGrad=NovoGrad)


def _dtype(variable):
    """The dtype to compute in: the variable's, but float32 at least."""
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def _tensors(variable, gradient, *values):
    """Return the variable, its gradient and other values as dense tensors of one dtype."""
    if hasattr(gradient, "dense_shape"):  # tf.IndexedSlices
        gradient = ops.add(ops.zeros_like(variable), gradient)
    # Not ops.cast: TensorFlow would round Python's numbers to float32 first.
    return [ops.convert_to_tensor(x, _dtype(variable)) for x in (variable, gradient, *values)]


def _norm(x):
    return ops.sqrt(ops.sum(ops.square(x)))


def _is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_range(value):
    is_pair = isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_number, value))
    return is_pair and 0 <= value[0] <= value[1]


def _check_numbers(below=math.inf, **numbers):
    for name, value in numbers.items():
        if not (_is_number(value) and 0 <= value < below):
            until = "" if below == math.inf else f" and below {below}"
            raise ValueError(
                f"{name} must be a number of at least 0{until}. Received: {name}={value!r}"
            )


def _check_choice(name, value, *choices):
    if value not in choices:
        expected = " or ".join(map(repr, choices))
        raise ValueError(f"{name} must be {expected}. Received: {name}={value!r}")
