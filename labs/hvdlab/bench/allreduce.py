"""Measure an all-reduce by message size with Horovod, MPI and Gloo, and the effect of Horovod's settings.

All methods run on the same ranks in the same run, in turns. Each rank is a process
`python -m hvdlab.bench.allreduce OPTION SIZES`. The limit is a copy within memory that all ranks make at the
same time. Each of N ranks on one machine must receive at least 2(N-1)/N of the array, so the bus bandwidth
cannot exceed the bandwidth of the copy.

On GPUs the arrays are in the memory of the GPU, and Horovod sends them through NCCL. Its peers are PyTorch's
own NCCL and a copy within the memory of the GPU. Where NCCL cannot connect the ranks, for example two ranks
on one GPU, Horovod sends the arrays through host memory, and PyTorch's NCCL is not measured.

    algbw = bytes / seconds          busbw = algbw 2(N-1)/N          (as nccl-tests defines them)
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from hvdlab.arguments import positive
from hvdlab.bench import ranks as launched
from hvdlab.bench import results

if TYPE_CHECKING:
    from mpi4py import MPI

EPILOG = """\
examples:
  hvdlab bench allreduce                        all cores, 1 kB to 64 MB, five rounds
  hvdlab bench allreduce --json allreduce.json --plot allreduce.png
  hvdlab bench scaling --allreduce allreduce.json    predict the scaling from it
