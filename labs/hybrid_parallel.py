"""Train a residual MLP with data x tensor x pipeline parallelism on a device mesh.

    mpirun -np 4 python labs/hybrid_parallel.py 2x1x2
    mpirun -np 4 python labs/hybrid_parallel.py 4x1x1 1x4x1 1x1x4 --schedules gpipe 1f1b
    torchrun --nproc-per-node 8 labs/hybrid_parallel.py 2x2x2
    python labs/hybrid_parallel.py 1x1x1

A split such as 2x1x2 gives the number of ranks along each axis, and their product is the number of ranks.
Along `data` the batch is split, and FSDP2 shards the weights of each rank. Along `tensor` DTensor splits the
two matrices of every block, the first by columns, the second by rows. Along `pipeline` each rank has a stage,
that is, some of the blocks, and a schedule of torch.distributed.pipelining passes the micro-batches through
the stages.

Every combination of splits, schedules and micro-batches is trained from the same weights on the same
batches. Rank 0 prints a line for each, and writes the measurements of all ranks to --output.
"""

import argparse
import json
import math
import os
import statistics
import sys
import time
from contextlib import contextmanager
from itertools import product
from operator import itemgetter

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import ModuleList
from torch.nn import functional as F

from hvdlab.arguments import above_zero, file_to_write, positive, whole_number
from hvdlab.system.tcp_bytes import NOT_COUNTED, bytes_sent
from hvdlab.torch import memory
from hvdlab.torch.lab_networks import Block, ResidualMLP
from hvdlab.torch.model_parallel.pipeline_stages import batch, stage
from hvdlab.torch.process_group import group_device, rendezvous

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}
AXES = ("data", "tensor", "pipeline")  # of a split


def split(text):
    """Return (data, tensor, pipeline) of a text such as "2x1x2"."""
    numbers = [int(part) for part in text.split("x")]
    if len(numbers) != 3 or min(numbers) < 1:
        raise ValueError(text)  # argparse reports it
    return tuple(numbers)


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("splits", nargs="+", type=split, help="data x tensor x pipeline, as 2x1x2")
    parser.add_argument("--schedules", nargs="+", choices=SCHEDULES, default=["1f1b"])
    parser.add_argument(
        "--micro-batches",
        nargs="+",
        type=positive,
        default=[4],
        help="in a step; if there are fewer than stages, only gpipe runs",
    )
    parser.add_argument("--num-layers", type=positive, default=8, help="blocks")
    parser.add_argument("--hidden-size", type=positive, default=128)
    parser.add_argument("--image-size", type=positive, default=16)
    parser.add_argument("--batch-size", type=positive, default=64, help="of all ranks together")
    parser.add_argument(
        "--micro-batch-size", type=positive, help="examples of a micro-batch; replaces --batch-size"
    )
    parser.add_argument("--lr", type=above_zero, default=0.05)
    parser.add_argument("--steps", type=positive, default=20)
    parser.add_argument("--seed", type=whole_number(0), default=1, help="of the weights")
    parser.add_argument(
        "--device-ms",
        type=float,
        default=0,
        help="simulate a device: ms for the forward pass of a micro-batch through a rank's blocks",
    )
    parser.add_argument(
        "--output", type=file_to_write, help="JSON file for the measurements of all ranks"
    )
    return parser.parse_args()


