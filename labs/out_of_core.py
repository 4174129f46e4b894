"""Measure training with activations or optimizer state outside the memory of the device.

    python labs/out_of_core.py --activations file
    python labs/out_of_core.py --activations recompute
    python labs/out_of_core.py --state file

A single process trains on random images. The activations, which the forward pass saves for the backward pass:

    memory      stay where they are
    recompute   are computed again, block by block (activation checkpointing)
    file        are written to files and read back, by autograd's hooks for saved tensors
    cpu         are copied to CPU memory and back, by PyTorch's own hooks (useful only with a GPU)

The state of Adam is in memory, or in files that are mapped into memory (on CPUs only).

The report is one line of JSON:

    losses            of each step
    peak_bytes        the most that a step allocates at once, beyond the bytes held before it
    seconds           of a step, median
    file_bytes        size of the state's files
    anonymous_bytes   growth of the process's memory without files (Linux: RssAnon) since the weights exist
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hvdlab.arguments import positive, whole_number
from hvdlab.torch.lab_networks import ResidualMLP
from hvdlab.torch.memory import peak


def parse_args():
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--activations", choices=("memory", "recompute", "file", "cpu"), default="memory"
    )
    parser.add_argument("--state", choices=("memory", "file"), default="memory")
    parser.add_argument("--num-layers", type=positive, default=8)
    parser.add_argument("--hidden-size", type=positive, default=256)
    parser.add_argument("--batch-size", type=positive, default=1024)
    parser.add_argument("--steps", type=positive, default=5)
    parser.add_argument("--seed", type=whole_number(0), default=1)
    args = parser.parse_args()
    if args.state == "file" and torch.cuda.is_available():
        parser.error(
            "--state file: a file is mapped into CPU memory; hide the GPUs: CUDA_VISIBLE_DEVICES=-1"
        )
    return args


def main():
    args = parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(args.seed)
    model = ResidualMLP(args.num_layers, args.hidden_size, image_size=28).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    images = torch.randn(args.batch_size, 1, 28, 28, device=device)
    labels = torch.randint(10, (args.batch_size,), device=device)
    if args.activations == "recompute":
        for block in model.blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)

    for (
        parameter
    ) in model.parameters():  # made before the measurement, so that gradients do not count
        parameter.grad = torch.zeros_like(parameter)
    before = anonymous()
    with tempfile.TemporaryDirectory() as folder:
        make_state(optimizer, Path(folder) if args.state == "file" else None)

        def step():
            optimizer.zero_grad(set_to_none=False)
            with saved(args.activations, Path(folder), model):
                loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            return loss.item()  # waits for a GPU, because each step is timed

        losses, seconds = [], []
        for _ in range(args.steps):
            began = time.perf_counter()
            losses.append(step())
            seconds.append(time.perf_counter() - began)
        grown = anonymous() - before
        kept = sum(path.stat().st_size for path in Path(folder).iterdir())
        with peak(device) as most:
            step()
    report = {
        "losses": losses,
        "peak_bytes": most.bytes,
        "seconds": statistics.median(seconds),
        "file_bytes": kept,
        "anonymous_bytes": grown,
    }
    print(json.dumps(report), flush=True)


def saved(activations, folder, model):
    """Return a context for a forward pass, which decides where autograd keeps the saved tensors."""
    if activations == "file":
        return to_file(folder, model)
    if activations == "cpu":
        return torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available())
    return nullcontext()


def to_file(folder, model):
    """Return hooks that write each saved activation to a file, and read it for the backward pass."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    numbers = itertools.count()

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() in weights:
            return tensor  # weights are saved too, and stay where they are
        path = folder / f"activation-{next(numbers)}"
        tensor.detach().cpu().contiguous().numpy().tofile(path)
        return path, tensor.shape, tensor.dtype, tensor.device

    def unpack(packed):
        if isinstance(packed, torch.Tensor):
            return packed
        path, shape, dtype, device = packed
        tensor = torch.empty(shape, dtype=dtype)
        with open(path, "rb", buffering=0) as file:
            file.readinto(memoryview(tensor.view(-1).numpy()))
        path.unlink()
        return tensor.to(device)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def make_state(optimizer, folder):
    """Set Adam's two moments to zero before the first step: in memory, or each in a file of `folder`."""
    parameters = optimizer.param_groups[0]["params"]
    for number, parameter in enumerate(parameters):
        state = {"step": torch.tensor(0.0)}
        for name in ("exp_avg", "exp_avg_sq"):
            if folder is None:
                state[name] = torch.zeros_like(parameter)
            else:  # a new file is all zeros, and shared=True maps the file into memory
                path = str(folder / f"{name}-{number}")
                flat = torch.from_file(path, shared=True, size=parameter.numel())
                state[name] = flat.view_as(parameter)
        optimizer.state[parameter] = state


def anonymous():
    """Return the bytes of this process's anonymous memory (RssAnon); 0 if the kernel does not report it."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    main()
