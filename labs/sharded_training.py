"""Train one network with one of twelve modes, and report the memory, the bytes sent and the time of a rank.

    python labs/sharded_training.py serial
    mpirun -np 2 python labs/sharded_training.py ddp
    torchrun --nproc-per-node 2 labs/sharded_training.py fsdp3
    srun -n 8 python labs/sharded_training.py deepspeed3     (GPUs: nothing else to change)

All modes take the same steps: the same weights at the start, the same global batch, Adam in float32.

    serial                  one process, the whole batch
    hand                    all_reduce of each gradient, written out
    ddp                     DistributedDataParallel
    horovod                 Horovod's DistributedOptimizer (only under mpirun)
    zero1                   DDP and ZeroRedundancyOptimizer: optimizer state sharded
    fsdp2, fsdp3            fully_shard: whole weights kept from forward to backward, or not
    deepspeed1, 2, 3        DeepSpeed's ZeRO stages
    fsdp3-offload, deepspeed2-offload   shards of a GPU's tensors in CPU memory. Without a GPU,
                            fsdp3-offload is refused; deepspeed2-offload uses the CPU

The report is one line of JSON on rank 0:

    losses         mean over the global batch, per step
    memory_bytes   weights, gradients and optimizer state between backward and step; the largest of the ranks
    sent_bytes     per step over TCP: Gloo's, not NCCL's (see hvdlab.system.tcp_bytes); mean of the ranks
    peak_bytes     most bytes allocated at once in a step, beyond those held before; the largest of the ranks
    step_seconds   median after three steps; the largest of the ranks
"""

import argparse
import gc
import json
import os
import statistics
import sys
import time
import warnings

import torch
import torch.distributed as dist
from torch.nn import functional as F

from hvdlab.arguments import above_zero, positive, whole_number
from hvdlab.data import Batches, DataError, load_fashion_mnist
from hvdlab.system.tcp_bytes import NOT_COUNTED, bytes_sent
from hvdlab.torch.device import ThroughHost
from hvdlab.torch.lab_networks import ResidualMLP
from hvdlab.torch.memory import held, peak
from hvdlab.torch.process_group import group_device, rendezvous

# Adam divides a gradient by its own size. With the usual 1e-8, a sum in place of the mean, a common mistake,
# would give nearly the same losses. With this value the losses differ.
EPSILON = 1e-4
WARM_UP = 3  # steps that are not timed: connections are made, optimizer state appears


def parse_args():
    parser = argparse.ArgumentParser(
        formatter_class=argparse.ArgumentDefaultsHelpFormatter, description=__doc__.split("\n")[0]
    )
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--global-batch", type=positive, default=64, help="images per step, of all ranks together"
    )
    parser.add_argument("--num-layers", type=positive, default=4)
    parser.add_argument("--hidden-size", type=positive, default=256)
    parser.add_argument("--lr", type=above_zero, default=1e-3)
    parser.add_argument("--seed", type=whole_number(0), default=1)
    args = parser.parse_args()
    if args.steps < WARM_UP + 2:
        parser.error(
            f"--steps: expected at least {WARM_UP + 2}, because {WARM_UP} warm up and the last is not "
            f"timed, got {args.steps}"
        )
    return args