def main():
    args = parse_args()
    rendezvous()
    # Many ranks share a machine, so each has one thread, and none takes the core of another.
    torch.set_num_threads(1)
    runs = [
        (sizes, schedule, count)
        for sizes, schedule, count in product(args.splits, args.schedules, args.micro_batches)
        if schedule == "gpipe" or count >= sizes[2]  # 1F1B needs at least one micro-batch per stage
        if schedule == args.schedules[0] or sizes[2] > 1  # one stage: nothing to schedule
    ]
    for run in runs:
        if problem := refusal(args, int(os.environ["WORLD_SIZE"]), *run):
            sys.exit(problem if os.environ["RANK"] == "0" else 0)
    if not runs:
        sys.exit(f"--micro-batches: expected one for each stage, or more, got {args.micro_batches}")
    # Gloo cannot send GPU tensors from stage to stage, so without NCCL the ranks use the processor.
    chosen = group_device(share=False)
    device = chosen.device
    dist.init_process_group(chosen.backend, device_id=chosen.device if chosen.direct else None)
    if chosen.direct and dist.get_rank() == 0:
        print(NOT_COUNTED, file=sys.stderr)
    results = []
    for run in runs:
        mine = train(args, device, *run)
        ranks = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, mine)
        results.append(dict(zip(("split", "schedule", "micro_batches"), run, strict=True)))
        results[-1]["ranks"] = ranks
        if dist.get_rank() == 0:
            print(line(results[-1]), flush=True)
    if dist.get_rank() == 0 and args.output:
        args.output.write_text(json.dumps(results), encoding="utf-8")
    dist.destroy_process_group()


