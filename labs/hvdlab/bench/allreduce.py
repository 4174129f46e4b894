"""All-reduce by message size: Horovod, MPI and gloo beside what the memory allows, and Horovod's knobs.

All of it on the same ranks in the same run, in turns (`python -m hvdlab.bench.allreduce OPTION SIZES`
on each rank). The bound is a copy within memory that all ranks make at once: of ranks on one machine
each must at least receive 2(N-1)/N of the array, so bus bandwidth can at best reach the copy's.

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
from hvdlab.hardware import usable_cores

EPILOG = """\
examples:
  hvdlab bench allreduce                        all cores, 1 kB to 64 MB, five rounds
  hvdlab bench allreduce --json allreduce.json --plot allreduce.png
  hvdlab bench scaling --allreduce allreduce.json    foretell the scaling from it
"""
SIZES = tuple(4**k for k in range(5, 14))  # bytes: 1 kB ... 64 MB
WAYS = ("horovod", "mpi", "gloo", "memcpy")
OPTIONS = {  # beside the defaults of 0.28: 128 MiB and 1 ms
    "default": {},
    "no fusion": {"HOROVOD_FUSION_THRESHOLD": "0"},
    "fusion 1 MB": {"HOROVOD_FUSION_THRESHOLD": "1048576"},
    "cycle 0.1 ms": {"HOROVOD_CYCLE_TIME": "0.1"},
    "cycle 5 ms": {"HOROVOD_CYCLE_TIME": "5"},
    "fp16 compression": {},
    "hierarchical": {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"},  # Horovod obeys it with NCCL only
}
TENSORS, TENSOR_BYTES = 64, 65_536  # what the options are tried on: as many gradients at once

# --- one rank ---------------------------------------------------------------------------------------


def measure(option: str, sizes: list[int]) -> dict:
    """{"ways": {way: {bytes: seconds}}, "gradients": seconds}: the slowest rank, the median call."""
    import horovod.torch as hvd
    import numpy as np
    import torch
    import torch.distributed as dist
    from mpi4py import MPI  # starts MPI with threads, which Horovod needs too

    hvd.init()
    comm = MPI.COMM_WORLD
    store = dist.FileStore(os.environ["HVDLAB_BENCH_STORE"], comm.size)
    dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size)

    def timed(calls: dict, rounds: int) -> dict:
        """Call each in turn, all ranks at once; the median over the rounds of the slowest rank."""
        times = np.empty((rounds + 2, len(calls)))
        for row in times:
            for place, call in enumerate(calls.values()):
                comm.Barrier()
                started = time.perf_counter()
                call()
                row[place] = time.perf_counter() - started
        slowest = np.empty_like(times)
        comm.Allreduce(times, slowest, MPI.MAX)
        return dict(zip(calls, np.median(slowest[2:], axis=0).tolist(), strict=True))

    ways = {}
    for nbytes in sizes:
        array = np.zeros(nbytes // 4, np.float32)
        tensor, copy = torch.from_numpy(array), np.empty_like(array)
        calls = {
            "horovod": lambda t=tensor, n=nbytes: hvd.allreduce_(t, op=hvd.Sum, name=f"{n} bytes"),
            "mpi": lambda a=array: comm.Allreduce(MPI.IN_PLACE, a),
            "gloo": lambda t=tensor: dist.all_reduce(t),
            "memcpy": lambda a=array, c=copy: np.copyto(c, a),
        }
        for way, seconds in timed(calls, max(5, min(100, 2**26 // nbytes))).items():
            ways.setdefault(way, {})[nbytes] = seconds

    gradients = [torch.zeros(TENSOR_BYTES // 4) for _ in range(TENSORS)]
    compression = hvd.Compression.fp16 if "fp16" in option else hvd.Compression.none

    def exchange():
        sent = [compression.compress(tensor) for tensor in gradients]
        handles = [hvd.allreduce_async_(t, name=f"g{i}") for i, (t, _) in enumerate(sent)]
        for handle, (_, context) in zip(handles, sent, strict=True):
            compression.decompress(hvd.synchronize(handle), context)

    found = {"ways": ways, "gradients": timed({"": exchange}, 30)[""], "rank": comm.rank}
    dist.destroy_process_group()
    hvd.shutdown()
    return found


# --- all ranks --------------------------------------------------------------------------------------


def allreduce(ranks: int, repeats: int = 5, sizes=SIZES, options=OPTIONS, tell=print) -> dict:
    """{"ranks", "ways": {way: {bytes: [seconds]}}, "options": {option: [seconds]}}, one a round."""
    found: dict = {"ranks": ranks, "ways": {}, "options": {option: [] for option in options}}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            for number, option in enumerate(options):
                # The sizes are measured once a round, with Horovod's defaults.
                asked = ",".join(map(str, sizes)) if option == "default" else ""
                store = f"{folder}/{repeat}-{number}"
                told = launched.run(
                    __name__, ranks, option, asked, HVDLAB_BENCH_STORE=store, **OPTIONS[option]
                )[0]
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
    table = Table(box=None, header_style="dim", padding=(0, 1, 0, 0))  # fits into 80 columns
    for title in ("\nbytes", "Horovod\nus", "\nmin .. max", "busbw\nHorovod", "\nMPI", "\ngloo", "\nmemcpy",
                  "ratio to\nmemcpy", "\nMPI", "\ngloo"):  # fmt: skip
        table.add_column(title, justify="right", no_wrap=True)
    for nbytes, ours in ways["horovod"].items():
        size = int(nbytes)
        rates = {
            way: [busbw(size, seconds, n) for seconds in ways[way][nbytes]]
            for way in ("horovod", "mpi", "gloo")
        }
        rates["memcpy"] = [size / seconds / 1e9 for seconds in ways["memcpy"][nbytes]]
        table.add_row(
            f"{size >> 20} Mi" if size >= 1 << 20 else f"{size >> 10} Ki",
            *results.median_and_range([1e6 * seconds for seconds in ours], ",.0f"),
            *(f"{median(rates[way]):.3f}" for way in WAYS),
            *(
                f"{median(o / t for o, t in zip(rates['horovod'], rates[way], strict=True)):.2f}"
                for way in ("memcpy", "mpi", "gloo")
            ),
        )
    rounds = len(next(iter(found["options"].values())))
    console.print(f"All-reduce on {n} ranks, GB/s, medians of {rounds} rounds")
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
            label={"horovod": "Horovod", "mpi": "MPI"}.get(way, way),
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
    most = max(2, usable_cores())
    parser.add_argument("--ranks", type=results.count, default=most, help=f"(default {most})")
    parser.add_argument(
        "--largest", type=results.count, default=SIZES[-1], metavar="BYTES",
        help=f"leave larger messages out (default {SIZES[-1]:,})",
    )  # fmt: skip
    results.add_rounds(parser, 5)
    results.add_plot(parser)


def main(args: argparse.Namespace) -> int:
    if args.ranks < 2:
        print(
            "hvdlab: --ranks: one rank has nobody to talk to, expected at least 2", file=sys.stderr
        )
        return 2
    sizes = [nbytes for nbytes in SIZES if nbytes <= max(args.largest, SIZES[0])]
    try:
        found = allreduce(args.ranks, args.repeats, sizes, tell=results.tell)
    except launched.BenchFailed as error:
        print(f"hvdlab: {error}", file=sys.stderr)
        return 1
    results.keep(args, found, plot)
    show(found, Console())
    return 0


if __name__ == "__main__":
    option, asked = sys.argv[1:]
    launched.tell(measure(option, [int(size) for size in asked.split(",") if size]))
