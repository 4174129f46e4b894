"""Hooks in PyTorch: optimizers and their steps, batches, losses, saved files.

Where torch offers a hook, that hook is used: around the step of every optimizer, and around the forward
pass of every module.
"""

import functools
import importlib
import os
import weakref
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from hvdlab.check.event_log import Watch
from hvdlab.check.fingerprints import CHANNELS, LAYERS, number
from hvdlab.check.hooks import torch_data
from hvdlab.check.hooks.torch_gradients import Gradients
from hvdlab.trace import records


def watch(torch: ModuleType, watch: Watch) -> None:
    """Wrap the functions of PyTorch."""
    watch.gradients = Gradients(torch, watch)
    optimizers(torch, watch)
    batches(torch, watch)
    torch_data.watch(torch, watch)
    deciding(torch, watch)
    files(torch, watch)
    spawning(torch, watch)
    if watch.totals:
        classes(torch, watch)


def optimizers(torch: ModuleType, watch: Watch) -> None:
    """Write down each optimizer, and after each step its learning rate, the weights and the statistics."""
    initialize = torch.optim.Optimizer.__init__
    created, depth, gradient, pending = 0, 0, None, False
    norm_layers = _norm_layers(torch, watch)
    stepped: set[int] = set()  # optimizers that have begun a step

    @functools.wraps(initialize)
    def __init__(self: Any, params: Any, defaults: dict) -> None:
        nonlocal created
        initialize(self, params, defaults)
        if watch.wrapping:
            return
        self._hvdlab_number = created
        created += 1
        watch.gradients.follow(_parameters(self))
        self.param_groups[:] = [Group(group, watch) for group in self.param_groups]
        name = type(self).__name__
        watch.note(records.Optimizer, optimizer=self._hvdlab_number, name=name, api="torch")

    torch.optim.Optimizer.__init__ = __init__
    load = torch.optim.Optimizer.load_state_dict

    @functools.wraps(load)
    def noting_load(self: Any, *arguments: Any, **options: Any) -> Any:
        if not watch.wrapping and watch.line():
            watch.note(records.Load, wrapped=False)
        return load(self, *arguments, **options)

    torch.optim.Optimizer.load_state_dict = noting_load

    def ours(optimizer: Any) -> bool:
        # With Adasum Horovod steps during `backward`, once per parameter.
        partial = hasattr(optimizer, "_hvdlab_wrapped") and torch._C._current_graph_task_id() != -1
        numbered = getattr(optimizer, "_hvdlab_number", None) is not None
        return numbered and not watch.wrapping and not partial

    def before(optimizer: Any, arguments: tuple, options: dict) -> None:
        nonlocal depth, gradient, pending
        depth += 1  # the step of a wrapped optimizer contains the step of the inner optimizer
        if depth == 1:
            watch.gradients.end()
            watch.waits_in("optimizer.step", watch.line())
            wrapped = hasattr(optimizer, "_hvdlab_wrapped")
            if (
                ours(optimizer)
                and watch.writes
                and (not wrapped or optimizer._hvdlab_number not in stepped)
            ):
                stepped.add(optimizer._hvdlab_number)
                watch.start = _norms(torch, _weights(optimizer))
        # The innermost step uses the gradient.
        gradient = watch.gradients.used(_parameters(optimizer)) or gradient
        pending = not watch.gradients.pending().isdisjoint(map(id, _parameters(optimizer)))

    def after(optimizer: Any, arguments: tuple, options: dict) -> None:
        nonlocal depth, gradient
        depth -= 1
        if depth:
            return
        watch.waits.pop()
        used, gradient = gradient, None
        watch.gradients.stepped(_parameters(optimizer))
        if not ours(optimizer):
            return
        if watch.totals:
            watch.totals.weights[optimizer._hvdlab_number] = lambda: _weights(optimizer)
        if not watch.writes:
            watch.step()
            return
        group, wrapped = optimizer.param_groups[0], watch.wrapped_parameters
        unused = (
            wrapped[id(p)] for p in _parameters(optimizer) if p.grad is None and id(p) in wrapped
        )
        if not watch.steps:
            devices(torch, watch)
        watch.step(
            optimizer=optimizer._hvdlab_number,
            wrapped=hasattr(optimizer, "_hvdlab_wrapped"),
            unused=next(unused, None),
            gradient=used,
            pending=pending,
            backward=watch.backward,
            rate=number(group.get("lr")),  # Adafactor's may be None
            rate_line=getattr(group, "line", None),
            momentum=number(group.get("momentum")) or 0.0,
            weights=_norms(torch, _weights(optimizer)),
            statistics=_statistics(norm_layers) if watch.looks_at_statistics() else None,
        )

    hooks = importlib.import_module("torch.optim.optimizer")
    hooks.register_optimizer_step_pre_hook(before)
    hooks.register_optimizer_step_post_hook(after)


class Group(dict):
    """A group of an optimizer's parameters that knows the line of the script which has set its rate."""

    def __init__(self, group: dict, watch: Watch) -> None:
        super().__init__(group)
        self.watch, self.line = watch, getattr(group, "line", None) or watch.line()

    def __setitem__(self, key: str, value: Any) -> None:
        watch = self.__dict__.get("watch")  # a copy has none while it is made
        if key == "lr" and watch and number(value) != number(self.get("lr")) and watch.line():
            self.line = watch.line()
        super().__setitem__(key, value)

    def __reduce__(self) -> tuple:  # a copy, or what another process gets, is a plain group
        return dict, (dict(self),)