def refusal(args, world_size, sizes, schedule, micro_batches):
    """Return a sentence that says why these sizes are impossible; None if they are possible."""
    data, tensor, pipeline = sizes
    name, parts = "x".join(map(str, sizes)), pipeline * (2 if schedule == "interleaved" else 1)
    if math.prod(sizes) != world_size:
        return f"splits: expected a product of {world_size}, the number of ranks, got {name}"
    if args.num_layers % parts:
        return f"--num-layers: expected a multiple of the {parts} stages, got {args.num_layers}"
    if schedule == "interleaved" and micro_batches % max(1, micro_batches // pipeline):
        return (
            f"--micro-batches: expected a multiple of {pipeline} to interleave, got {micro_batches}"
        )
    if args.hidden_size % tensor:
        return f"--hidden-size: expected a multiple of tensor = {tensor}, got {args.hidden_size}"
    if not args.micro_batch_size and args.batch_size % (data * micro_batches):
        return (
            f"--batch-size: expected a multiple of data x micro-batches = {data * micro_batches}, "
            f"got {args.batch_size}"
        )
    return None


def finish(device):
    """Wait until a GPU has finished its work. On a CPU there is nothing to wait for."""
    if device.type == "cuda":
        torch.cuda.synchronize()


class TracedStage(PipelineStage):
    """A stage that records when it computed: (stage, kind, micro-batch, start, end), in seconds.

    With `device_seconds` it simulates a device that takes so long for each forward pass, and twice as long
    for each backward pass: it computes, and sleeps for the rest of the time. Ranks that sleep need no core,
    so the simulation also works with more ranks than cores.
    """

    events: list
    device_seconds = 0.0

    def forward_one_chunk(self, chunk, *arguments, **options):
        with self._timed("forward", chunk, self.device_seconds):
            return super().forward_one_chunk(chunk, *arguments, **options)

    def backward_one_chunk(self, chunk, *arguments, **options):
        with self._timed("backward", chunk, 2 * self.device_seconds):
            return super().backward_one_chunk(chunk, *arguments, **options)

    @contextmanager
    def _timed(self, kind, chunk, seconds):
        start = time.perf_counter()
        yield
        finish(self.device)
        time.sleep(max(0, start + seconds - time.perf_counter()))
        self.events.append((self.stage_index, kind, chunk, start, time.perf_counter()))


def build(args, device, mesh, schedule, micro_batches):
    """Return this rank's modules, its stages, and the schedule that runs them."""
    torch.manual_seed(args.seed)
    network = ResidualMLP(args.num_layers, args.hidden_size, args.image_size).to(device)
    first, ranks = mesh.get_local_rank("pipeline"), mesh["pipeline"].size()
    # Interleaved: two stages per rank, and the second is `ranks` stages after the first.
    count = 2 * ranks if schedule == "interleaved" else ranks
    modules = ModuleList(stage(network, index, count) for index in range(first, count, ranks))
    for module in modules:
        if mesh["tensor"].size() > 1:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            for block in (layer for layer in module if isinstance(layer, Block)):
                parallelize_module(block, mesh["tensor"], plan)
        if mesh["data"].size() > 1:
            fully_shard(module, mesh=mesh["data"])
    group = mesh.get_group("pipeline")
    stages = [
        TracedStage(module, index, count, device, group=group)
        for module, index in zip(modules, range(first, count, ranks), strict=True)
    ]
    kind = SCHEDULES[schedule]
    what = stages if schedule == "interleaved" else stages[0]
    return modules, stages, kind(what, micro_batches, loss_fn=F.cross_entropy)


def train(args, device, sizes, schedule, micro_batches):
    """Train as one of the ranks; return its measurements, see the end of this function."""
    # Ranks along the last axis have consecutive numbers, so they are usually on one server. The last axis is
    # `tensor`, because it sends most often. `pipeline` may cross servers.
    data, tensor, stage_count = sizes
    mesh = init_device_mesh(
        device.type, (stage_count, data, tensor), mesh_dim_names=("pipeline", "data", "tensor")
    )
    modules, stages, pipeline = build(args, device, mesh, schedule, micro_batches)
    optimizer = torch.optim.SGD(modules.parameters(), lr=args.lr, momentum=0.9)
    shard, shards = mesh.get_local_rank("data"), mesh["data"].size()
    global_batch = args.batch_size
    if args.micro_batch_size:
        global_batch = args.micro_batch_size * micro_batches * shards
    losses, seconds, sent = [], [], []

    def mine(number):
        """Return the inputs and labels of a step for this rank's stages: its shard along `data`."""
        images, labels = batch(number, global_batch, args.image_size)
        part = slice(shard * global_batch // shards, (shard + 1) * global_batch // shards)
        inputs = [images[part].to(device)] if stages[0].is_first else []
        return inputs, labels[part].to(device) if stages[-1].is_last else None

    def step(inputs, target):
        """Run all micro-batches forward and backward; return the loss on the last stage, else None."""
        found = []
        pipeline.step(*inputs, target=target, losses=found)
        return torch.stack(found).mean().item() if found else None

    for number in range(args.steps):
        inputs, target = mine(number)
        for each in stages:
            each.events = []
            # The first step has no simulated time, because the stages also exchange their shapes in it.
            each.device_seconds = args.device_ms / 1000 / len(stages) if number else 0.0
        dist.barrier()
        before, start = bytes_sent(), time.perf_counter()
        optimizer.zero_grad()
        losses.append(step(inputs, target))
        optimizer.step()
        finish(device)
        seconds.append(time.perf_counter() - start)
        dist.barrier()
        sent.append(bytes_sent() - before)
    events = sorted((event for each in stages for event in each.events), key=itemgetter(3))
    held = memory.held(modules, optimizer)
    inputs, target = mine(args.steps)
    with memory.peak(
        device
    ) as most:  # an additional step, which reuses the memory of the last gradients
        step(inputs, target)
    return {
        "at": [mesh.get_local_rank(axis) for axis in AXES],
        "losses": losses,  # of this rank's shard of the batch; None unless it has the last stage
        "memory": sum(held.values()),
        "peak": most.bytes,  # in a step, in addition to `memory`
        "sent": statistics.median(sent),
        "seconds": seconds,
        # Of the last step, in seconds since the barrier before it.
        "events": [(*what, begin - start, end - start) for *what, begin, end in events],
    }


def line(result):
    """Return the line that rank 0 prints: the largest value of any rank, and the loss of the whole batch."""
    ranks, name = result["ranks"], "x".join(map(str, result["split"]))
    slowest = [max(times) for times in zip(*(rank["seconds"] for rank in ranks), strict=True)]
    last = [rank["losses"][-1] for rank in ranks if rank["losses"][-1] is not None]
    return (
        f"{name}  {result['schedule']:11}  {result['micro_batches']:2} micro-batches  "
        f"loss {statistics.mean(last):.4f}  {max(rank['memory'] for rank in ranks) / 2**20:6.2f} MiB  "
        f"{max(rank['sent'] for rank in ranks) / 2**20:6.2f} MiB sent  "
        f"{1000 * statistics.median(slowest[3:] or slowest):7.1f} ms"
    )


if __name__ == "__main__":
    main()