def main():
    args = parse_args()
    try:
        data = load_fashion_mnist()
    except DataError as error:
        sys.exit(f"sharded_training.py: {error}")
    rendezvous()
    # Gloo cannot gather or scatter GPU tensors, so without NCCL the ranks use the processor.
    chosen = group_device(share=False)
    device, cuda = chosen.device, chosen.device.type == "cuda"
    dist.init_process_group(chosen.backend, device_id=chosen.device if chosen.direct else None)
    if chosen.direct and dist.get_rank() == 0:
        print(NOT_COUNTED, file=sys.stderr)
    rank, size = dist.get_rank(), dist.get_world_size()
    needed, there = args.global_batch * (args.steps + 1), len(data.train_labels)
    refused = ""
    if args.mode == "serial" and size > 1:
        refused = f"serial: expected 1 rank, got {size}"
    elif args.mode == "fsdp3-offload" and not cuda:
        refused = (
            "fsdp3-offload: expected a GPU for each rank, because it moves data out of GPU memory"
        )
    elif args.global_batch % size:
        refused = (
            f"--global-batch: expected a multiple of the {size} ranks, got {args.global_batch}"
        )
    elif needed > there:
        refused = f"--steps, --global-batch: {needed} images are needed, and {there} are there"
    if refused:
        dist.destroy_process_group()
        # Launchers end all ranks as soon as one rank ends with an error, so only rank 0 does.
        sys.exit(f"sharded_training.py: {refused}" if rank == 0 else 0)

    batches = Batches(
        data.train_images[:needed], data.train_labels[:needed], args.global_batch // size,
        rank=rank, size=size, seed=args.seed,
    )  # fmt: skip
    # Each rank starts with different weights, so a missing broadcast would show in the losses.
    torch.manual_seed(args.seed + rank)
    model = ResidualMLP(args.num_layers, args.hidden_size, image_size=28).to(device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    network, backward, optimizer = MODES[args.mode](model, args)

    def compute(step):
        """Do the forward and the backward pass; return the mean loss of this rank's images."""
        images, labels = batches.get(0, step)
        images = torch.tensor(images, device=device).permute(0, 3, 1, 2) / 255
        loss = F.cross_entropy(network(images), torch.from_numpy(labels).to(device))
        backward(loss)
        return loss.detach()

    losses, seconds, sent = [], [], []
    for step in range(args.steps):
        wait(device)
        before, began = bytes_sent(), time.perf_counter()
        loss = compute(step)
        if step == args.steps - 1:  # the count takes time, so the median leaves this step out
            memory = held_by(args.mode, model, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        dist.barrier()  # before the barrier, bytes of this rank may still wait in the kernel
        sent.append(bytes_sent() - before)
        losses.append(mean(loss, device))
    with peak(device) as most:  # an additional step, because the profiler slows it down
        compute(args.steps)
        optimizer.step()
        optimizer.zero_grad()

    report = {
        "mode": args.mode,
        "ranks": size,
        "parameters": parameters,
        "losses": losses,
        "memory_bytes": largest(memory, device),
        "sent_bytes": mean(statistics.mean(sent[WARM_UP:]), device),
        "peak_bytes": largest(most.bytes, device),
        "step_seconds": largest(statistics.median(seconds[WARM_UP:-1]), device),
    }
    if rank == 0:
        print(json.dumps(report), flush=True)


def wait(device):
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)


def mean(value, device):
    """Return the mean of the ranks' values. Every rank has equally many images."""
    total = torch.as_tensor(value, dtype=torch.float64, device=device).clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def largest(value, device):
    most = torch.tensor(float(value), dtype=torch.float64, device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return most.item()


# --- the modes: (model, args) -> (network to call, backward function, optimizer) --------------------


def adam(model, args):
    return torch.optim.Adam(model.parameters(), args.lr, eps=EPSILON)


def serial(model, args):
    return model, torch.Tensor.backward, adam(model, args)


def broadcast(model):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)


def by_hand(model, args):
    broadcast(model)

    def backward(loss):
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    return model, backward, adam(model, args)


def ddp(model, args):
    # Gradients are views of the buckets. Otherwise gradients would need twice the memory.
    network = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    return network, torch.Tensor.backward, adam(model, args)


def horovod(model, args):
    import horovod.torch as hvd

    hvd.init()
    if (
        hvd.size() != dist.get_world_size()
    ):  # started by torchrun, or Horovod was built for another MPI
        refused = (
            f"horovod: expected ranks that mpirun started, but Horovod knows of {hvd.size()} rank"
        )
        dist.destroy_process_group()
        sys.exit(f"sharded_training.py: {refused}" if os.environ["RANK"] == "0" else 0)
    # A Horovod without NCCL sends through host memory, although PyTorch always has its own NCCL.
    weights = {name: value.cpu() for name, value in model.state_dict().items()}
    hvd.broadcast_parameters(weights, root_rank=0)
    model.load_state_dict(weights)
    host = next(model.parameters()).is_cuda and not hvd.nccl_built()
    compression = ThroughHost if host else hvd.Compression.none
    optimizer = adam(model, args)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression)
    return model, torch.Tensor.backward, optimizer


def zero1(model, args):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    network, backward, _ = ddp(model, args)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, lr=args.lr, eps=EPSILON
    )
    return network, backward, optimizer


def fsdp(model, args, *, stage, offload=False):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    broadcast(model)  # fully_shard splits each rank's own weights and does not compare them
    device = next(model.parameters()).device.type
    how = {
        "mesh": init_device_mesh(device, (dist.get_world_size(),)),
        "reshard_after_forward": stage == 3,
        "offload_policy": CPUOffloadPolicy() if offload else OffloadPolicy(),
    }
    for block in model.blocks:  # each block is gathered, used and freed on its own
        fully_shard(block, **how)
    fully_shard(model, **how)  # the rest: stem, last norm, head
    # After fully_shard, because an optimizer made before it would update weights that are no longer used.
    return model, torch.Tensor.backward, adam(model, args)


def deepspeed(model, args, *, stage, offload=False):
    # By default DeepSpeed uses any GPU that it sees.
    if next(model.parameters()).device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    # DeepSpeed's all-reduce through shared memory is for inference only, and needs a C++ compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    zero = {
        "stage": stage,
        "reduce_bucket_size": 2**18,  # elements, so a buffer of 1 MB; the default is 2 GB
        "stage3_param_persistence_threshold": 0,  # by default small tensors are not sharded
        "stage3_max_live_parameters": 0,  # by default a small network is gathered once a step,
        "stage3_max_reuse_distance": 0,  # and kept from forward to backward
    }
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    config = {
        "train_micro_batch_size_per_gpu": args.global_batch // dist.get_world_size(),
        "gradient_clipping": 0.0,  # by default it clips, at a norm of 1
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # its own Adam asks for a compiler
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=adam(model, args), config=config)
    return engine, engine.backward, engine


MODES = {
    "serial": serial,
    "hand": by_hand,
    "ddp": ddp,
    "horovod": horovod,
    "zero1": zero1,
    "fsdp2": lambda model, args: fsdp(model, args, stage=2),
    "fsdp3": lambda model, args: fsdp(model, args, stage=3),
    "fsdp3-offload": lambda model, args: fsdp(model, args, stage=3, offload=True),
    "deepspeed1": lambda model, args: deepspeed(model, args, stage=1),
    "deepspeed2": lambda model, args: deepspeed(model, args, stage=2),
    "deepspeed3": lambda model, args: deepspeed(model, args, stage=3),
    "deepspeed2-offload": lambda model, args: deepspeed(model, args, stage=2, offload=True),
}


def held_by(mode, model, optimizer):
    """Return the bytes of weights, gradients and optimizer state on this rank."""
    if not mode.startswith("deepspeed"):
        optimizer = getattr(optimizer, "optim", optimizer)  # ZeroRedundancyOptimizer's own Adam
        return sum(held(model, optimizer).values())
    # DeepSpeed keeps them in its own buffers, so count every tensor in memory.
    gc.collect()
    tensors = [found for found in gc.get_objects() if isinstance(found, torch.Tensor)]
    tensors += [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=FutureWarning)  # DeepSpeed calls torch by old names
    main()
    dist.destroy_process_group()
