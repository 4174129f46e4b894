"""Train a small network for a few steps on each rank and record traces, for lab 17.

    mpirun -np 2 python labs/traced_training.py --case 0 --out FOLDER
    mpirun -np 2 python labs/traced_training.py --case 1 2 3 4 5 --out FOLDER
    HOROVOD_TIMELINE=timeline.json HOROVOD_CACHE_CAPACITY=0 \\
        mpirun -np 2 python labs/traced_training.py --case 0 --horovod --out FOLDER

Case 0 is correct, and each of the others has one fault. Lab 17 asks which one, so solve it first.
Each case writes to FOLDER:

    case_N_rank_R.json    trace of PyTorch's profiler, in the format of chrome://tracing
    case_N.txt            operations of rank 0 with the largest self time, as a table

and rank 0 prints a line of JSON for each case: seconds of a step without and with the profiler (medians), and
the number of steps in the trace. All ranks compute on CPUs. The data are random images, and reading a batch
waits 60 ms, like a request to a distant file server.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

from hvdlab.arguments import folder_to_write, positive
from hvdlab.torch.lab_networks import ResidualMLP
from hvdlab.torch.process_group import rendezvous

READ_SECONDS, READERS = 0.06, 4
BATCH, WARM_UP = 64, 3
BUCKET_MB, TINY_BUCKET_MB = 2, 1e-6


def parse_args():
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--case", type=int, nargs="+", choices=range(6), default=[0])
    parser.add_argument("--out", type=folder_to_write, required=True, help="folder of the traces")
    parser.add_argument("--steps", type=positive, default=4, help="steps in each trace")
    parser.add_argument("--horovod", action="store_true", help="exchange with Horovod, not DDP")
    return parser.parse_args()


def main():
    args = parse_args()
    rendezvous()
    if args.horovod:
        import horovod.torch as hvd

        hvd.init()
    else:
        dist.init_process_group("gloo")
    torch.set_num_threads(1)
    Path(args.out).mkdir(parents=True, exist_ok=True)
    for case in args.case:
        record(case, args)
    if not args.horovod:
        dist.destroy_process_group()


def record(case, args):
    """Train with one case, first without and then with the profiler, and write its files."""
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model, optimizer = prepare(case, args.horovod)
    number = 4 * BATCH if case == 4 and rank == 1 else BATCH
    batches = read_batches(number, WARM_UP + 2 * args.steps, ahead=case != 1)

    def step():
        began = time.perf_counter()
        with record_function("step"):
            with record_function("read batch"):
                images, labels = next(batches)
            with record_function("forward"):
                logits = model(images)
                loss = F.cross_entropy(logits, labels)
                if case == 2:
                    with torch.no_grad():
                        found = getattr(model, "module", model)(images).argmax(1)
                        (found == labels).float().mean()
                if case == 5:
                    best = [max((float(s), n) for n, s in enumerate(row))[1] for row in logits]
                    sum(label == int(labels[image]) for image, label in enumerate(best))
            with record_function("backward"):
                optimizer.zero_grad()
                loss.backward()
            with record_function("update"):
                optimizer.step()
        return time.perf_counter() - began

    for _ in range(WARM_UP):
        step()
    without = [step() for _ in range(args.steps)]
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        recorded = [step() for _ in range(args.steps)]
    profiler.export_chrome_trace(str(Path(args.out) / f"case_{case}_rank_{rank}.json"))
    if rank == 0:
        table = profiler.key_averages().table(
            sort_by="self_cpu_time_total", row_limit=8, max_name_column_width=44
        )
        (Path(args.out) / f"case_{case}.txt").write_text(table, encoding="utf-8")
        seconds = {"without": statistics.median(without), "with": statistics.median(recorded)}
        print(json.dumps({"case": case, "steps": args.steps, **seconds}), flush=True)


def prepare(case, horovod):
    """Return the network and its optimizer, which average the gradients over the ranks."""
    model = ResidualMLP(3, 256, image_size=28)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if horovod:
        import horovod.torch as hvd

        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, hvd.DistributedOptimizer(optimizer, model.named_parameters())
    limit = TINY_BUCKET_MB if case == 3 else BUCKET_MB
    return DistributedDataParallel(model, bucket_cap_mb=limit), optimizer


def read_batches(number, count, ahead) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches; with `ahead`, threads read the next ones while the network trains."""
    images, labels = torch.randn(number, 1, 28, 28), torch.randint(10, (number,))

    def read(_):
        time.sleep(READ_SECONDS)
        return images, labels

    if not ahead:
        yield from map(read, range(count))
        return
    with ThreadPoolExecutor(READERS) as readers:
        yield from readers.map(read, range(count))


if __name__ == "__main__":
    main()
