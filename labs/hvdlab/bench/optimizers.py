"""Measure the step time of optimizers, ours and other packages', on the weights of two known networks."""

import argparse
import importlib
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path

import torch
from rich.console import Console

from hvdlab.bench import ranks, results
from hvdlab.bench.keras_optimizers import KERAS_OPTIMIZERS
from hvdlab.bench.weight_shapes import NETWORKS, Shape
from hvdlab.system.hardware import seconds_without_core, usable_cores
from hvdlab.torch.optimizers import LAMB, LARS, NovoGrad


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
            # With a spec, because pytorch_optimizer imports transformers, which asks for the spec of timm.
            spec = ModuleSpec(package, None, is_package=True)
            spec.submodule_search_locations.append(str(path))
            sys.modules[package] = module_from_spec(spec)
    return getattr(importlib.import_module(f"timm.optim.{name.lower()}"), name)


def optimizers() -> dict[str, tuple[str, Callable]]:
    """Return our optimizers and those of the installed peers.

    Returns:
        Label -> (algorithm, function of the parameters that returns the optimizer).
    """
    found: dict[str, tuple[str, Callable]] = {}
    for name, make in {
        "LARS": partial(LARS, lr=1e-6, weight_decay=1e-4),
        "LAMB": partial(LAMB, lr=1e-6),
        "NovoGrad": partial(NovoGrad, lr=1e-6, weight_decay=1e-4),
    }.items():
        found[f"hvdlab {name}"] = name, make
        found[f"hvdlab {name}, foreach"] = name, partial(make, fused=False)
    for name, make in {
        "SGD": partial(torch.optim.SGD, lr=1e-6, momentum=0.9),
        "AdamW": partial(torch.optim.AdamW, lr=1e-6),
    }.items():
        for kind in ("foreach", "fused"):
            found[f"torch {name}, {kind}"] = name, partial(make, **{kind: True})
    try:
        lars, lamb, novograd = (timm_optimizer(n) for n in ("Lars", "Lamb", "NvNovoGrad"))
        found |= {
            "timm Lars": ("LARS", partial(lars, lr=1e-6, momentum=0.9, weight_decay=1e-4)),
            "timm Lamb": ("LAMB", partial(lamb, lr=1e-6, max_grad_norm=None)),
            "timm NvNovoGrad": ("NovoGrad", partial(novograd, lr=1e-6, weight_decay=1e-4)),
        }
    except ImportError as error:
        print(f"without timm: {error}", file=sys.stderr)
    try:
        import pytorch_optimizer as other

        for name, algorithm, decay in (
            ("LARS", "LARS", 1e-4), ("Lamb", "LAMB", 0.01), ("NovoGrad", "NovoGrad", 1e-4)
        ):  # fmt: skip
            make = partial(getattr(other, name), lr=1e-6, weight_decay=decay)
            found[f"pytorch-optimizer {name}"] = algorithm, make
    except ImportError as error:
        print(f"without pytorch-optimizer: {error}", file=sys.stderr)
    return found


def measure(
    shapes: Sequence[Shape],
    repeats: int,
    threads: Sequence[int],
    device: torch.device | str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, dict[str, list[float]]]:
    """Measure steps of all optimizers, which take turns on the same weights.

    Args:
        repeats: number of timed steps.
        device: where the weights are. On a GPU each step is complete before the next one starts.

    Returns:
        Number of threads -> label -> [milliseconds per step].
    """
    generator = torch.Generator().manual_seed(0)
    random = (torch.randn(s, generator=generator).to(device) for s in [*shapes, *shapes])
    params = [torch.nn.Parameter(0.05 * next(random)) for _ in shapes]
    for p in params:
        p.grad = 1e-3 * next(random)
    entrants = {label: make(params) for label, (_, make) in optimizers().items()}
    wait = torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None

    def step(count: int, label: str) -> None:
        torch.set_num_threads(count)  # takes a microsecond
        entrants[label].step()
        wait()

    steps = {(count, label): partial(step, count, label) for count in threads for label in entrants}
    # The first steps allocate the state.
    times = results.milliseconds_in_turns(steps, repeats, warm_up=2, clock=clock)
    return {count: {label: times[count, label] for label in entrants} for count in threads}


