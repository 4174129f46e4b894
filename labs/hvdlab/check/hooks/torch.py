"""What a script does with PyTorch: optimizers and their steps, batches, losses, saved files.

Hooks that torch offers are used where it has them: around every optimizer's step, and around every
module's forward.
"""

import functools
import importlib
import os
import weakref

from hvdlab.check.fingerprints import CHANNELS, LAYERS, number
from hvdlab.check.hooks.horovod import remember_line


def watch(torch, watch) -> None:
    optimizers(torch, watch)
    batches(torch, watch)
    files(torch, watch)


def optimizers(torch, watch) -> None:
    """Note each optimizer, and after each of its steps its rate, the weights and the statistics."""
    make = torch.optim.Optimizer.__init__
    made, depth, norms = 0, 0, []

    @functools.wraps(make)
    def __init__(self, params, defaults):
        nonlocal made
        make(self, params, defaults)
        if watch.wrapping:
            return
        self._hvdlab_number = made
        made += 1
        watch.note("optimizer", optimizer=self._hvdlab_number, name=type(self).__name__)

    torch.optim.Optimizer.__init__ = __init__

    def before(optimizer, arguments, options):
        nonlocal depth
        depth += 1  # a wrapped optimizer's step contains the step of what it wraps
        if depth == 1:
            watch.waits.append(("optimizer.step", watch.line(), watch.clock()))

    def after(optimizer, arguments, options):
        nonlocal depth
        depth -= 1
        if depth:
            return
        watch.waits.pop()
        if watch.wrapping or getattr(optimizer, "_hvdlab_number", None) is None:
            return
        group = optimizer.param_groups[0]
        weights = [p.detach() for g in optimizer.param_groups for p in g["params"]]
        if not watch.steps:
            devices(torch, watch)
        watch.step(
            optimizer=optimizer._hvdlab_number,
            wrapped=hasattr(optimizer, "_hvdlab_wrapped"),
            rate=number(group.get("lr")),  # Adafactor's may be None
            momentum=number(group.get("momentum")) or 0.0,
            weights=_norms(torch, weights),
            statistics=_statistics(norms) if watch.looks_at_statistics() else None,
        )

    hooks = importlib.import_module("torch.optim.optimizer")
    hooks.register_optimizer_step_pre_hook(before)
    hooks.register_optimizer_step_post_hook(after)

    make_norm = torch.nn.modules.batchnorm._NormBase.__init__

    @functools.wraps(make_norm)
    def make_and_keep(self, *arguments, **options):
        make_norm(self, *arguments, **options)
        if self.track_running_stats and len(norms) < LAYERS:
            norms.append(weakref.ref(self))

    torch.nn.modules.batchnorm._NormBase.__init__ = make_and_keep


def _norms(torch, weights) -> list[float]:
    """The norm of each weight: replicas agree in all of them to the last digit."""
    norms = torch._foreach_norm([w for w in weights if w.is_floating_point()])
    one = norms[0].device  # a network may lie on several GPUs
    return torch.stack([n.to(one, torch.float64) for n in norms]).tolist()


def _statistics(norms) -> list[dict]:
    found = []
    for norm in filter(None, (reference() for reference in norms)):
        batches = int(norm.num_batches_tracked)
        if not batches or norm.running_mean is None:
            continue
        # What is not the initial value of a running mean; a cumulative one (momentum=None) has none.
        filled = 1.0 if norm.momentum is None else 1 - (1 - norm.momentum) ** batches
        found.append({
            "mean": norm.running_mean[:CHANNELS].tolist(),
            "variance": norm.running_var[:CHANNELS].tolist(),
            "filled": filled,
        })  # fmt: skip
    return found


def batches(torch, watch) -> None:
    """Note the input of the outermost module of each step, its loss, and where loaders are made."""
    depth = 0

    def enter(module, inputs):
        nonlocal depth
        depth += 1
        if depth == 1 and module.training and torch.is_grad_enabled() and not watch.called:
            if any(isinstance(value, torch.Tensor) for value in inputs):
                watch.batch, watch.called = inputs, True

    def leave(module, inputs, output):
        nonlocal depth
        depth -= 1

    modules = torch.nn.modules.module
    modules.register_module_forward_pre_hook(enter)
    modules.register_module_forward_hook(leave, always_call=True)

    backward = torch.Tensor.backward

    @functools.wraps(backward)
    def noting_backward(self, *arguments, **options):
        watch.loss = self.detach()
        return backward(self, *arguments, **options)

    torch.Tensor.backward = noting_backward
    remember_line(torch.utils.data.DataLoader, watch)


def files(torch, watch) -> None:
    """Note saved files: torch writes them without Python's `open`."""
    save = torch.save

    @functools.wraps(save)
    def noting_save(obj, f, *arguments, **options):
        watch.save(f)
        return save(obj, f, *arguments, **options)

    torch.save = noting_save


def devices(torch, watch) -> None:
    """Note how many GPUs this rank sees: not before it uses one, or its choice would come too late."""
    if torch.cuda.is_initialized():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        watch.note("devices", 0, count=torch.cuda.device_count(), visible=visible)
