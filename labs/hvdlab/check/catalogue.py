"""The mistakes that `hvdlab check` can name: title, and how to mend each."""

from typing import NamedTuple


class Finding(NamedTuple):
    """One mistake: where it is, what was seen of it, and how to mend it."""

    id: str
    title: str
    line: int | None
    seen: str
    mend: str


# id: (title, how to mend it)
CATALOGUE = {
    "init-missing": (
        "Horovod is never initialised",
        "call hvd.init() right after the imports, before anything asks for hvd.rank() or hvd.size().",
    ),
    "device-not-pinned": (
        "No GPU of its own for each rank",
        "after hvd.init(): mine = rank_device(hvd), from hvdlab.torch.device or hvdlab.keras.device, then "
        "model.to(mine.device). Where each rank has a GPU, torch.cuda.set_device(hvd.local_rank()) or "
        "tf.config.set_visible_devices(gpus[hvd.local_rank()], 'GPU') is enough.",
    ),
    "gpu-by-remainder": (
        "The GPU's number is a remainder, so ranks may share a GPU",
        "mine = rank_device(hvd), from hvdlab.torch.device or hvdlab.keras.device. Ranks that share a GPU "
        "then exchange gradients through host memory: give DistributedOptimizer "
        "compression=mine.compression, or in Keras device_dense=mine.device_dense.",
    ),
    "cuda-without-nccl": (
        "A GPU tensor is given to a Horovod that was built without CUDA",
        "mine = rank_device(hvd), from hvdlab.torch.device. Broadcast before model.to(mine.device), give "
        "DistributedOptimizer compression=mine.compression, and all-reduce metrics as CPU tensors. Or build "
        "Horovod with NCCL: `hvdlab doctor` names the command.",
    ),
    "tensor-not-accepted": (
        "Horovod does not accept the memory layout or the type of a tensor",
        "mine = rank_device(hvd), from hvdlab.torch.device, and DistributedOptimizer(..., "
        "compression=mine.compression): it sends such gradients as contiguous float32. Broadcast the weights "
        "before model.to(memory_format=torch.channels_last) or model.bfloat16().",
    ),
    "optimizer-not-wrapped": (
        "The optimizer is not wrapped",
        "optimizer = hvd.DistributedOptimizer(optimizer, ...), and train with what it returns.",
    ),
    "wrapped-too-late": (
        "The optimizer is wrapped after something else took the plain one",
        "wrap the optimizer right after it is made, before compile, trainer or scheduler get it.",
    ),
    "gradients-not-averaged": (
        "The wrapped optimizer never averages",
        "with Keras 3 write `import hvdlab.keras.horovod as hvd`; Horovod's own module works with "
        "legacy Keras only (TF_USE_LEGACY_KERAS=1).",
    ),
    "no-broadcast": (
        "The ranks begin with different weights",
        "before the first step, on all ranks: hvd.broadcast_parameters(model.state_dict(), "
        "root_rank=0), or in Keras the callback hvd.callbacks.BroadcastGlobalVariablesCallback(0).",
    ),
    "replicas-diverged": (
        "The replicas part",
        "look for what only one rank does to its weights or its rate between backward and step: "
        "noise of its own, a rate of its own, weights that the optimizer does not hold.",
    ),
    "identical-batches": (
        "Several ranks read the same batches",
        "give each rank its part: DistributedSampler(data, num_replicas=hvd.size(), "
        "rank=hvd.rank()), or dataset.shard(hvd.size(), hvd.rank()).",
    ),
    "unequal-steps": (
        "The ranks make unequal numbers of steps",
        "deal equally many batches to each rank (DistributedSampler does, or steps = the smallest "
        "number of all ranks), or call hvd.join() when a rank has run out.",
    ),
    "collective-on-some-ranks": (
        "Only some ranks call a collective",
        "let every rank call it, and only then ask for the rank: result = hvd.allreduce(...); "
        "if hvd.rank() == 0: print(result).",
    ),
    "own-stop": (
        "Each rank decides to stop by a number of its own",
        "average the number first: loss = hvd.allreduce(loss), or in Keras put "
        "hvd.callbacks.MetricAverageCallback() before the callback that decides.",
    ),
    "rate-unscaled": (
        "The learning rate does not grow with the ranks",
        "N ranks read N batches a step: multiply the one-process rate by hvd.size(), with a warmup.",
    ),
    "rate-scaled-twice": (
        "The learning rate is scaled twice",
        "multiply by hvd.size() once; op=hvd.Sum is a factor of hvd.size() too.",
    ),
    "no-warmup": (
        "A large learning rate from the first step",
        "let the rate rise over the first epochs: hvd.callbacks.LearningRateWarmupCallback, or a "
        "LambdaLR that grows from 1 / hvd.size() to 1.",
    ),
    "all-write-one-file": (
        "All ranks write the same file",
        "save on one rank: if hvd.rank() == 0: torch.save(...), or add ModelCheckpoint to the "
        "callbacks of rank 0 only.",
    ),
    "batch-norm-drift": (
        "The batch norm statistics of the ranks drift apart",
        "shuffle before you deal the data to the ranks; or use hvd.SyncBatchNorm, or average the "
        "running statistics over the ranks before you evaluate or save.",
    ),
    "download-race": (
        "All ranks download the same file at once",
        "let one rank of each machine download it while the others wait: a file lock around it, or "
        "if hvd.local_rank() == 0: ..., then hvd.barrier().",
    ),
}

# A finding that explains others.
EXPLAINS = {
    "optimizer-not-wrapped": {
        "replicas-diverged",
        "rate-unscaled",
        "rate-scaled-twice",
        "no-warmup",
    },
    "wrapped-too-late": {"replicas-diverged", "rate-unscaled", "rate-scaled-twice", "no-warmup"},
    "gradients-not-averaged": {"replicas-diverged"},
    "no-broadcast": {"replicas-diverged"},
    "own-stop": {"unequal-steps", "collective-on-some-ranks", "replicas-diverged"},
    "unequal-steps": {"collective-on-some-ranks", "replicas-diverged"},
    "collective-on-some-ranks": {"replicas-diverged", "no-broadcast"},
    "rate-scaled-twice": {"no-warmup"},
}


def finding(id: str, line: int | None, seen: str) -> Finding:
    title, mend = CATALOGUE[id]
    return Finding(id, title, line, seen, mend)
