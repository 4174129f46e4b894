"""Train a network whose layers are split among the ranks, by hand and by two engines.

    python labs/tensor_parallel.py --modes serial
    mpirun -np 4 python labs/tensor_parallel.py --modes by-hand dtensor sequence grid axonn
    torchrun --nproc-per-node 4 labs/tensor_parallel.py --modes dtensor --hidden-size 1024
    srun -n 4 python labs/tensor_parallel.py --modes grid --columns 2

    by-hand    Megatron-LM: up split by its outputs, down by its inputs (Shoeybi et al. 2019)
    dtensor    the same, by torch.distributed.tensor.parallel
    sequence   like dtensor, and activations between the blocks split by examples (Korthikanti et al. 2022)
    grid       2-D: every matrix split by outputs and by inputs, over rows x columns of ranks
    axonn      the same by AxoNN (Singh et al. 2023); --depth splits the batch and the weights once more

Lab 13 builds these modes step by step. The script runs on CPUs (gloo) and, if each rank has a GPU of its own,
on GPUs (nccl, whose bytes are not counted). All ranks read the same batch. The ranks split the weights of one
whole network. With --compare, each rank also trains the whole network, for comparison.
"""

import argparse
import copy
import json
import os
import statistics
import sys
import time
import warnings
from collections import Counter
from contextlib import nullcontext

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F

from hvdlab.arguments import above_zero, file_to_write, positive, whole_number
from hvdlab.data import DataError, load_fashion_mnist
from hvdlab.system.tcp_bytes import NOT_COUNTED, bytes_sent
from hvdlab.torch.lab_networks import ResidualMLP
from hvdlab.torch.memory import held
from hvdlab.torch.model_parallel.axonn_on_cpu import axonn_on_cpu
from hvdlab.torch.model_parallel.tensor_parallel_layers import part, split_over_grid, whole
from hvdlab.torch.process_group import group_device, rendezvous

MODES = "serial", "by-hand", "dtensor", "sequence", "grid", "axonn"
KINDS = "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast"

# The first comes from AxoNN, which calls an old name, the second from a hook of CommDebugMode.
warnings.filterwarnings("ignore", message=".*reduce_scatter_tensor. is deprecated")
warnings.filterwarnings("ignore", message="Full backward hook is firing")


def parse_args():
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["by-hand"], metavar="MODE",
                        help=", ".join(MODES))  # fmt: skip
    parser.add_argument(
        "--columns", type=positive, default=2, help="columns of the grid; grid and axonn only"
    )
    parser.add_argument("--depth", type=positive, default=1, help="axonn only: the third dimension")
    parser.add_argument("--num-layers", type=positive, default=4, help="blocks")
    parser.add_argument("--hidden-size", type=positive, default=256)
    parser.add_argument(
        "--batch-size", type=positive, default=64, help="examples per step, of all ranks together"
    )
    parser.add_argument("--steps", type=positive, default=20)
    parser.add_argument("--lr", type=above_zero, default=0.05)
    parser.add_argument("--seed", type=whole_number(0), default=1)
    parser.add_argument("--compare", action="store_true", help="with training of the whole network")
    parser.add_argument(
        "--save", type=file_to_write, help="JSON file for the measurements, one dict per mode"
    )
    return parser.parse_args()


# --- engines ------------------------------------------------------------------------------------------


