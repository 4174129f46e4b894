"""Hooks in PyTorch's gradients: what each rank computes, what its optimizer uses, and what changes them.

The script is not asked how it averages. A sketch of the gradients of a rank is compared with a sketch of the
gradient that the optimizer uses, see `hvdlab.check.gradient_shares`.
"""

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from hvdlab.check.event_log import Watch
from hvdlab.trace import records

NUMBERS = 16  # of a sketch: more than ranks, so that their parts of a gradient can be told apart
SKETCHED = 8  # steps
WIDTH = 1024  # columns into which a tensor is added up before the signs
HOOK = records.Clip.HOOK
ASSIGNS = ("__itruediv__", "__imul__", "__iadd__", "__isub__", "__setitem__")


class Gradients:
    """The gradients of the parameters that optimizers hold, and the line that changes them.

    Attributes:
        changed: the line of the script that has changed a gradient since the last step, or None.
    """

    def __init__(self, torch: ModuleType, watch: Watch) -> None:
        self.torch, self.watch = torch, watch
        draw = torch.Generator().manual_seed(1)
        signs = torch.randint(0, 2, (WIDTH, NUMBERS), generator=draw, dtype=torch.float64)
        self.signs = 2 * signs - 1
        # id of a parameter -> its place, and the sketch of what backward passes have given it since the step
        self.places: dict[int, int] = {}
        self.parameters: list[weakref.ref] = []
        self.local: dict[int, Any] = {}
        self.changed: int | None = None
        self.weights: set[int] = set()  # addresses of weights that were sent
        self.sent = False  # whether changes of them are looked for, and not of gradients
        self.mode = self._mode(torch)
        self._watch_hooks(torch.Tensor)

    @property
    def looks(self) -> bool:
        """Whether the gradients of the next step are sketched."""
        return self.watch.steps < SKETCHED

    def follow(self, parameters: list[Any]) -> None:
        """Keep sketches of what backward passes give to parameters."""
        for parameter in parameters:
            if id(parameter) not in self.places and parameter.requires_grad and parameter.is_leaf:
                self.places[id(parameter)] = len(self.places)
                self.parameters.append(weakref.ref(parameter))
                parameter.register_hook(functools.partial(self._add, id(parameter)))

    def _add(self, key: int, gradient: Any) -> None:
        if self.looks:
            self.local[key] = self.local.get(key, 0) + self.sketch(gradient, self.places[key])

    def sketch(self, tensor: Any, place: int) -> Any:
        """Return the products of a tensor with fixed random signs: NUMBERS float64 on the CPU."""
        if tensor.is_sparse:
            return self.torch.zeros(NUMBERS, dtype=self.torch.float64)
        flat = tensor.detach().reshape(-1)
        rest = flat.numel() % WIDTH
        whole = flat[: flat.numel() - rest].reshape(-1, WIDTH)
        columns = whole.sum(0, dtype=self.torch.float64).cpu()
        columns[:rest] += flat[flat.numel() - rest :].to(self.torch.float64).cpu()
        return columns.roll(7 * place) @ self.signs

    def used(self, parameters: list[Any]) -> dict[str, Any] | None:
        """Return what the next step uses and what this rank has computed; None if it is not sketched."""
        known = [p for p in parameters if id(p) in self.places]
        if not self.looks or not known:
            return None
        with self.torch.no_grad():
            given = [self.sketch(p.grad, self.places[id(p)]) for p in known if p.grad is not None]
        local = [self.local[id(p)] for p in known if id(p) in self.local]
        return {
            "used": sum(given).tolist() if given else None,
            "local": sum(local).tolist() if local else None,
            "changed": self.changed,
        }

    def stepped(self, parameters: list[Any]) -> None:
        """Forget what backward passes have given to parameters: a step has used it."""
        self.changed = None
        for parameter in parameters:
            self.local.pop(id(parameter), None)

    # --- changes of gradients before the average, and of weights after their broadcast ---------------

    def begin(self, weights: Iterable[Any] | None = None) -> None:
        """Note that a backward pass, or a broadcast of weights, has ended: from now on changes are seen.

        Args:
            weights: that were sent. Default None: changes of gradients are seen.
        """
        self.sent = weights is not None and not self.watch.steps
        self.weights |= {each.data_ptr() for each in weights or () if hasattr(each, "data_ptr")}
        if self.looks and not self.mode.active:
            self.mode.active = True
            self.mode.__enter__()

    def end(self) -> None:
        """Note that a step, an average or a forward pass begins."""
        if self.mode.active:
            self.mode.active = False
            self.mode.__exit__(None, None, None)

    def _mode(self, torch: ModuleType) -> Any:
        """Return the mode of PyTorch that sees changes in place."""
        gradients, assigns = self, torch.Tensor.grad.__set__

        class Changes(torch.overrides.TorchFunctionMode):
            active = False

            def __torch_function__(
                self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
            ) -> Any:
                name = getattr(function, "__name__", "")
                if function == assigns:
                    found = args[1] is not None and id(args[0]) in gradients.places
                    if found:
                        gradients.note([args[0]], "an assignment")
                elif name in ASSIGNS or (name.endswith("_") and not name.endswith("__")):
                    if name not in ("zero_", "detach_", "requires_grad_", "set_", "register_hook_"):
                        # torch.nn.init passes its tensor by name
                        gradients.note_in_place(args[:1] or [*(kwargs or {}).values()], name)
                return function(*args, **(kwargs or {}))

        return Changes()

    def _watch_hooks(self, tensor: type) -> None:
        """Note hooks of parameters that clip: twice the gradient gives them another result than twice."""
        register = tensor.register_hook

        @functools.wraps(register)
        def noting_register(weight: Any, hook: Callable) -> Any:
            line = self.watch.line()
            if line is None or not (weight.is_leaf and weight.requires_grad):
                return register(weight, hook)

            @functools.wraps(hook)
            def watched_hook(gradient: Any) -> Any:
                result = hook(gradient)
                if self.looks and result is not None:
                    twice = hook(2 * gradient)
                    if twice is not None and not self.torch.allclose(twice, 2 * result):
                        self.watch.note(records.Clip, line, what=HOOK)
                return result

            return register(weight, watched_hook)

        tensor.register_hook = noting_register

    def note_in_place(self, changed: Any, what: str) -> None:
        """Note that a function changes tensors, if gradients, or weights, are among them."""
        with self.torch._C.DisableTorchFunction():
            addresses = {each.data_ptr() for each in _tensors(changed) if each.numel()}
            known = [p for p in (reference() for reference in self.parameters) if p is not None]
            graded = [p for p in known if p.grad is not None]
            own = [p for p in graded if p.grad.data_ptr() in addresses]
        if own and not self.sent:
            self.note(own, what)
        elif self.sent and addresses & self.weights and self.watch.line():
            if not self.watch.in_library("horovod."):
                self.watch.note(records.Load)

    def note(self, parameters: list[Any], what: str) -> None:
        """Note that the script changes the gradients of parameters."""
        line = self.watch.line()
        if line is None or self.watch.in_library("horovod."):
            return
        self.changed = self.changed or line
        keys = {*map(id, parameters)}
        if keys & self.pending():
            self.watch.note(records.Clip, line, what=what)

    def pending(self) -> set[int]:
        """Return the ids of the parameters whose gradients Horovod averages now."""
        found = set()
        for optimizer in filter(None, (reference() for reference in self.watch.exchanging)):
            for key, (handle, _) in optimizer._handles.items():  # a parameter, or a group of them
                if handle is not None:
                    found |= {*map(id, key if isinstance(key, tuple) else (key,))}
        return found


def _tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors in the arguments of a function."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif hasattr(value, "data_ptr"):
        yield value