"""
SIZES = tuple(4**k for k in range(5, 14))  # bytes: 1 kB ... 64 MB
NAMES = {"horovod": "Horovod", "mpi": "MPI", "nccl": "NCCL"}  # other methods keep their names
OPTIONS = {  # Horovod 0.28 has a fusion buffer of 128 MiB and a cycle of 1 ms by default
    "default": {},
    "no fusion": {"HOROVOD_FUSION_THRESHOLD": "0"},
    "fusion 1 MB": {"HOROVOD_FUSION_THRESHOLD": "1048576"},
    "cycle 0.1 ms": {"HOROVOD_CYCLE_TIME": "0.1"},
    "cycle 5 ms": {"HOROVOD_CYCLE_TIME": "5"},
    "fp16 compression": {},
    "no cache": {
        "HOROVOD_CACHE_CAPACITY": "0"
    },  # by default it shortens the negotiation of 1024 tensors
    "hierarchical": {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"},  # has an effect only with NCCL
}
WARM_UP_ROUNDS = 2
TENSORS, TENSOR_BYTES = 64, 65_536  # the options are measured with as many gradients at once

# --- one rank ---------------------------------------------------------------------------------------


def timed(
    comm: "MPI.Comm",
    calls: Mapping[str, Callable[[], object]],
    rounds: int,
    wait: Callable[[], object],
) -> dict[str, float]:
    """Time calls, which take turns; all ranks make a call at the same time.

    Args:
        calls: name -> the call.
        rounds: number of timed calls of each name.

    Returns:
        Name -> seconds: the median over the rounds of the time of the slowest rank.
    """
    import numpy as np
    from mpi4py import MPI

    times = np.empty((WARM_UP_ROUNDS + rounds, len(calls)))
    for row in times:
        for place, call in enumerate(calls.values()):
            comm.Barrier()
            started = time.perf_counter()
            call()
            wait()
            row[place] = time.perf_counter() - started
    slowest = np.empty_like(times)
    comm.Allreduce(times, slowest, MPI.MAX)
    medians = np.median(slowest[WARM_UP_ROUNDS:], axis=0).tolist()
    return dict(zip(calls, medians, strict=True))


def measure(option: str, sizes: Sequence[int]) -> dict:
    """Measure all methods, and an exchange of many gradients, on this rank.

    Args:
        sizes: sizes of the messages in bytes.

    Returns:
        {"ways": {method: {bytes: seconds}}, "gradients": seconds, "rank": of this process, "device": its
        name}. A time is the median over the calls of the time of the slowest rank.
    """
    comm = launched.communicator()
    import horovod.torch as hvd
    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    from hvdlab.torch.device import rank_device

    hvd.init()
    mine = rank_device(hvd)
    on_gpu = mine.device.type == "cuda"
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    store = dist.FileStore(os.environ["HVDLAB_BENCH_STORE"], comm.size)
    dist.init_process_group(mine.backend, store=store, rank=comm.rank, world_size=comm.size)
    torch.set_num_threads(1)

    def all_reduce(tensor: torch.Tensor, name: str) -> torch.Tensor:
        """Send a tensor as `hvd.DistributedOptimizer` does: in place, or through host memory."""
        sent, context = mine.compression.compress(tensor)
        return mine.compression.decompress(hvd.allreduce_(sent, op=hvd.Sum, name=name), context)

    def calls_of(nbytes: int) -> dict[str, Callable[[], object]]:
        """Return one call per method for messages of `nbytes`."""
        tensor = torch.zeros(nbytes // 4, device=mine.device)
        copy = torch.empty_like(tensor)
        calls = {"horovod": lambda: all_reduce(tensor, f"{nbytes} bytes")}
        if not on_gpu:
            array = tensor.numpy()
            calls["mpi"] = lambda: comm.Allreduce(MPI.IN_PLACE, array)
        if not on_gpu or mine.direct:
            calls[mine.backend] = lambda: dist.all_reduce(tensor)
        return calls | {"memcpy": lambda: copy.copy_(tensor)}

    ways: dict = {}
    for nbytes in sizes:
        rounds = max(5, min(100, 2**26 // nbytes))
        for way, seconds in timed(comm, calls_of(nbytes), rounds, wait).items():
            ways.setdefault(way, {})[nbytes] = seconds

    gradients = [torch.zeros(TENSOR_BYTES // 4, device=mine.device) for _ in range(TENSORS)]
    half = torch.float16 if "fp16" in option else torch.float32  # as hvd.Compression.fp16 does

    def exchange() -> None:
        sent = [mine.compression.compress(tensor.to(half)) for tensor in gradients]
        handles = [hvd.allreduce_async_(t, name=f"g{i}") for i, (t, _) in enumerate(sent)]
        for handle, (_, context) in zip(handles, sent, strict=True):
            mine.compression.decompress(hvd.synchronize(handle), context).to(torch.float32)

    found = {
        "ways": ways,
        "gradients": timed(comm, {"": exchange}, 30, wait)[""],
        "rank": comm.rank,
        "device": launched.device_of_torch(mine.device),
    }
    dist.destroy_process_group()
    hvd.shutdown()
    return found


# --- all ranks --------------------------------------------------------------------------------------


def allreduce(
    ranks: int,
    repeats: int = 5,
    sizes: Sequence[int] = SIZES,
    options: Mapping[str, dict[str, str]] = OPTIONS,
    tell: Callable[[str], object] = print,
    device: str = "cpu",
) -> dict:
    """Measure all methods by message size, and Horovod's settings, in turns.

    Args:
        ranks: number of ranks.
        repeats: number of rounds.
        sizes: sizes of the messages in bytes; they are measured with Horovod's defaults.
        options: name of a setting of Horovod -> its environment variables.
        tell: is called with one line of progress per run.
        device: "cpu" or "gpu".

    Returns:
        {"ranks": their number, "device": its name, "ways": {method: {bytes: [seconds]}}, "options":
        {option: [seconds]}}, one number per round.

    Raises:
        ranks.BenchFailed: a run failed.
    """
    found: dict = {"ranks": ranks, "ways": {}, "options": {option: [] for option in options}}
    for repeat in range(repeats):
        for option, variables in options.items():
            asked = ",".join(map(str, sizes)) if option == "default" else ""
            report, *_ = launched.run(__name__, ranks, option, asked, device=device, **variables)
            found["device"] = report["device"]
            found["options"][option].append(report["gradients"])
            for way, times in report["ways"].items():
                for nbytes, seconds in times.items():
                    found["ways"].setdefault(way, {}).setdefault(nbytes, []).append(seconds)
            tell(f"round {repeat + 1} of {repeats}: {option}, {1000 * report['gradients']:.2f} ms")
    return found


def busbw(nbytes: float, seconds: float, ranks: int) -> float:
    """Return the bus bandwidth in GB/s: the bandwidth that each link of a ring of ranks would need.

    Args:
        ranks: number of ranks.
    """
    return nbytes / seconds * 2 * (ranks - 1) / ranks / 1e9


def show(found: dict, console: Console) -> None:
    """Print medians of the rounds; a ratio is the median of the ratios of the rounds."""
    n, ways, median = found["ranks"], found["ways"], statistics.median
    peers = [way for way in ways if way not in ("horovod", "memcpy")]
    names = [f"\n{NAMES.get(way, way)}" for way in peers]
    titles = ["\nbytes", "Horovod\nus", "\nmin .. max", "busbw\nHorovod", *names, "\nmemcpy",
              "ratio to\nmemcpy", *names]  # fmt: skip
    table = results.table([], titles, narrow=True)
    for nbytes, ours in ways["horovod"].items():
        size = int(nbytes)
        rates = {
            way: [
                size / seconds / 1e9 if way == "memcpy" else busbw(size, seconds, n)
                for seconds in times[nbytes]
            ]
            for way, times in ways.items()
        }
        table.add_row(
            f"{size >> 20} Mi" if size >= 1 << 20 else f"{size >> 10} Ki",
            *results.median_and_range([1e6 * seconds for seconds in ours], ",.0f"),
            *(f"{median(rates[way]):.3f}" for way in ("horovod", *peers, "memcpy")),
            *(results.median_ratio(rates["horovod"], rates[way]) for way in ("memcpy", *peers)),
        )
    rounds = len(next(iter(found["options"].values())))
    console.print(f"All-reduce on {n} ranks, {found['device']}, GB/s, medians of {rounds} rounds")
    console.print(table)
    console.print(f"algbw = bytes / seconds; busbw = {2 * (n - 1) / n:.3g} algbw on {n} ranks\n")

    table = results.table(["Horovod with"], ["ms", "min .. max", "to default"])
    for option, times in found["options"].items():
        table.add_row(
            option,
            *results.median_and_range([1e3 * seconds for seconds in times], ".2f"),
            results.median_ratio(times, found["options"]["default"]),
        )
    console.print(f"{TENSORS} gradients of {TENSOR_BYTES:,} bytes at once")
    console.print(table)


def plot(found: dict, path: Path) -> None:
    """Draw bus bandwidth by message size, with the range of the rounds, and memcpy as the limit."""
    factor = 2 * (found["ranks"] - 1) / found["ranks"]
    with results.drawing(path) as axes:
        for way, by_size in found["ways"].items():
            scale, style = (1.0, "--") if way == "memcpy" else (factor, "o-")
            sizes = [int(nbytes) for nbytes in by_size]
            rates = [
                sorted(scale * size / seconds / 1e9 for seconds in times)
                for size, times in zip(sizes, by_size.values(), strict=True)
            ]
            medians = [statistics.median(r) for r in rates]
            (line,) = axes.plot(sizes, medians, style, label=NAMES.get(way, way))
            low, high = [r[0] for r in rates], [r[-1] for r in rates]
            axes.fill_between(sizes, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        axes.set(xscale="log", yscale="log", xlabel="bytes of the array")
        axes.set(ylabel="bus bandwidth, GB/s", title=f"All-reduce on {found['ranks']} ranks")


# --- command ----------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdlab bench allreduce`."""
    results.add_ranks(parser, "(default: all GPUs, or all cores, and at least 2)")
    parser.add_argument(
        "--largest", type=positive, default=SIZES[-1], metavar="BYTES",
        help=f"do not measure larger messages (default {SIZES[-1]:,})",
    )  # fmt: skip
    results.add_device(parser)
    results.add_rounds(parser, 5)
    results.add_plot(parser)


def main(args: argparse.Namespace) -> int:
    """Run `hvdlab bench allreduce` and return its exit code."""
    if args.ranks == 1:
        print(
            "hvdlab: --ranks: expected at least 2, got 1, because a single rank exchanges nothing",
            file=sys.stderr,
        )
        return 2
    args.ranks = args.ranks or launched.ranks_of_all(args.device)
    args.device = launched.chosen_device(args.device, args.ranks)
    sizes = [nbytes for nbytes in SIZES if nbytes <= max(args.largest, SIZES[0])]
    found = allreduce(args.ranks, args.repeats, sizes, tell=results.tell, device=args.device)
    results.keep(args, found, plot)
    show(found, Console())
    return 0


if __name__ == "__main__":
    option, asked = sys.argv[1:]
    launched.tell(measure(option, [int(size) for size in asked.split(",") if size]))