def split_with_dtensor(network, mesh, sequence):
    """Split with PyTorch's DTensor: a plan says how each module is split."""
    network, plan = copy.deepcopy(network), {}
    # x between the blocks: split by examples, or whole.
    between = Shard(0) if sequence else Replicate()
    for number in range(len(network.blocks)):
        plan[f"blocks.{number}.up"] = ColwiseParallel(input_layouts=between)
        plan[f"blocks.{number}.down"] = RowwiseParallel(output_layouts=between)
        if sequence:
            plan[f"blocks.{number}.norm"] = SequenceParallel(sequence_dim=0)
    if sequence:
        plan["stem"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
        plan["norm"] = SequenceParallel(sequence_dim=0)
        plan["head"] = ColwiseParallel(input_layouts=between, output_layouts=Replicate())
    return parallelize_module(network, mesh, plan)


def axonn_linear(linear, inner_group, outer_group):
    """Return AxoNN's layer with the weights of a plain one. `transpose` exchanges rows and columns."""
    from axonn import axonn
    from axonn.intra_layer import Linear

    turned = outer_group is not axonn.comm_handle.outer_intra_layer_parallel_group
    split = Linear(linear.in_features, linear.out_features, transpose=turned, expert_mode=True)
    split.load_state_dict(linear.state_dict())
    # AxoNN makes its weights in host memory; without a GPU they are a view of the weights of all of depth.
    split.weight.data = split.weight.data.clone()
    return split.to(linear.weight.device)


def split(network, mode, args, device):
    """Return this rank's part of the network, and the group that splits a batch (None: no split)."""
    ranks = dist.get_world_size()
    if mode == "serial":
        return copy.deepcopy(network), None
    if mode in ("dtensor", "sequence"):
        mesh = init_device_mesh(device.type, (ranks,))
        return split_with_dtensor(network, mesh, mode == "sequence"), None
    if mode == "axonn":
        from axonn import axonn

        here = int(os.environ["LOCAL_WORLD_SIZE"])
        axonn.init(
            G_intra_r=ranks // args.columns // args.depth,
            G_intra_c=args.columns,
            G_intra_d=args.depth,
            gpus_per_node=min(torch.cuda.device_count(), here) or here,  # a rank may see one GPU
        )
        made = axonn.comm_handle
        rows, columns = made.outer_intra_layer_parallel_group, made.inner_intra_layer_parallel_group
        network = split_over_grid(network, rows, columns, axonn_linear)
        return network, made.depth_intra_layer_parallel_group
    columns = args.columns if mode == "grid" else 1
    mesh = init_device_mesh(
        device.type, (ranks // columns, columns), mesh_dim_names=("rows", "columns")
    )
    return split_over_grid(network, mesh.get_group("rows"), mesh.get_group("columns")), None


def sum_over_depth(network, depth):
    """Average the gradients of the weights that AxoNN's third dimension does not split.

    Each rank of that dimension has a shard of the examples. AxoNN's `sync_gradients` would do this, but in
    0.2.0 and expert mode it leaves out the biases of its layers (it looks for `needs_gradient_sync`, and they
    have `needs_depth_parallel_gradient_sync`).
    """
    for parameter in network.parameters():
        if getattr(parameter, "needs_depth_parallel_gradient_sync", True):
            dist.all_reduce(parameter.grad, group=depth)
        parameter.grad /= dist.get_world_size(depth)


def train(network, batches, args, depth=None):
    """Train on the batches; return the loss, the bytes sent and the seconds of each step."""
    # foreach=False, because PyTorch refuses a list of plain tensors and DTensors.
    optimizer = torch.optim.SGD(network.parameters(), args.lr, momentum=0.9, foreach=False)
    losses, sent, seconds = [], [], []
    for images, labels in batches:
        began, before = time.perf_counter(), bytes_sent()
        images, labels = part(images, 0, depth), part(labels, 0, depth)
        loss = F.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        if depth is not None:
            sum_over_depth(network, depth)
        optimizer.step()
        losses.append(loss.item())
        sent.append(bytes_sent() - before)
        seconds.append(time.perf_counter() - began)
    if depth is not None:  # the mean over the shards of the batch
        losses = torch.tensor(losses, device=images.device)
        dist.all_reduce(losses, group=depth)
        losses = (losses / dist.get_world_size(depth)).tolist()
    return {
        "losses": losses,
        "memory_bytes": sum(held(network, optimizer).values()),
        "sent_bytes": statistics.median(sent),
        "step_seconds": statistics.median(seconds[3:]),
    }


def largest_difference(one, other):
    return max((one[name] - other[name]).abs().max().item() for name in one)


def collectives(network, batch, depth):
    """Return the collectives of a forward and a backward pass as text, such as "8 all-reduce"."""
    images, labels = (part(tensor, 0, depth) for tensor in batch)
    with CommDebugMode() as counted:
        F.cross_entropy(network(images), labels).backward()
    found = Counter()
    for operation, count in counted.get_comm_counts().items():
        name = str(operation).split(".")[-1].replace("_", "")  # allreduce_ or all_reduce
        kind = next((kind for kind in KINDS if kind.replace("-", "") in name), name)
        found[kind] += count
    return ", ".join(f"{count} {kind}" for kind, count in sorted(found.items()))


def main():
    args = parse_args()
    rendezvous()
    ranks = int(os.environ["WORLD_SIZE"])
    if problem := refusal(args, ranks):
        sys.exit(problem if os.environ["RANK"] == "0" else 0)
    try:
        data = load_fashion_mnist()
    except DataError as error:
        sys.exit(f"tensor_parallel.py: {error}")
    # Gloo cannot gather or scatter GPU tensors, so without NCCL the ranks use the processor.
    chosen = group_device(share=False)
    device = chosen.device
    dist.init_process_group(chosen.backend, device_id=chosen.device if chosen.direct else None)
    if chosen.direct and dist.get_rank() == 0:
        print(NOT_COUNTED, file=sys.stderr)
    first = dist.get_rank() == 0

    # Different on each rank, as without a common seed.
    torch.manual_seed(args.seed + dist.get_rank())
    serial = ResidualMLP(args.num_layers, args.hidden_size, image_size=28).to(device)
    for parameter in serial.parameters():
        dist.broadcast(parameter.data, src=0)
    batches = list(read_batches(data, args, device))
    alone = split(serial, "serial", args, device)[0]
    expected = train(alone, batches, args) if args.compare else None

    results = []
    for mode in args.modes:
        with axonn_on_cpu() if mode == "axonn" else nullcontext():
            network, depth = split(serial, mode, args, device)
            found = {"mode": mode, "ranks": ranks, **train(network, batches, args, depth)}
            weights = whole(network)
            found["collectives"] = collectives(network, batches[0], depth)
        if args.compare:
            pairs = zip(found["losses"], expected["losses"], strict=True)
            found["loss_difference"] = max(abs(one - other) for one, other in pairs)
            found["weight_difference"] = largest_difference(weights, dict(alone.named_parameters()))
        results.append(found)
        if first:
            print(
                f"{mode:9} {ranks} ranks  loss {found['losses'][0]:.4f} -> {found['losses'][-1]:.4f}"
                f"  {found['memory_bytes'] / 1e6:6.2f} MB held  {found['sent_bytes'] / 1e3:7.1f} kB sent"
                f" and {1e3 * found['step_seconds']:.1f} ms a step  "
                + (f"serial - this: {found['loss_difference']:.1e}" if args.compare else ""),
                flush=True,
            )
    if first and args.save:
        args.save.write_text(json.dumps(results), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def refusal(args, ranks):
    """Return a sentence that says why this split or training is impossible; None if it is possible."""
    most = 60_000 // args.batch_size
    if most < 4:
        return f"--batch-size: expected at most {60_000 // 4}, for 4 steps in a pass, got {args.batch_size}."
    if not 4 <= args.steps <= most:
        return f"--steps: expected 4 to {most}, one pass over the images, got {args.steps}."
    for mode in args.modes:
        grid = {"grid": args.columns, "axonn": args.columns * args.depth}.get(mode, 1)
        parts = {"sequence": ranks, "axonn": args.depth}.get(mode, 1)  # of the batch
        if mode == "serial" and ranks > 1:
            return f"--modes: serial is for one rank, and {ranks} were started."
        if ranks % grid:
            return (
                f"--modes {mode}: expected a multiple of {grid} ranks (--columns, and --depth with axonn), "
                f"and {ranks} were started."
            )
        if args.hidden_size % ranks:
            return f"--hidden-size: expected a multiple of {ranks} ranks, got {args.hidden_size}."
        if args.batch_size % parts:
            return (
                f"--batch-size: expected a multiple of {parts} with {mode}, got {args.batch_size}."
            )
    return None


def read_batches(data, args, device):
    """Yield the first batches of Fashion-MNIST. Unlike in data-parallel training, all ranks read the same."""
    order = np.random.default_rng(args.seed).permutation(len(data.train_labels))
    for chosen in np.split(order[: args.steps * args.batch_size], args.steps):
        images = torch.from_numpy(data.train_images[chosen]).to(device) / 255
        labels = torch.from_numpy(data.train_labels[chosen]).long().to(device)
        yield images.permute(0, 3, 1, 2), labels


if __name__ == "__main__":
    main()
