"""Step time of optimizers on the weights of known networks, ours and others', in one run."""

import argparse
import importlib
import math
import statistics
import sys
import time
import types
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from hvdlab.bench import ranks, results
from hvdlab.bench.keras_optimizers import KERAS_OPTIMIZERS
from hvdlab.torch.optimizers import LAMB, LARS, NovoGrad


def resnet50() -> list[tuple[int, ...]]:
    """The shapes of ResNet-50's 161 tensors, 25.6 M weights (He et al., 2015, arXiv:1512.03385)."""
    shapes = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            out = 4 * width
            convolutions = [(width, channels, 1, 1), (width, width, 3, 3), (out, width, 1, 1)]
            if block == 0:
                convolutions.append((out, channels, 1, 1))
            for shape in convolutions:
                shapes += [shape, shape[:1], shape[:1]]  # and its batch norm
            channels = out
    return [*shapes, (1000, 2048), (1000,)]


def transformer(layers=12, width=768, vocabulary=30_522, positions=512) -> list[tuple[int, ...]]:
    """The shapes of an encoder of BERT-base's size, 109 M weights (arXiv:1810.04805)."""
    norm = [(width,), (width,)]
    attention = [(width, width), (width,)] * 4
    feed_forward = [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    embeddings = [(vocabulary, width), (positions, width), (2, width)]
    return [*embeddings, *norm, *(attention + norm + feed_forward + norm) * layers]


NETWORKS = {"resnet50": resnet50, "transformer": transformer}


def timm_optimizer(name: str) -> type[torch.optim.Optimizer]:
    """Return a class of `timm.optim`, without the rest of timm, which imports torchvision.

    `make setup` puts timm into the folder `oracles` of the environment. A timm that pip installed works too.

    Raises:
        ImportError: timm is in neither place.
    """
    folder = Path(sys.prefix) / "oracles" / "timm"
    if not folder.is_dir() and "timm" not in sys.modules and (installed := find_spec("timm")):
        folder = Path(installed.submodule_search_locations[0])
    if not folder.is_dir() and "timm" not in sys.modules:
        command = f"{sys.executable} -m pip install --no-deps --target {folder.parent} timm==1.0.31"
        raise ImportError(f"timm is not in {folder.parent}: {command}")
    for package, path in (("timm", folder), ("timm.optim", folder / "optim")):
        if package not in sys.modules:
            sys.modules[package] = types.ModuleType(package)
            sys.modules[package].__path__ = [str(path)]
    return getattr(importlib.import_module(f"timm.optim.{name.lower()}"), name)


def optimizers() -> dict[str, tuple[str, Callable]]:
    """Label -> (algorithm, function of parameters): ours, and those of the installed peers."""
    sgd, adamw = torch.optim.SGD, torch.optim.AdamW
    found = {
        "hvdlab LARS": ("LARS", lambda ps: LARS(ps, lr=1e-6, weight_decay=1e-4)),
        "hvdlab LARS, foreach": (
            "LARS",
            lambda ps: LARS(ps, lr=1e-6, weight_decay=1e-4, fused=False),
        ),
        "hvdlab LAMB": ("LAMB", lambda ps: LAMB(ps, lr=1e-6)),
        "hvdlab LAMB, foreach": ("LAMB", lambda ps: LAMB(ps, lr=1e-6, fused=False)),
        "hvdlab NovoGrad": ("NovoGrad", lambda ps: NovoGrad(ps, lr=1e-6, weight_decay=1e-4)),
        "hvdlab NovoGrad, foreach": (
            "NovoGrad",
            lambda ps: NovoGrad(ps, lr=1e-6, weight_decay=1e-4, fused=False),
        ),
        "torch SGD, foreach": ("SGD", lambda ps: sgd(ps, 1e-6, 0.9, foreach=True)),
        "torch SGD, fused": ("SGD", lambda ps: sgd(ps, 1e-6, 0.9, fused=True)),
        "torch AdamW, foreach": ("AdamW", lambda ps: adamw(ps, 1e-6, foreach=True)),
        "torch AdamW, fused": ("AdamW", lambda ps: adamw(ps, 1e-6, fused=True)),
    }
    try:
        lars, lamb, novograd = (timm_optimizer(n) for n in ("Lars", "Lamb", "NvNovoGrad"))
        found |= {
            "timm Lars": ("LARS", lambda ps: lars(ps, 1e-6, 0.9, weight_decay=1e-4)),
            "timm Lamb": ("LAMB", lambda ps: lamb(ps, 1e-6, max_grad_norm=None)),
            "timm NvNovoGrad": ("NovoGrad", lambda ps: novograd(ps, 1e-6, weight_decay=1e-4)),
        }
    except ImportError as error:
        print(f"without timm: {error}", file=sys.stderr)
    try:
        import pytorch_optimizer as other

        found |= {
            "pytorch-optimizer LARS": ("LARS", lambda ps: other.LARS(ps, 1e-6, weight_decay=1e-4)),
            "pytorch-optimizer Lamb": ("LAMB", lambda ps: other.Lamb(ps, 1e-6, weight_decay=0.01)),
            "pytorch-optimizer NovoGrad": (
                "NovoGrad",
                lambda ps: other.NovoGrad(ps, 1e-6, weight_decay=1e-4),
            ),
        }
    except ImportError as error:
        print(f"without pytorch-optimizer: {error}", file=sys.stderr)
    return found


def measure(
    shapes: list[tuple[int, ...]], repeats: int, threads: int, device: str = "cpu"
) -> dict[str, list[float]]:
    """Label -> milliseconds of `repeats` steps, the optimizers in turns, on weights they share.

    Args:
        threads: of PyTorch on the processor.
        device: "cpu" or "cuda". A GPU is given a step at a time, and waited for after each.
    """
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    random = (torch.randn(s, generator=generator).to(device) for s in [*shapes, *shapes])
    params = [torch.nn.Parameter(0.05 * next(random)) for _ in shapes]
    for p in params:
        p.grad = 1e-3 * next(random)
    entrants = {label: make(params) for label, (_, make) in optimizers().items()}
    for optimizer in entrants.values():  # makes the state, and what else is made once
        optimizer.step()
        optimizer.step()
    times = {label: [] for label in entrants}
    for _ in range(repeats):
        for label, optimizer in entrants.items():
            times[label].append(milliseconds(optimizer.step, device))
    return times


def milliseconds(step: Callable[[], object], device: torch.device | str) -> float:
    """The time from the call of `step` until the device has done it."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    step()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return 1000 * (time.perf_counter() - started)


def optimizer_steps(
    networks, threads, repeats: int = 20, tell=print, device: str = "cpu"
) -> list[dict]:
    """One dict a network and number of threads: network, threads, device, milliseconds by label."""
    found = []
    where = torch.device("cuda" if device == "gpu" else "cpu")
    for network in networks:
        for count in threads if device == "cpu" else [1]:
            tell(f"{network}, {count} threads: {repeats} rounds ...")
            times = measure(NETWORKS[network](), repeats, count, where)
            if count == 1:
                module = "hvdlab.bench.keras_optimizers"  # TensorFlow in a process of its own
                (told,) = ranks.run(module, 1, network, repeats, device=device)
                times |= told["milliseconds"]
                keras_device = told["device"]
            found.append(
                {
                    "network": network,
                    "threads": count,
                    "device": ranks.device_of_torch(where),
                    "keras_device": keras_device if count == 1 else "",
                    "milliseconds": times,
                }
            )
    return found


def show(found: list[dict], console: Console) -> None:
    """Medians, and the median over rounds of the ratio to the peers of the same round."""
    known = optimizers() | KERAS_OPTIMIZERS
    algorithms = {label: algorithm for label, (algorithm, _) in known.items()}
    for part in found:
        times = part["milliseconds"]
        weights = sum(math.prod(shape) for shape in NETWORKS[part["network"]]())
        table = Table(box=None, header_style="dim", padding=(0, 1))
        table.add_column("optimizer", no_wrap=True)
        for title in ("ms", "min .. max", "to best peer", "to fused"):
            table.add_column(title, justify="right", no_wrap=True)
        for label, values in times.items():
            algorithm = algorithms[label]
            peers = [
                k
                for k in times
                if algorithms[k] == algorithm
                and not k.startswith("hvdlab")
                and ("Keras" in k) == ("Keras" in label)
            ]
            best = min(peers, key=lambda k: statistics.median(times[k]), default=None)
            fused = "torch AdamW, fused" if algorithm in ("LAMB", "AdamW") else "torch SGD, fused"
            ours = label.startswith("hvdlab")
            table.add_row(
                label,
                *results.median_and_range(values, ".1f"),
                f"{_ratio(values, times[best]):.2f}" if ours and best else "",
                "" if "Keras" in label else f"{_ratio(values, times[fused]):.2f}",
            )
        console.print(
            f"{part['network']}: {weights / 1e6:.1f} M weights, {part['threads']} threads, "
            f"medians of {len(values)} rounds"
        )
        used = {"PyTorch": {"device": part["device"]}}
        if part["keras_device"]:
            used["Keras"] = {"device": part["keras_device"]}
        console.print(results.devices(used))
        console.print(table)


def _ratio(values: list[float], peers: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(values, peers, strict=True))


# --- command ----------------------------------------------------------------------------------------


def main(args: argparse.Namespace) -> int:
    args.device = ranks.chosen_device(args.device, 1)
    found = optimizer_steps(args.network, args.threads, args.repeats, results.tell, args.device)
    results.keep(args, found)
    show(found, Console())
    return 0
