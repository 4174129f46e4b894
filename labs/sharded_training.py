"""Train one network with one of twelve modes, and report what a rank held, sent and waited for.

    python labs/sharded_training.py serial
    mpirun -np 2 python labs/sharded_training.py ddp
    torchrun --nproc-per-node 2 labs/sharded_training.py fsdp3
    srun -n 8 python labs/sharded_training.py deepspeed3     (GPUs: nothing else to change)

All ways take the same steps: the same weights at the start, the same global batch, Adam in float32.

    serial                  one process, the whole batch
    hand                    all_reduce of each gradient, written out
    ddp                     DistributedDataParallel
    horovod                 Horovod's DistributedOptimizer (only under mpirun)
    zero1                   DDP and ZeroRedundancyOptimizer: optimizer state sharded
    fsdp2, fsdp3            fully_shard: whole weights kept from forward to backward, or not
    deepspeed1, 2, 3        DeepSpeed's ZeRO stages
    fsdp3-offload, deepspeed2-offload   shards in CPU memory beside a GPU. Neither has run on a GPU yet;
                            without one the first is refused, and DeepSpeed takes the same steps

The report is one line of JSON on rank 0: losses (mean over the global batch, each step), and of the
ranks the most memory_bytes (weights, gradients and optimizer state between backward and step), the
mean sent_bytes a step (over TCP: Gloo's, not NCCL's, see hvdlab.system.tcp_bytes), the largest peak_bytes
(most allocated at once in a step, beyond what was held before it) and step_seconds (median after three
steps).
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

# Adam divides a gradient by its own size: with the usual 1e-8 a sum in place of the mean, a common
# mistake, would give nearly the same losses. With this it shows.
EPSILON = 1e-4
WARM_UP = 3  # steps that are not timed: connections are made, optimizer state appears


def parse_args():
    parser = argparse.ArgumentParser(
        formatter_class=argparse.ArgumentDefaultsHelpFormatter, description=__doc__.split("\n")[0]
    )
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--global-batch", type=positive, default=64, help="images a step, of all ranks"
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
    # Gloo cannot gather or scatter what is on GPUs: without NCCL the ranks use the processor.
    chosen = group_device(share=False)
    device, cuda = chosen.device, chosen.device.type == "cuda"
    dist.init_process_group(chosen.backend)
    if chosen.direct and dist.get_rank() == 0:
        print(NOT_COUNTED, file=sys.stderr)
    rank, size = dist.get_rank(), dist.get_world_size()
    needed, there = args.global_batch * (args.steps + 1), len(data.train_labels)
    refused = ""
    if args.mode == "serial" and size > 1:
        refused = f"serial: expected 1 rank, got {size}"
    elif args.mode == "fsdp3-offload" and not cuda:
        refused = (
            "fsdp3-offload: expected a GPU of its own for each rank, whose memory there is to save"
        )
    elif args.global_batch % size:
        refused = (
            f"--global-batch: expected a multiple of the {size} ranks, got {args.global_batch}"
        )
    elif needed > there:
        refused = f"--steps, --global-batch: {needed} images are needed, and {there} are there"
    if refused:
        dist.destroy_process_group()
        # Launchers end all ranks as soon as one ends with an error: that is to be the one that says why.
        sys.exit(f"sharded_training.py: {refused}" if rank == 0 else 0)

    batches = Batches(
        data.train_images[:needed], data.train_labels[:needed], args.global_batch // size,
        rank=rank, size=size, seed=args.seed,
    )  # fmt: skip
    # Each rank starts elsewhere: a missing broadcast would show.
    torch.manual_seed(args.seed + rank)
    model = ResidualMLP(args.num_layers, args.hidden_size, image_size=28).to(device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    network, backward, optimizer = MODES[args.mode](model, args)

    def compute(step):
        """Forward and backward; the mean loss of this rank's images."""
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
        if step == args.steps - 1:  # which takes time: this step is not timed
            memory = held_by(args.mode, model, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        dist.barrier()  # until then some of what this rank has sent may still wait in the kernel
        sent.append(bytes_sent() - before)
        losses.append(mean(loss, device))
    with peak(device) as most:  # a step of its own: a profile makes it slow
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
    dist.destroy_process_group()


def wait(device):
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)


def mean(value, device):
    """Of the ranks' values, which all speak for equally many images."""
    total = torch.as_tensor(value, dtype=torch.float64, device=device).clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def largest(value, device):
    most = torch.tensor(float(value), dtype=torch.float64, device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return most.item()


# --- the ways: (model, args) -> what is called, how a backward pass is made, and what steps ---------


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
    # The gradients live in the buckets: without the view both exist, and gradients count twice.
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
    # Through host memory where Horovod was built without NCCL: PyTorch always brings its own.
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

    broadcast(model)  # fully_shard cuts what is there, and nobody compares the pieces
    device = next(model.parameters()).device.type
    how = {
        "mesh": init_device_mesh(device, (dist.get_world_size(),)),
        "reshard_after_forward": stage == 3,
        "offload_policy": CPUOffloadPolicy() if offload else OffloadPolicy(),
    }
    for block in model.blocks:  # a block is gathered, used and freed at once
        fully_shard(block, **how)
    fully_shard(model, **how)  # the rest: stem, last norm, head
    # After the cut: an optimizer that was made before it would update weights that nobody uses.
    return model, torch.Tensor.backward, adam(model, args)


def deepspeed(model, args, *, stage, offload=False):
    if next(model.parameters()).device.type == "cpu":  # by default it takes any GPU that it sees
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    # An all-reduce through shared memory, for inference alone, that would ask for a C++ compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    zero = {
        "stage": stage,
        "reduce_bucket_size": 2**18,  # numbers: a buffer of 1 MB; by default of 2 GB
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
    """Bytes of weights, gradients and optimizer state on this rank."""
    if not mode.startswith("deepspeed"):
        optimizer = getattr(optimizer, "optim", optimizer)  # ZeroRedundancyOptimizer's own Adam
        return sum(held(model, optimizer).values())
    # DeepSpeed keeps them in buffers of its own: count every tensor that is alive.
    gc.collect()
    tensors = [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]
    tensors += [one.grad for one in tensors if one.is_leaf and one.grad is not None]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage() for one in tensors}
    return sum(storage.nbytes() for storage in storages.values())


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=FutureWarning)  # DeepSpeed calls torch by old names
    main()
