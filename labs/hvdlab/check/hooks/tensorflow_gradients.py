"""Hooks in TensorFlow's gradients: what each rank computes, and what its optimizer uses.

See `hvdlab.check.hooks.torch_gradients`. Here both are sketched in the graph of the step, if there is one.
"""

import functools
import sys
from types import ModuleType
from typing import Any

import numpy as np

from hvdlab.check.event_log import Watch
from hvdlab.check.fingerprints import identity

NUMBERS, WIDTH = 16, 1024  # of a sketch, and of the columns into which a tensor is added up before
SIGNS = 2.0 * np.random.default_rng(1).integers(0, 2, (WIDTH, NUMBERS)) - 1


def tapes(module: ModuleType, watch: Watch) -> None:
    """Keep what tapes compute until an optimizer steps. Horovod's tape averages what such a tape returns."""
    gradient = module.GradientTape.gradient

    @functools.wraps(gradient)
    def noting_gradient(self: Any, target: Any, sources: Any, *args: Any, **options: Any) -> Any:
        result = gradient(self, target, sources, *args, **options)
        flat = sys.modules["tensorflow"].nest.flatten
        for source, given in zip(flat(sources), flat(result), strict=False):
            if given is not None:
                watch.local.setdefault(identity(source), []).append(given)
        watch.taped_at = watch.line() or watch.taped_at
        if watch.totals and not watch.fitting:
            watch.loss = target
            watch.when_run(target, functools.partial(setattr, watch, "loss"))
        return result

    module.GradientTape.gradient = noting_gradient


def clips(module: ModuleType, watch: Watch) -> None:
    """Keep the line that clips, for a finding about gradients that were changed before their average."""
    for name in "clip_by_global_norm", "clip_by_norm", "clip_by_value":
        clip = getattr(module, name)

        @functools.wraps(clip)
        def noting_clip(*arguments: Any, clip: Any = clip, **options: Any) -> Any:
            watch.clipped_at = watch.line() or watch.clipped_at
            return clip(*arguments, **options)

        setattr(module, name, noting_clip)


def sketches(gradients: list[Any], variables: list[Any], watch: Watch) -> Any:
    """Return the sketches of what an optimizer uses and of what the rank has computed for it.

    Args:
        gradients: that the optimizer gets.
        variables: to which it applies them.

    Returns:
        A tensor of shape (2, NUMBERS), of the graph that is being built if there is one. Without TensorFlow
        (Keras with another backend) zeros.
    """
    tf = sys.modules.get("tensorflow")
    if tf is None:
        return np.zeros((2, NUMBERS))
    used, local = [], []
    for place, (given, variable) in enumerate(zip(gradients, variables, strict=False)):
        computed = watch.local.pop(identity(variable), [])
        if isinstance(given, tf.Tensor):
            used.append(_sketch(tf, given, place))
            local += [_sketch(tf, each, place) for each in computed if _here(tf, each)]
    nothing = tf.zeros([NUMBERS], tf.float64)
    return tf.stack([tf.add_n(each) if each else nothing for each in (used, local)])


def keep(sketched: Any, watch: Watch) -> None:
    """Keep the sketches of a step of `fit`: XLA, which may compile it, calls no Python."""
    tf = sys.modules.get("tensorflow")
    if tf is None:
        return
    if watch.sketched is None:
        with tf.init_scope(), tf.device("CPU"):
            watch.sketched = tf.Variable(tf.zeros([2, NUMBERS], tf.float64), trainable=False)
    watch.sketched.assign(sketched)


def as_event(sketched: np.ndarray, changed: int | None = None) -> dict[str, Any]:
    """Return the sketches of a step as its event contains them.

    Args:
        changed: line that has clipped gradients. Default: none.
    """
    used, local = (row.tolist() if row.any() else None for row in sketched)
    return {"used": used, "local": local, "changed": changed}


def _here(tf: ModuleType, tensor: Any) -> bool:
    """Return whether a tensor belongs to what TensorFlow runs or builds now."""
    if not isinstance(tensor, tf.Tensor):
        return False
    eager = tf.executing_eagerly()
    return eager if not tf.is_symbolic_tensor(tensor) else not eager


def _sketch(tf: ModuleType, tensor: Any, place: int) -> Any:
    flat = tf.cast(tf.reshape(tensor, [-1]), tf.float64)
    missing = -tf.size(flat) % WIDTH
    columns = tf.reduce_sum(tf.reshape(tf.pad(flat, [[0, missing]]), [-1, WIDTH]), 0)
    return tf.linalg.matvec(np.roll(SIGNS, -7 * place, 0).T, columns)