def optimizer_steps(
    networks: Iterable[str],
    threads: Sequence[int],
    repeats: int = 20,
    tell: Callable[[str], object] = print,
    device: str = "cpu",
) -> list[dict]:
    """Measure all optimizers on some networks. Keras' optimizers are measured with one thread.

    Args:
        threads: numbers of threads, ascending; on a GPU the number is always 1.
        repeats: number of timed steps.
        tell: is called with one line of progress per network.
        device: "cpu" or "gpu".

    Returns:
        One dict per network and number of threads: "network", "threads", "device", "keras_device",
        "milliseconds" by label, and "waited": how many seconds PyTorch's threads waited for a core, per
        second, while this network was measured.

    Raises:
        ranks.BenchFailed: the process with Keras failed.
    """
    found = []
    where = torch.device("cuda" if device == "gpu" else "cpu")
    threads = threads if device == "cpu" else [1]
    for network in networks:
        tell(f"{network}, {' and '.join(map(str, threads))} threads: {repeats} rounds ...")
        started, waited = time.perf_counter(), seconds_without_core()
        measured = measure(NETWORKS[network](), repeats, threads, where)
        waited = (seconds_without_core() - waited) / (time.perf_counter() - started)
        for count, times in measured.items():
            keras_device = ""
            if count == 1:
                module = "hvdlab.bench.keras_optimizers"  # TensorFlow has its own process
                (report,) = ranks.run(module, 1, network, repeats, device=device)
                times |= report["milliseconds"]
                keras_device = report["device"]
            found.append(
                {
                    "network": network,
                    "threads": count,
                    "device": ranks.device_of_torch(where),
                    "keras_device": keras_device,
                    "milliseconds": times,
                    "waited": waited,
                }
            )
    return found


def show(found: list[dict], console: Console) -> None:
    """Print medians, and medians over the rounds of ratios: to peers, and to fewer threads."""
    known = optimizers() | KERAS_OPTIMIZERS
    algorithms = {label: algorithm for label, (algorithm, _) in known.items()}
    for part in found:
        times = part["milliseconds"]
        weights = sum(math.prod(shape) for shape in NETWORKS[part["network"]]())
        columns = ["ms", "min .. max", "to best peer", "to fused"]
        fewer = _with_fewer_threads(part, found)
        if fewer:
            columns.append(f"to {fewer['threads']} thr.")
        table = results.table(["optimizer"], columns)
        for label, values in times.items():
            best = _best_peer(label, times, algorithms)
            adam = algorithms[label] in ("LAMB", "AdamW")
            fused = times["torch AdamW, fused" if adam else "torch SGD, fused"]
            table.add_row(
                label,
                *results.median_and_range(values, ".1f"),
                results.median_ratio(values, times[best]) if best else "",
                "" if "Keras" in label else results.median_ratio(values, fused),
                *([results.median_ratio(values, fewer["milliseconds"][label])] if fewer else []),
            )
        console.print(
            f"{part['network']}: {weights / 1e6:.1f} M weights, {part['threads']} threads, "
            f"medians of {len(values)} rounds"
        )
        console.print(f"PyTorch's threads waited for a core {part['waited']:.2f} s per second")
        used = {"PyTorch": part["device"], "Keras": part["keras_device"]}
        console.print(results.devices({label: name for label, name in used.items() if name}))
        console.print(table)


def _with_fewer_threads(part: dict, found: list[dict]) -> dict | None:
    """Return the measurement of the same network with the next smaller number of threads, or None."""
    smaller = [
        other
        for other in found
        if other["network"] == part["network"] and other["threads"] < part["threads"]
    ]
    return max(smaller, key=lambda other: other["threads"], default=None)


def _best_peer(label: str, times: dict[str, list[float]], algorithms: dict[str, str]) -> str | None:
    """Return the fastest peer of one of our optimizers: the same algorithm and framework, or None."""
    if not label.startswith("hvdlab"):
        return None
    peers = [
        peer
        for peer in times
        if algorithms[peer] == algorithms[label]
        and not peer.startswith("hvdlab")
        and ("Keras" in peer) == ("Keras" in label)
    ]
    return min(peers, key=lambda peer: statistics.median(times[peer]), default=None)


# --- command ----------------------------------------------------------------------------------------


def main(args: argparse.Namespace) -> int:
    """Run `hvdlab bench optimizers` and return its exit code."""
    args.device = ranks.chosen_device(args.device, 1)
    args.threads = sorted(set(args.threads or [n for n in (1, 2, 4) if n <= usable_cores()]))
    found = optimizer_steps(args.network, args.threads, args.repeats, results.tell, args.device)
    results.keep(args, found)
    show(found, Console())
    return 0
