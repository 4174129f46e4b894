"""Measure what DistributedDataParallel sends in a step, and when: bucket size, no_sync, communication hooks.

    mpirun -np 2 python labs/ddp_communication.py --bucket-mb 1
    torchrun --nproc-per-node 2 labs/ddp_communication.py --passes 4 --no-sync
    srun -n 8 python labs/ddp_communication.py --hook powersgd

The network has 4.4 million parameters, and the images are random. Rank 0 prints one line of JSON:

    seconds       of a step, median after three steps
    bytes         that rank 0 sent in the last step
    loss          of the last step
    collectives   number of all-reduces in one step
    events        of one step, from a profile: [what, start, milliseconds], what is "backward" or "all-reduce"

The profile sees only the first of PowerSGD's three all-reduces, because callbacks start the others on Gloo's
threads. If NCCL connects the GPUs of the ranks, no bytes are counted, because NCCL does not use TCP. On a GPU
the events show when the processor starts an operation. Ranks that share a GPU exchange through host memory,
by Gloo.
"""

import argparse
import json
import statistics
import sys
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from hvdlab.arguments import above_zero, positive
from hvdlab.system.tcp_bytes import NOT_COUNTED, bytes_sent
from hvdlab.torch.lab_networks import ResidualMLP
from hvdlab.torch.process_group import group_device, rendezvous

WARM_UP = 3  # steps that are not timed
ONE_BUCKET = 25  # MiB: more than all gradients, which have 17


def parse_args():
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--bucket-mb",
        type=above_zero,
        help="bucket_cap_mb of DDP, for all buckets; without it DDP's own default: 1 for the first bucket, "
        "25 for the others; at least 25 with powersgd",
    )
    parser.add_argument("--hook", choices=("none", "fp16", "powersgd"), default="none")
    parser.add_argument("--passes", type=positive, default=1, help="backward passes per step")
    parser.add_argument("--no-sync", action="store_true", help="exchange after the last pass only")
    parser.add_argument("--batch-size", type=positive, default=128, help="images per pass and rank")
    parser.add_argument(
        "--steps", type=int, default=10, help="at least 4: the first 3 are not timed"
    )
    args = parser.parse_args()
    if args.steps <= WARM_UP:
        parser.error(
            f"--steps: expected more than {WARM_UP}, got {args.steps}: the first {WARM_UP} are not timed"
        )
    if args.hook == "powersgd":
        # Each bucket needs three all-reduces, and each starts when the one before has ended. With several
        # buckets their order can differ between the ranks, and Gloo then mixes up the buckets.
        args.bucket_mb = args.bucket_mb or ONE_BUCKET
        if args.bucket_mb < ONE_BUCKET:
            parser.error(
                f"--bucket-mb: expected {ONE_BUCKET} or more with --hook powersgd, which needs all gradients "
                f"in one bucket, got {args.bucket_mb:g}"
            )
    return args


def main():
    args = parse_args()
    rendezvous()
    chosen = group_device()
    device = chosen.device
    dist.init_process_group(chosen.backend, device_id=device if chosen.direct else None)
    if chosen.direct and dist.get_rank() == 0:
        print(NOT_COUNTED, file=sys.stderr)
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(
        ResidualMLP(8, 256, image_size=28).to(device), bucket_cap_mb=args.bucket_mb
    )
    if args.hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if args.hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            dist.group.WORLD, matrix_approximation_rank=1, start_powerSGD_iter=2
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.Adam(model.parameters())
    images = torch.randn(args.passes, args.batch_size, 1, 28, 28, device=device)
    labels = torch.randint(10, (args.passes, args.batch_size), device=device)

    def step():
        for number in range(args.passes):
            quiet = args.no_sync and number < args.passes - 1
            # no_sync: gradients add up on each rank. The forward pass must be inside too.
            with model.no_sync() if quiet else nullcontext():
                loss = F.cross_entropy(model(images[number]), labels[number])
                (loss / args.passes).backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()  # waits for a GPU too

    seconds = []
    for _ in range(args.steps):
        dist.barrier()
        before, began = bytes_sent(), time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - began)
        dist.barrier()  # before the barrier, bytes of this rank may still wait in the kernel
        sent = bytes_sent() - before
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    events = gather(profiler.profiler.kineto_results.events())
    if dist.get_rank() == 0:
        report = {
            "seconds": statistics.median(seconds[WARM_UP:]),
            "bytes": sent,
            "loss": loss,
            "collectives": sum(what == "all-reduce" for what, _, _ in events),
            "events": events,
        }
        print(json.dumps(report), flush=True)


def gather(events):
    """Return the backward operations and the collectives: [(what, start, duration)] in milliseconds."""
    zero = min(event.start_ns() for event in events)
    found = []
    for event in events:
        exchanged = event.name().startswith(("gloo:", "nccl:"))
        if exchanged or event.name().startswith("autograd::engine"):
            what = "all-reduce" if exchanged else "backward"
            found.append((what, (event.start_ns() - zero) / 1e6, event.duration_ns() / 1e6))
    return found


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
