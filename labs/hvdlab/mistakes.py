"""The catalogue of distributed mistakes: the name of each mistake, and how to fix it.

`hvdlab check` finds mistakes in a run, and `hvdlab.hints` three of them in the source without a run. Both
create their findings with `finding`, so that a learner reads the same advice in both places.
"""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Mistake:
    """A distributed mistake.

    Attributes:
        id: its name in reports, in the file of `--json`, and in labs/faults/faults.toml.
        title: what is wrong, in a few words.
        fix: what to do about it: whole sentences, about PyTorch where `fix_in_keras` is set.
        fix_in_keras: what to do about it in Keras. Default "": `fix` is right for both frameworks.
        fix_with_tape: what to do about it in a training loop with tf.GradientTape. Default "": as in Keras.
        fix_in_ddp: what to do about it in a script of torch.distributed. Default "": `fix`.
        explains: ids of the mistakes that this mistake causes, so that a report leaves them out.
        found_by_check: whether `hvdlab check` can find it. Default True; `hvdlab.hints` finds the others.
        refuted_by: ids of the grader's checks: if one of them passes, the script does not have the mistake.
    """

    id: str
    title: str
    fix: str
    fix_in_keras: str = ""
    fix_with_tape: str = ""
    fix_in_ddp: str = ""
    explains: frozenset[str] = frozenset()
    found_by_check: bool = True
    refuted_by: frozenset[str] = frozenset()

    def advice(self, api: str | None = None) -> str:
        """Return how to fix the mistake.

        Args:
            api: what the script trains with: "torch" (with Horovod), "ddp" (torch.distributed), "keras"
                (`fit`), or "tape" (a training loop with tf.GradientTape). Default None: the advice names both
                frameworks.

        Returns:
            One or more sentences.
        """
        if api is None and self.fix_in_keras:
            return f"{self.fix} In Keras: {self.fix_in_keras[0].lower()}{self.fix_in_keras[1:]}"
        in_keras = self.fix_in_keras or self.fix
        advices = {"keras": in_keras, "tape": self.fix_with_tape or in_keras}
        return (advices | {"ddp": self.fix_in_ddp or self.fix}).get(api, self.fix)


class Finding(NamedTuple):
    """A mistake that was found in a script.

    Attributes:
        id: id of the `Mistake`.
        title: its title.
        line: line of the script, from 1; None where the mistake has no line.
        seen: what was observed: whole sentences.
        fix: what to do about it: whole sentences.
        file: the module that the line is of, relative to the script's folder. Default None: the script.
    """

    id: str
    title: str
    line: int | None
    seen: str
    fix: str
    file: str | None = None


def finding(id: str, line: int | None, seen: str, api: str | None = None) -> Finding:
    """Return the finding of a mistake of the catalogue.

    Args:
        line: line of the script, from 1, or None.
        api: what the script trains with, see `Mistake.advice`. Default None: both frameworks.

    Returns:
        The finding, with the title and the advice of the catalogue.

    Raises:
        KeyError: the catalogue has no mistake with this id.
    """
    mistake = CATALOGUE[id]
    return Finding(id, mistake.title, line, seen, mistake.advice(api))


def _ids(text: str) -> frozenset[str]:
    """Return the ids in a text, which are separated by spaces."""
    return frozenset(text.split())