def _parameters(optimizer: Any) -> list[Any]:
    """Return the parameters of an optimizer."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def _norm_layers(torch: ModuleType, watch: Watch) -> list[weakref.ref]:
    """Return a list that gets a reference to each of the first LAYERS batch norm layers of the script."""
    layers = []
    initialize = torch.nn.modules.batchnorm._NormBase.__init__

    @functools.wraps(initialize)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        initialize(self, *arguments, **options)
        if not watch.norms:
            watch.norms = True
            watch.note(records.Norm)
        if self.track_running_stats and len(layers) < LAYERS:
            layers.append(weakref.ref(self))

    torch.nn.modules.batchnorm._NormBase.__init__ = __init__
    return layers


def _weights(optimizer: Any) -> list[Any]:
    """Return the weights of an optimizer."""
    return [p.detach() for p in _parameters(optimizer)]


def _norms(torch: ModuleType, weights: list[Any]) -> list[float]:
    """Return the norm of each weight, which is equal on all replicas to the last digit."""
    norms = torch._foreach_norm([w for w in weights if w.is_floating_point()])
    one = norms[0].device  # a network may lie on several GPUs
    return torch.stack([n.to(one, torch.float64) for n in norms]).tolist()


def _statistics(layers: Iterable[weakref.ref]) -> list[dict]:
    """Return the running statistics of batch norm layers, as `keras_compat.statistics` does."""
    found = []
    for norm in filter(None, (reference() for reference in layers)):
        batches = int(norm.num_batches_tracked)
        if not batches or norm.running_mean is None:
            continue
        # The fraction of a running mean that does not come from its initial value. A cumulative mean
        # (momentum=None) keeps nothing of it.
        filled = 1.0 if norm.momentum is None else 1 - (1 - norm.momentum) ** batches
        found.append({
            "mean": norm.running_mean[:CHANNELS].tolist(),
            "variance": norm.running_var[:CHANNELS].tolist(),
            "filled": filled,
        })  # fmt: skip
    return found


def batches(torch: ModuleType, watch: Watch) -> None:
    """Keep the input of the outermost module and the loss of each step, and note evaluations."""
    depth = 0

    def enter(module: Any, inputs: tuple) -> None:
        nonlocal depth
        depth += 1
        if depth == 1:
            watch.gradients.end()
        if depth == 1 and module.training and torch.is_grad_enabled() and not watch.called:
            if any(isinstance(value, torch.Tensor) for value in inputs):
                watch.batch, watch.called = inputs, True
                watch.forward = watch.line()
        elif depth == 1 and not (module.training and torch.is_grad_enabled()):
            watch.evaluates()

    def leave(module: Any, inputs: tuple, output: Any) -> None:
        nonlocal depth
        depth -= 1

    modules = torch.nn.modules.module
    modules.register_module_forward_pre_hook(enter)
    modules.register_module_forward_hook(leave, always_call=True)

    backward = torch.Tensor.backward

    @functools.wraps(backward)
    def noting_backward(self: Any, *arguments: Any, **options: Any) -> Any:
        watch.loss, watch.backward = self.detach(), watch.line()
        if watch.totals:
            watch.totals.backward()
        watch.gradients.end()
        watch.waits_in("loss.backward", watch.line())  # DistributedDataParallel averages there
        try:
            return backward(self, *arguments, **options)
        finally:
            watch.waits.pop()
            watch.gradients.begin()

    torch.Tensor.backward = noting_backward
    load = torch.nn.Module.load_state_dict

    @functools.wraps(load)
    def noting_load(self: Any, *arguments: Any, **options: Any) -> Any:
        wrapped = not watch.wrapped_parameters.keys().isdisjoint(map(id, self.parameters()))
        watch.note(records.Load, wrapped=wrapped)
        return load(self, *arguments, **options)

    torch.nn.Module.load_state_dict = noting_load


def classes(torch: ModuleType, watch: Watch) -> None:
    """Count the right answers where the script computes a loss of classes."""
    for name in "cross_entropy", "nll_loss":
        loss_of = getattr(torch.nn.functional, name)

        @functools.wraps(loss_of)
        def counting(
            input: Any, target: Any, *arguments: Any, loss_of: Any = loss_of, **options: Any
        ) -> Any:
            loss = loss_of(input, target, *arguments, **options)
            watch.totals.classified(input, target, loss)
            return loss

        setattr(torch.nn.functional, name, counting)


def deciding(torch: ModuleType, watch: Watch) -> None:
    """Write down the metric by which a schedule decides to lower the learning rate."""
    cls = torch.optim.lr_scheduler.ReduceLROnPlateau
    step = cls.step

    @functools.wraps(step)
    def noting_step(self: Any, metrics: Any, *arguments: Any, **options: Any) -> None:
        watch.decide(watch.line(), "the metric of ReduceLROnPlateau", metrics)
        step(self, metrics, *arguments, **options)

    cls.step = noting_step


def files(torch: ModuleType, watch: Watch) -> None:
    """Write down saved files, because torch writes them without Python's `open`."""
    save = torch.save

    @functools.wraps(save)
    def noting_save(obj: Any, f: Any, *arguments: Any, **options: Any) -> Any:
        watch.save(f)
        return save(obj, f, *arguments, **options)

    torch.save = noting_save


def spawning(torch: ModuleType, watch: Watch) -> None:
    """End a script that starts processes by torch.multiprocessing: the check starts the ranks."""

    def spawn(*arguments: Any, **options: Any) -> None:
        watch.note(records.Spawn)
        raise SystemExit

    torch.multiprocessing.spawn = torch.multiprocessing.start_processes = spawn


def devices(torch: ModuleType, watch: Watch) -> None:
    """Write down how many GPUs this rank sees, if it uses one.

    To ask earlier would initialise CUDA, and the script could no longer choose a GPU.
    """
    if torch.cuda.is_initialized():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        watch.note(records.Devices, 0, count=torch.cuda.device_count(), visible=visible)
