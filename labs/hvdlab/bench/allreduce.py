"""All-reduce by message size: Horovod, MPI and gloo, what the memory allows, and Horovod's settings.

All of it on the same ranks in the same run, in turns (`python -m hvdlab.bench.allreduce OPTION SIZES`
on each rank). The bound is a copy within memory that all ranks make at once: of ranks on one machine
each must at least receive 2(N-1)/N of the array, so bus bandwidth can at best reach the copy's.

On GPUs the arrays lie there. Horovod sends them by NCCL. Its peers are PyTorch's own NCCL and a copy within
the memory of the GPU. Where NCCL cannot connect the ranks, such as two on one GPU, Horovod sends them through
host memory, and there is no such peer.

    algbw = bytes / seconds          busbw = algbw 2(N-1)/N          (as nccl-tests defines them)
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hvdlab.bench import ranks as launched
from hvdlab.bench import results

EPILOG = """\
examples:
  hvdlab bench allreduce                        all cores, 1 kB to 64 MB, five rounds
  hvdlab bench allreduce --json allreduce.json --plot allreduce.png
  hvdlab bench scaling --allreduce allreduce.json    predict the scaling from it
"""
SIZES = tuple(4**k for k in range(5, 14))  # bytes: 1 kB ... 64 MB
NAMES = {"horovod": "Horovod", "mpi": "MPI", "nccl": "NCCL"}  # other ways keep their names
OPTIONS = {  # the defaults of 0.28 are 128 MiB and 1 ms
    "default": {},
    "no fusion": {"HOROVOD_FUSION_THRESHOLD": "0"},
    "fusion 1 MB": {"HOROVOD_FUSION_THRESHOLD": "1048576"},
    "cycle 0.1 ms": {"HOROVOD_CYCLE_TIME": "0.1"},
    "cycle 5 ms": {"HOROVOD_CYCLE_TIME": "5"},
    "fp16 compression": {},
    "no cache": {"HOROVOD_CACHE_CAPACITY": "0"},  # of 1024 tensors, whose negotiation it shortens
    "hierarchical": {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"},  # Horovod obeys it with NCCL only
}
TENSORS, TENSOR_BYTES = 64, 65_536  # what the options are tried on: as many gradients at once

# --- one rank ---------------------------------------------------------------------------------------


def measure(option: str, sizes: list[int]) -> dict:
    """{"ways": {way: {bytes: seconds}}, "gradients": seconds}: the slowest rank, the median call."""
    comm = launched.communicator()
    import horovod.torch as hvd
    import numpy as np
    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    from hvdlab.torch.device import rank_device

    hvd.init()
    mine = rank_device(hvd)
    on_gpu = mine.device.type == "cuda"
    store = dist.FileStore(os.environ["HVDLAB_BENCH_STORE"], comm.size)
    dist.init_process_group(mine.backend, store=store, rank=comm.rank, world_size=comm.size)

    def timed(calls: dict, rounds: int) -> dict:
        """Call each in turn, all ranks at once; the median over the rounds of the slowest rank."""
        times = np.empty((rounds + 2, len(calls)))
        for row in times:
            for place, call in enumerate(calls.values()):
                comm.Barrier()
                started = time.perf_counter()
                call()
                if on_gpu:
                    torch.cuda.synchronize()
                row[place] = time.perf_counter() - started
        slowest = np.empty_like(times)
        comm.Allreduce(times, slowest, MPI.MAX)
        return dict(zip(calls, np.median(slowest[2:], axis=0).tolist(), strict=True))

    def all_reduce(tensor, name: str):
        """As `hvd.DistributedOptimizer` does it: in place, or through host memory."""
        sent, context = mine.compression.compress(tensor)
        return mine.compression.decompress(hvd.allreduce_(sent, op=hvd.Sum, name=name), context)

    def calls_of(nbytes: int) -> dict:
        tensor = torch.zeros(nbytes // 4, device=mine.device)
        copy = torch.empty_like(tensor)
        calls = {"horovod": lambda: all_reduce(tensor, f"{nbytes} bytes")}
        if not on_gpu:
            array = tensor.numpy()
            calls["mpi"] = lambda: comm.Allreduce(MPI.IN_PLACE, array)
        if not on_gpu or mine.direct:
            calls[mine.backend] = lambda: dist.all_reduce(tensor)
        return calls | {"memcpy": lambda: copy.copy_(tensor)}

    torch.set_num_threads(1)
    ways: dict = {}
    for nbytes in sizes:
        for way, seconds in timed(calls_of(nbytes), max(5, min(100, 2**26 // nbytes))).items():
            ways.setdefault(way, {})[nbytes] = seconds

    gradients = [torch.zeros(TENSOR_BYTES // 4, device=mine.device) for _ in range(TENSORS)]
    half = torch.float16 if "fp16" in option else torch.float32  # as hvd.Compression.fp16 does

    def exchange():
        sent = [mine.compression.compress(tensor.to(half)) for tensor in gradients]
        handles = [hvd.allreduce_async_(t, name=f"g{i}") for i, (t, _) in enumerate(sent)]
        for handle, (_, context) in zip(handles, sent, strict=True):
            mine.compression.decompress(hvd.synchronize(handle), context).to(torch.float32)

    found = {
        "ways": ways,
        "gradients": timed({"": exchange}, 30)[""],
        "rank": comm.rank,
        "device": launched.device_of_torch(mine.device),
    }
    dist.destroy_process_group()
    hvd.shutdown()
    return found


# --- all ranks --------------------------------------------------------------------------------------


def allreduce(
    ranks: int, repeats: int = 5, sizes=SIZES, options=OPTIONS, tell=print, device: str = "cpu"
) -> dict:
    """{"ranks", "device", "ways": {way: {bytes: [seconds]}}, "options": {option: [seconds]}}, one a round."""
    found: dict = {"ranks": ranks, "ways": {}, "options": {option: [] for option in options}}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            for number, option in enumerate(options):
                # The sizes are measured once a round, with Horovod's defaults.
                asked = ",".join(map(str, sizes)) if option == "default" else ""
                store = f"{folder}/{repeat}-{number}"
                told = launched.run(
                    __name__, ranks, option, asked,
                    device=device, HVDLAB_BENCH_STORE=store, **OPTIONS[option],
                )[0]  # fmt: skip
                found["device"] = told["device"]
                found["options"][option].append(told["gradients"])
                for way, times in told["ways"].items():
                    for nbytes, seconds in times.items():
                        found["ways"].setdefault(way, {}).setdefault(nbytes, []).append(seconds)
                milliseconds = 1000 * told["gradients"]
                tell(f"round {repeat + 1} of {repeats}: {option}, {milliseconds:.2f} ms")
    return found


def busbw(nbytes: float, seconds: float, ranks: int) -> float:
    """GB/s of the busiest connection of a perfect ring that takes as long."""
    return nbytes / seconds * 2 * (ranks - 1) / ranks / 1e9


def show(found: dict, console: Console) -> None:
    """Medians of the rounds; ratios are medians of the ratios of the rounds."""
    n, ways, median = found["ranks"], found["ways"], statistics.median
    peers = [way for way in ways if way not in ("horovod", "memcpy")]
    table = Table(box=None, header_style="dim", padding=(0, 1, 0, 0))  # fits into 80 columns
    names = [f"\n{NAMES.get(way, way)}" for way in peers]
    for title in ("\nbytes", "Horovod\nus", "\nmin .. max", "busbw\nHorovod", *names, "\nmemcpy",
                  "ratio to\nmemcpy", *names):  # fmt: skip
        table.add_column(title, justify="right", no_wrap=True)
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
            *(
                f"{median(o / t for o, t in zip(rates['horovod'], rates[way], strict=True)):.2f}"
                for way in ("memcpy", *peers)
            ),
        )
    rounds = len(next(iter(found["options"].values())))
    console.print(f"All-reduce on {n} ranks, {found['device']}, GB/s, medians of {rounds} rounds")
    console.print(table)
    console.print(f"algbw = bytes / seconds; busbw = {2 * (n - 1) / n:.3g} algbw on {n} ranks\n")

    table = Table(box=None, header_style="dim", padding=(0, 1))
    for title in ("Horovod with", "ms", "min .. max", "to default"):
        table.add_column(title, justify="left" if title == "Horovod with" else "right")
    for option, times in found["options"].items():
        ratios = [t / d for t, d in zip(times, found["options"]["default"], strict=True)]
        table.add_row(
            option,
            *results.median_and_range([1e3 * seconds for seconds in times], ".2f"),
            f"{median(ratios):.2f}",
        )
    console.print(f"{TENSORS} gradients of {TENSOR_BYTES:,} bytes at once")
    console.print(table)


def plot(found: dict, path: Path) -> None:
    """Bus bandwidth by message size, with the range of the rounds, and memcpy as the bound."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.style.use("hvdlab.lab")
    figure, axes = plt.subplots()
    factor = 2 * (found["ranks"] - 1) / found["ranks"]
    for way, by_size in found["ways"].items():
        sizes = [int(nbytes) for nbytes in by_size]
        scale = 1.0 if way == "memcpy" else factor
        rates = [
            sorted(scale * size / seconds / 1e9 for seconds in times)
            for size, times in zip(sizes, by_size.values(), strict=True)
        ]
        (line,) = axes.plot(
            sizes,
            [statistics.median(r) for r in rates],
            "--" if way == "memcpy" else "o-",
            label=NAMES.get(way, way),
        )
        low, high = [r[0] for r in rates], [r[-1] for r in rates]
        axes.fill_between(sizes, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel="bytes of the array", ylabel="bus bandwidth, GB/s")
    axes.set_title(f"All-reduce on {found['ranks']} ranks")
    axes.legend()
    figure.savefig(path)
    plt.close(figure)


# --- command ----------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ranks", type=results.count, help="(default: all GPUs, or all cores, and at least 2)"
    )
    parser.add_argument(
        "--largest", type=results.count, default=SIZES[-1], metavar="BYTES",
        help=f"leave larger messages out (default {SIZES[-1]:,})",
    )  # fmt: skip
    results.add_device(parser)
    results.add_rounds(parser, 5)
    results.add_plot(parser)


def main(args: argparse.Namespace) -> int:
    if args.ranks == 1:
        print(
            "hvdlab: --ranks: one rank has nobody to talk to, expected at least 2", file=sys.stderr
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