MISTAKES = (
    Mistake(
        "init-missing",
        "Horovod is never initialised",
        "Call `hvd.init()` right after `import horovod.torch as hvd` (in Keras: `import "
        "hvdlab.keras.horovod as hvd`), before the script calls hvd.rank() or hvd.size().",
        refuted_by=_ids("exchange flow"),
    ),
    Mistake(
        "device-not-pinned",
        "The ranks do not choose different GPUs",
        "Call `mine = rank_device(hvd)` from `hvdlab.torch.device` after hvd.init(), then "
        "`model.to(mine.device)`. If each rank has a GPU, `torch.cuda.set_device(hvd.local_rank())` is "
        "enough.",
        "Call `mine = rank_device(hvd)` from `hvdlab.keras.device` after hvd.init(). If each rank has a "
        'GPU, `tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")` is enough.',
        fix_in_ddp='Write `local_rank = int(os.environ["LOCAL_RANK"])`, '
        '`torch.cuda.set_device(local_rank)` and `model.to(torch.device("cuda", local_rank))`, before '
        "init_process_group.",
    ),
    Mistake(
        "gpu-by-remainder",
        "The GPU's number is a remainder, so ranks may share a GPU",
        "Call `mine = rank_device(hvd)` from `hvdlab.torch.device`. Ranks that share a GPU then exchange "
        "gradients through host memory: pass compression=mine.compression to DistributedOptimizer.",
        "Call `mine = rank_device(hvd)` from `hvdlab.keras.device`. Ranks that share a GPU then exchange "
        "gradients through host memory: pass device_dense=mine.device_dense to DistributedOptimizer.",
        fix_in_ddp="Start as many ranks as there are GPUs, or call `mine = group_device()` from "
        "`hvdlab.torch.process_group` and pass mine.backend to init_process_group.",
    ),
    Mistake(
        "cuda-without-nccl",
        "Horovod was built without CUDA and gets a GPU tensor",
        "Call `mine = rank_device(hvd)` from `hvdlab.torch.device`. Broadcast the weights before "
        "model.to(mine.device), pass compression=mine.compression to DistributedOptimizer, and all-reduce "
        "metrics as CPU tensors. Or build Horovod with NCCL: `hvdlab doctor` prints the command.",
    ),
    Mistake(
        "tensor-not-accepted",
        "Horovod does not accept the memory layout or the type of a tensor",
        "Call `mine = rank_device(hvd)` from `hvdlab.torch.device` and pass compression=mine.compression to "
        "DistributedOptimizer: it sends such gradients as contiguous float32. Broadcast the weights "
        "before model.to(memory_format=torch.channels_last) or model.bfloat16().",
    ),
    Mistake(
        "optimizer-not-wrapped",
        "The optimizer is not wrapped",
        "Write `optimizer = hvd.DistributedOptimizer(optimizer, ...)`, which averages the gradients of all "
        "ranks before each step, and train with the optimizer that it returns.",
        fix_with_tape="Write `tape = hvd.DistributedGradientTape(tape)` before tape.gradient, which then "
        "averages the gradients of all ranks.",
        explains=_ids(
            "replicas-diverged batch-norm-drift rate-unscaled rate-scaled-twice no-warmup"
        ),
        refuted_by=_ids("equivalence"),
    ),
    Mistake(
        "wrapped-too-late",
        "The optimizer is wrapped after other code got the plain optimizer",
        "Wrap the optimizer right after it is created, before compile, a trainer or a scheduler gets it, "
        "and use only the optimizer that DistributedOptimizer returned.",
        explains=_ids(
            "replicas-diverged batch-norm-drift rate-unscaled rate-scaled-twice no-warmup "
            "unfinished-accumulation"
        ),
        refuted_by=_ids("equivalence"),
    ),
    Mistake(
        "gradients-not-averaged",
        "The wrapped optimizer never averages gradients",
        "With Keras 3 write `import hvdlab.keras.horovod as hvd`. Horovod's own module averages with legacy "
        "Keras only (TF_USE_LEGACY_KERAS=1), where most of its callbacks need another fix.",
        fix_with_tape="Leave the optimizer plain, and write tape = hvd.DistributedGradientTape(tape) above "
        "tape.gradient(...).",
        explains=_ids("replicas-diverged batch-norm-drift"),
        refuted_by=_ids("equivalence"),
    ),
    Mistake(
        "step-before-average",
        "The optimizer steps before the gradients are averaged",
        "Call `optimizer.synchronize()` before `with optimizer.skip_synchronize(): optimizer.step()`, or "
        "call only optimizer.step(), which waits for the average.",
        explains=_ids("replicas-diverged batch-norm-drift"),
        refuted_by=_ids("equivalence"),
    ),
    Mistake(
        "weights-overwritten",
        "The weights of one rank replace what the other ranks have learned",
        "Write `optimizer = hvd.DistributedOptimizer(optimizer, ...)`, which averages the gradients of all "
        "ranks before each step, and broadcast the weights only once, before the first step. A broadcast "
        "makes the weights equal, but averages nothing.",
        fix_with_tape="Write `tape = hvd.DistributedGradientTape(tape)` before tape.gradient, which then "
        "averages the gradients of all ranks, and broadcast the weights only once, after the first step.",
        fix_in_ddp="Train with `parallel = DistributedDataParallel(model)`, which averages the gradients in "
        "every backward pass, and remove this broadcast, because it averages nothing.",
        explains=_ids(
            "replicas-diverged batch-norm-drift rate-unscaled rate-scaled-twice no-warmup"
        ),
        refuted_by=_ids("equivalence"),
    ),
    Mistake(
        "unfinished-accumulation",
        "Gradients are accumulated over more batches than the optimizer was told",
        "Step after the last batch of an epoch, too, if it does not complete the number of batches: `if "
        "(batch + 1) % backward_passes_per_step == 0 or batch + 1 == len(loader): optimizer.step()`. Or "
        "leave out the batches that remain.",
    ),
    Mistake(
        "mismatched-tensors",
        "The ranks pass different tensors to one collective",
        "Pass tensors of the same shape and type under a name on every rank.",
        "Give fit the same metrics, callbacks and validation data on every rank: each rank averages what it "
        "has measured.",
        explains=_ids("collective-on-some-ranks"),
    ),
    Mistake(
        "legacy-callback",
        "A callback of Horovod's own Keras module fails under legacy Keras",
        "Write `hvd.callbacks.K = tf.keras.backend` below the imports, because Horovod passes the backend of "
        "Keras 3 to its callbacks. With SGD or RMSprop of tf.keras.optimizers also pass "
        "momentum_correction=False to the callbacks of the learning rate. Or train with Keras 3: unset "
        "TF_USE_LEGACY_KERAS, remove experimental_run_tf_function from compile, and write "
        "`import hvdlab.keras.horovod as hvd`.",
        explains=_ids("replicas-diverged no-broadcast"),
        refuted_by=_ids("ran"),
    ),
    Mistake(
        "no-broadcast",
        "The ranks start with different weights",
        "Call `hvd.broadcast_parameters(model.state_dict(), root_rank=0)` on all ranks before the first "
        "step, below all code that initialises or loads weights.",
        "Put `hvd.callbacks.BroadcastGlobalVariablesCallback(0)` into the callbacks of fit, on all ranks.",
        "Call `hvd.broadcast_variables(model.variables, root_rank=0)` and `hvd.broadcast_variables("
        "optimizer.variables, root_rank=0)` on all ranks right after the first step, because some variables "
        "do not exist before it.",
        "Initialise and load weights before DistributedDataParallel(model), which sends those of rank 0 "
        "once, when it is created.",
        explains=_ids("replicas-diverged"),
        refuted_by=_ids("replicas"),
    ),
    Mistake(
        "replicas-diverged",
        "The replicas diverge during training",
        "Look for code between backward and step that changes the weights or the learning rate on one rank "
        "only: noise of its own, a learning rate of its own, weights that the optimizer does not hold.",
        fix_in_ddp="Look for code after DistributedDataParallel(model) that changes the weights or the "
        "learning rate on one rank only, because the wrapper sends the weights once, when it is created.",
    ),
    Mistake(
        "clip-before-average",
        "Gradients are changed while Horovod averages them",
        "Call `optimizer.synchronize()` before the gradients are clipped or unscaled, which waits for the "
        "average, and then step with `with optimizer.skip_synchronize(): optimizer.step()`.",
        explains=_ids("replicas-diverged"),
    ),
    Mistake(
        "identical-batches",
        "Several ranks read the same data",
        "Give each rank its own shard of the data: Batches(..., rank=hvd.rank(), size=hvd.size()), "
        "DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank()). Or let each rank read all data "
        "in another order (seed + hvd.rank()), and make steps // hvd.size() steps per epoch.",
        "Give each rank its own shard of the data: dataset.shard(hvd.size(), hvd.rank()) before it is "
        "shuffled, or Batches(..., rank=hvd.rank(), size=hvd.size()). Or let each rank read all data in "
        "another order (seed + hvd.rank()), and make steps // hvd.size() steps per epoch.",
        fix_in_ddp="Give each rank its own shard of the data: DataLoader(data, batch_size, "
        "sampler=DistributedSampler(data)), and sampler.set_epoch(epoch) at the start of each epoch.",
        refuted_by=_ids("shards"),
    ),
    Mistake(
        "unequal-steps",
        "The ranks make unequal numbers of steps",
        "Give every rank the same number of batches, for example with DistributedSampler(drop_last=True) "
        "or with the smallest number of all ranks. Or call `last = hvd.join()` on each rank after its last "
        "batch, and send the weights of rank `last`: hvd.broadcast_parameters(model.state_dict(), last), and "
        "the optimizer's state with hvd.broadcast_optimizer_state(optimizer, last).",
        "Give every rank the same number of batches: dataset.take(n), or steps_per_epoch=n in fit, with "
        "the smallest number of all ranks.",
        fix_in_ddp="Give every rank the same number of batches, for example with DistributedSampler, or "
        "train inside `with parallel.join():`, where `parallel` is the DistributedDataParallel wrapper.",
        explains=_ids("collective-on-some-ranks replicas-diverged"),
    ),
    Mistake(
        "collective-on-some-ranks",
        "Only some ranks call a collective",
        "Let every rank make the same calls in the same order, and test the rank afterwards: "
        "result = hvd.allreduce(...); if hvd.rank() == 0: print(result).",
        fix_in_ddp="Let every rank make the same calls in the same order, and test the rank afterwards: "
        "dist.all_reduce(result); if dist.get_rank() == 0: print(result).",
        explains=_ids("replicas-diverged no-broadcast metric-of-one-rank"),
        refuted_by=_ids("equivalence"),
    ),
    Mistake(
        "own-stop",
        "Each rank decides by its own value",
        "Average the value over the ranks before the decision: loss = hvd.allreduce(loss).",
        "Put hvd.callbacks.MetricAverageCallback() before the callback that decides.",
        "Average the value over the ranks before the decision: loss = hvd.allreduce(loss).",
        "Average the value over the ranks before the decision: dist.all_reduce(loss), which adds up, then "
        "divide by dist.get_world_size().",
        explains=_ids("unequal-steps collective-on-some-ranks replicas-diverged"),
    ),
    Mistake(
        "rate-unscaled",
        "The learning rate does not grow with the number of ranks",
        "N ranks read N batches per step: multiply the learning rate of a single process by hvd.size(), and "
        "add a warmup.",
        fix_in_ddp="N ranks read N batches per step: multiply the learning rate of a single process by "
        "dist.get_world_size(), and add a warmup.",
    ),
    Mistake(
        "rate-dropped",
        "The optimizer drops the learning rate that it gets",
        "Pass the learning rate as `learning_rate=...`. Keras has renamed `lr`, and legacy Keras only warns.",
        explains=_ids("rate-unscaled rate-scaled-twice"),
    ),
    Mistake(
        "rate-scaled-twice",
        "The learning rate is scaled twice",
        "Multiply by hvd.size() once. op=hvd.Sum is a factor of hvd.size() too: without `op` the gradients "
        "are averaged.",
        fix_in_ddp="Multiply by dist.get_world_size() once, because DistributedDataParallel averages the "
        "gradients.",
        explains=_ids("no-warmup"),
    ),
    Mistake(
        "loss-scaled",
        "The loss is scaled by the number of ranks, although the gradients are averaged",
        "Leave the loss as it is for one rank: DistributedOptimizer averages the gradients. Only with "
        "op=hvd.Sum divide it by hvd.size().",
        fix_in_ddp="Leave the loss as it is for one rank: DistributedDataParallel averages the gradients.",
        explains=_ids("rate-unscaled rate-scaled-twice"),
    ),
    Mistake(
        "no-warmup",
        "The learning rate is large from the first step on",
        "Increase the learning rate over the first epochs, because training with a large batch often "
        "diverges without such a warmup: with a LambdaLR that grows from 1 / hvd.size() to 1, or in Keras "
        "with hvd.callbacks.LearningRateWarmupCallback.",
        fix_in_ddp="Increase the learning rate over the first epochs, because training with a large batch "
        "often diverges without such a warmup: with a LambdaLR that grows from 1 / dist.get_world_size() "
        "to 1.",
    ),
    Mistake(
        "all-write-one-file",
        "All ranks write the same file",
        "Save on one rank: if hvd.rank() == 0: torch.save(...). Or put the rank into the file name.",
        "Save on one rank: add ModelCheckpoint to the callbacks, or call model.save, only if hvd.rank() is "
        "0. Or put the rank into the file name.",
        "Save on one rank: if hvd.rank() == 0: checkpoint.save(...). Or put the rank into the file name.",
        "Save on one rank, without the prefix of the wrapper: if dist.get_rank() == 0: "
        "torch.save(parallel.module.state_dict(), path).",
    ),
    Mistake(
        "batch-norm-drift",
        "The batch norm statistics of the ranks drift apart",
        "Shuffle the data before it is sharded. Or use hvd.SyncBatchNorm, or average the running "
        "statistics over the ranks before you evaluate or save.",
        fix_in_ddp="Shuffle the data before it is sharded. Or call "
        "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) before DistributedDataParallel.",
    ),
    Mistake(
        "download-race",
        "All ranks download the same file at the same time",
        "Let one rank per machine download the file while the others wait: hold a file lock during the "
        "download, or download under `if hvd.local_rank() == 0:` and call hvd.barrier() afterwards.",
        fix_in_ddp="Let one rank per machine download while the others wait: `if local_rank != 0: "
        "dist.barrier()` before the download and `if local_rank == 0: dist.barrier()` after it.",
    ),
    Mistake(
        "process-group-missing",
        "The process group is never initialised",
        "Call `dist.init_process_group(backend)` at the start, before DistributedSampler, "
        "DistributedDataParallel or a collective is used, and start the script with torchrun.",
    ),
    Mistake(
        "model-not-wrapped",
        "The model is not wrapped in DistributedDataParallel",
        "Write `parallel = DistributedDataParallel(model)` after model.to(device), and call `parallel(x)` "
        "in the training step: the wrapper sends rank 0's weights, and averages the gradients in every "
        "backward pass.",
        explains=_ids(
            "replicas-diverged no-broadcast batch-norm-drift rate-unscaled rate-scaled-twice no-warmup"
        ),
    ),
    Mistake(
        "wrapper-not-called",
        "The training step calls the model instead of its wrapper",
        "Call the object that DistributedDataParallel returned in the training step, because only its "
        "forward pass prepares the average of the gradients. `wrapper.module(x)` and `model(x)` skip it.",
        explains=_ids(
            "replicas-diverged batch-norm-drift rate-unscaled rate-scaled-twice no-warmup"
        ),
    ),
    Mistake(
        "optimizer-of-other-weights",
        "The optimizer holds the weights of another model",
        "Create the optimizer after the model has its final form, with the parameters of the model that is "
        "trained: torch.optim.SGD(parallel.parameters(), ...).",
        explains=_ids(
            "replicas-diverged no-broadcast model-not-wrapped rate-unscaled rate-scaled-twice no-warmup"
        ),
    ),
    Mistake(
        "loaded-on-some-ranks",
        "Only some ranks load weights after the model was wrapped",
        "Load the checkpoint on every rank, or on rank 0 before DistributedDataParallel(model), which "
        "sends the weights of rank 0. Send the state of the optimizer with dist.broadcast_object_list.",
        explains=_ids("replicas-diverged no-broadcast"),
    ),
    Mistake(
        "unused-parameters",
        "Some parameters of the wrapped model get no gradient",
        "Remove the layers that the forward pass does not use, or write `DistributedDataParallel(model, "
        "find_unused_parameters=True)` if the used layers change from step to step.",
        explains=_ids("replicas-diverged wrapper-not-called"),
    ),
    Mistake(
        "sampler-and-shuffle",
        "A DataLoader gets a sampler and shuffle=True",
        "Leave out shuffle=True, because the sampler decides the order. DistributedSampler shuffles by "
        "default, in a new order for each epoch that set_epoch announces.",
    ),
    Mistake(
        "function-not-called",
        "A Horovod function is used without a call",
        "Add the parentheses: `hvd.rank()`.",
    ),
    Mistake(
        "result-discarded",
        "The result of a collective is discarded",
        "Use the tensor that the call returns, because the call does not change its argument: loss = "
        "hvd.allreduce(loss). In PyTorch `hvd.allreduce_(loss)` changes it.",
    ),
    Mistake(
        "wrong-shard",
        "The data are sharded incorrectly",
        "Give `Batches` all images, the same seed on all ranks, rank=hvd.rank() and size=hvd.size(). It "
        "then assigns the images to the ranks again in each epoch. A DistributedSampler gets "
        "num_replicas=hvd.size() and rank=hvd.rank().",
        "Give `Batches` all images, the same seed on all ranks, rank=hvd.rank() and size=hvd.size(). It "
        "then assigns the images to the ranks again in each epoch. In tf.data: "
        "dataset.shard(hvd.size(), hvd.rank()).",
        fix_in_ddp="Leave num_replicas and rank out: DistributedSampler(data) asks the process group.",
        explains=_ids("identical-batches"),
    ),
    Mistake(
        "same-order",
        "Every epoch has the same order",
        "Call `sampler.set_epoch(epoch)` at the start of each epoch.",
    ),
    Mistake(
        "sampler-unused",
        "No DataLoader gets the DistributedSampler",
        "Pass it to the DataLoader, without shuffle=True: DataLoader(data, batch_size, sampler=sampler). "
        "Otherwise every rank reads all data.",
        explains=_ids("identical-batches"),
    ),
    Mistake(
        "different-splits",
        "Each rank splits the data differently",
        "Use the same seed on all ranks: random_split(data, lengths, "
        "generator=torch.Generator().manual_seed(1)), train_test_split(data, random_state=1), or "
        "np.random.default_rng(1).permutation(n).",
    ),
    Mistake(
        "metric-of-one-rank",
        "Each rank evaluates its own shard, and the results are not combined",
        "Average the result over the ranks before it is printed or used: accuracy = "
        "hvd.allreduce(accuracy). If the shards may have different sizes, add up correct answers and "
        "samples with op=hvd.Sum, and divide then.",
        fix_in_ddp="Add up the correct answers and the samples of all ranks with dist.all_reduce, and "
        "divide then.",
    ),
    Mistake(
        "recorder-on-some-ranks",
        "Only some ranks record",
        "Move this call out of the `if`, because every rank writes its own weights and the grader compares "
        "them.",
        found_by_check=False,
        refuted_by=_ids("ran"),
    ),
)
CATALOGUE = {mistake.id: mistake for mistake in MISTAKES}
CHECKED = {id: mistake for id, mistake in CATALOGUE.items() if mistake.found_by_check}
