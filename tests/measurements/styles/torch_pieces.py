"""Pieces of a PyTorch script: bindings, exchanges of gradients, optimizers, schedules, the training loop."""

from tests.measurements.styles.part import Part, Pieces, Style, indented
from tests.measurements.styles.torch_exchanges import EXCHANGES, PUT

HOROVOD = {"rank": "hvd.rank()", "size": "hvd.size()", "local_rank": "hvd.local_rank()"}
NAMES = {
    "torch_horovod": HOROVOD,
    "torch_allreduce": HOROVOD,
    "torch_ddp": {
        "rank": "distributed.get_rank()",
        "size": "distributed.get_world_size()",
        "local_rank": 'int(os.environ["LOCAL_RANK"])',
    },
    "torch_mpi4py": {
        "rank": "comm.rank",
        "size": "comm.size",
        "local_rank": 'int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])',
    },
}
AVERAGE = {
    "hvd": "hvd.allreduce(torch.tensor(float(value)), name=name).item()",
    "torch_ddp": "total.item() / distributed.get_world_size()",
    "torch_mpi4py": "comm.allreduce(float(value)) / comm.size",
}
EVALUATE = '''\
@torch.no_grad()
def evaluate(model, images, labels):
    """Return the part of the images that the model classifies right."""
    model.eval()
    right = 0
    for start in range(0, len(images), 500):
        logits = model(torch.from_numpy(np.array(images[start : start + 500])))
        right += (logits.argmax(1).numpy() == labels[start : start + 500]).sum()
    return right / max(1, len(images))
'''
FLIP = '''\
def flip_and_crop(images, random):
    """Mirror each image with probability 1/2, and cut it out of a larger one at a random place."""
    images = np.where(random.random((len(images), 1, 1, 1)) < 0.5, images[:, :, ::-1], images)
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)), mode="reflect")
    top, left = random.integers(0, 5, size=2)
    return np.ascontiguousarray(padded[:, top : top + 32, left : left + 32])
'''
MIXED = '''\
def mixed_loss(model, images, labels, random):
    """Return the loss on images that are mixed in pairs (mixup)."""
    part = float(random.beta(0.2, 0.2))
    other = torch.from_numpy(random.permutation(len(labels)))
    logits = model(part * images + (1 - part) * images[other])
    return part * F.cross_entropy(logits, labels) + (1 - part) * F.cross_entropy(
        logits, labels[other]
    )
'''
OPTIMIZERS = {
    "sgd": "torch.optim.SGD($model.parameters(), lr=$lr * $size, momentum=0.9{decay})",
    "nesterov": (
        "torch.optim.SGD(\n    $model.parameters(), lr=$lr * $size, momentum=0.9, nesterov=True{decay}\n)"
    ),
    "adamw": "torch.optim.AdamW($model.parameters(), lr=$lr * math.sqrt($size){decay})",
    "lars": "LARS($model.parameters(), lr=$lr * $size, trust_coefficient=0.02{decay})",
    "lamb": "LAMB($model.parameters(), lr=$lr * math.sqrt($size){decay})",
}
DECAYS = {"sgd": "5e-4", "nesterov": "5e-4", "adamw": "0.05", "lars": "1e-4", "lamb": "0.02"}
TOTAL = "updates = len($batches)  # in an epoch\ntotal = $epochs * updates\n"
ACCUMULATED_TOTAL = "total = $epochs * len($batches) // {k}  # updates\n"
SCHEDULES = {
    "warmup": """\
warmup = max(1, round(0.4 * updates))
$scheduler = torch.optim.lr_scheduler.LambdaLR(
    $optimizer,
    lambda step: max(0.02, min((step + 1) / warmup, (total - step) / (total - warmup))),
)
""",
    "step": """\
rate = $optimizer.param_groups[0]["lr"]
falling = step_decay(rate, [round(0.5 * total), round(0.75 * total)], 0.2)
warmed = gradual_warmup(falling, max(1, updates // 3), start=rate / 10)
$scheduler = Schedule($optimizer, warmed)
""",
    "cosine": """\
warmup = max(1, round(0.4 * updates))

def factor(step):
    if step < warmup:
        return (step + 1) / warmup
    done = min(1, (step - warmup) / (total - warmup))
    return max((1 + math.cos(math.pi * done)) / 2, 0.02)

$scheduler = torch.optim.lr_scheduler.LambdaLR($optimizer, factor)
""",
    "onecycle": """\
$scheduler = torch.optim.lr_scheduler.OneCycleLR(
    $optimizer,
    $optimizer.param_groups[0]["lr"],
    total_steps=total,
    pct_start=0.2,
    cycle_momentum=False,
)
""",
}
SEND_WEIGHTS = {
    "torch_allreduce": "hvd.broadcast_parameters($model.state_dict(), root_rank=0)",
    "torch_mpi4py": """\
weights = parameters_to_vector($model.parameters()).detach().numpy()
comm.Bcast(weights, root=0)
vector_to_parameters(torch.from_numpy(weights), $model.parameters())""",
}
HALF = """\
# 16-bit numbers. Processors compute the gradients in float16 hundreds of times slower than in bfloat16.
$half = torch.bfloat16
$scaler = torch.amp.GradScaler("cpu")
"""


def torch_pieces(style: Style) -> Pieces:
    """Return the pieces of a PyTorch script, except for its data."""
    pieces = Pieces(names=NAMES[style.framework])
    pieces.imports += [
        *("import torch", "import numpy as np", "from torch.nn import functional as F"),
        "from hvdlab.torch.models import assessment_network",
        "from hvdlab.torch.recorder import Recorder",
    ]
    pieces.helpers += [EVALUATE, averaging(style)]
    pieces.parts.append(Part("start", binding(style, pieces) + "torch.manual_seed($seed)\n"))
    return pieces


def binding(style: Style, pieces: Pieces) -> str:
    """Return the statements that find the other ranks, and add their imports."""
    pieces.imports += ["import os"] * (style.data == "cache")
    if style.framework == "torch_ddp":
        pieces.imports += [
            *("import os", "from torch import distributed"),
            "from hvdlab.torch.process_group import rendezvous",
            "from torch.nn.parallel import DistributedDataParallel",
        ]
        pieces.finish = "distributed.destroy_process_group()"
        return 'rendezvous()\ndistributed.init_process_group("gloo")\n'
    if style.framework == "torch_mpi4py":
        pieces.imports += [
            "from mpi4py import MPI",
            "from torch.nn.utils import parameters_to_vector, vector_to_parameters",
        ]
        pieces.start.append("comm = MPI.COMM_WORLD\n")
        pieces.finish = "comm.Barrier()"
        return ""
    pieces.imports.append("import horovod.torch as hvd")
    pieces.finish = "hvd.shutdown()"
    return "hvd.init()\n"


def averaging(style: Style) -> str:
    """Return the function that averages a number over the ranks."""
    kind = style.framework if style.framework in AVERAGE else "hvd"
    body = f"    return {AVERAGE[kind]}\n"
    if kind == "torch_ddp":
        body = "    total = torch.tensor(float(value))\n    distributed.all_reduce(total)\n" + body
    doc = '    """Return the mean of a number over all ranks."""\n'
    return f"def average(value{', name' if kind == 'hvd' else ''}):\n{doc}{body}"


def add_training(style: Style, pieces: Pieces) -> None:
    """Add model, optimizer, schedule, recorder and the loop; the data comes before."""
    channels_last = style.precision == "channels_last"
    model = "$model = assessment_network()\n"
    if style.framework in SEND_WEIGHTS:
        model += "# All ranks begin with the weights of rank 0.\n"
        model += SEND_WEIGHTS[style.framework] + "\n"
    if style.framework == "torch_horovod":
        model += "hvd.broadcast_parameters($model.state_dict(), root_rank=0)\n"
    if channels_last:
        model += "$model.to(memory_format=torch.channels_last)\n"
    if style.framework == "torch_ddp":
        model += parallel(style, pieces)
    if style.regularisation == "ema":
        pieces.imports.append(
            "from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn"
        )
        model += (
            "# Averaged weights are evaluated only; training does not read them.\n"
            "$averaged = AveragedModel($model, multi_avg_fn=get_ema_multi_avg_fn(0.98), use_buffers=True)\n"
        )
    pieces.parts.append(Part("make_model", model))
    pieces.parts.append(Part("make_optimizer", optimizer(style, pieces)))
    k = style.accumulated
    total = ACCUMULATED_TOTAL.format(k=k) if k > 1 else TOTAL
    if k > 1 and "updates" in SCHEDULES[style.schedule]:
        total += "updates = total // $epochs\n"
    pieces.parts.append(Part("make_schedule", total + SCHEDULES[style.schedule]))
    if style.schedule == "cosine":
        pieces.imports.append("import math")
    if style.schedule == "step":
        pieces.imports += [
            "from hvdlab.schedules import gradual_warmup, step_decay",
            "from hvdlab.torch.schedules import Schedule",
        ]
    rest = "$recorder = Recorder($model, $batches)\n"
    if style.regularisation in ("own", "mixup"):
        rest += "$random = np.random.default_rng([$seed, $rank])\n"
    if style.precision == "scaled_bfloat16":
        rest += HALF
    pieces.parts.append(Part("make_recorder", rest))
    pieces.train = Part("train_epoch", loop(style, pieces))
    pieces.epoch = end_of_epoch(style)


def parallel(style: Style, pieces: Pieces) -> str:
    """Return the statements that wrap the model in DistributedDataParallel."""
    options = {
        "fused": ", bucket_cap_mb=50, gradient_as_bucket_view=True",
        "each": ", broadcast_buffers=False",
    }.get(style.exchange, "")
    code = f"$parallel = DistributedDataParallel($model{options})\n"
    if style.exchange.endswith("fp16"):
        pieces.imports.append(
            "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks"
        )
        code += "$parallel.register_comm_hook(None, default_hooks.fp16_compress_hook)\n"
    return code


def optimizer(style: Style, pieces: Pieces) -> str:
    """Return the statements that make the optimizer, wrapped for Horovod if the style does so."""
    decay = f", weight_decay={DECAYS[style.optimizer]}" if style.regularisation == "decay" else ""
    code = "$optimizer = " + OPTIMIZERS[style.optimizer].format(decay=decay) + "\n"
    if style.optimizer in ("lars", "lamb"):
        pieces.imports.append(f"from hvdlab.torch.optimizers import {style.optimizer.upper()}")
    if style.optimizer in ("adamw", "lamb"):
        pieces.imports.append("import math")
    if style.framework != "torch_horovod":
        return code
    options = {
        "accumulate2": "    backward_passes_per_step=2,\n",
        "accumulate4": "    backward_passes_per_step=4,\n",
        "fused": "    num_groups=1,\n",
        "fp16": "    compression=hvd.Compression.fp16,\n",
        "accumulate4_fp16": (
            "    backward_passes_per_step=4,\n    compression=hvd.Compression.fp16,\n"
        ),
    }.get(style.exchange, "")
    if style.precision == "channels_last" and not style.exchange.endswith("fp16"):
        pieces.imports.append("from hvdlab.torch.device import InHorovodsLayout")
        options += "    compression=InHorovodsLayout,  # Horovod needs contiguous tensors\n"
    return (
        f"{code}$optimizer = hvd.DistributedOptimizer(\n    $optimizer,\n"
        f"    named_parameters=$model.named_parameters(),\n{options})\n"
        "hvd.broadcast_optimizer_state($optimizer, root_rank=0)\n"
    )


def loop(style: Style, pieces: Pieces) -> str:
    """Return the loop over the batches of an epoch."""
    k = style.accumulated
    head = "for images, labels in $batches.epoch(epoch):\n"
    if k > 1:
        head = (
            "first = epoch * len($batches) + 1\n"
            "for step, (images, labels) in enumerate($batches.epoch(epoch), start=first):\n"
        )
    body = ""
    if style.regularisation == "own":
        pieces.helpers.append(FLIP)
        body += "images = flip_and_crop(images, $random)\n"
    body += "images, labels = torch.from_numpy(images), torch.from_numpy(labels)\n"
    net = "$parallel" if style.framework == "torch_ddp" else "$model"
    if style.regularisation == "mixup":
        pieces.helpers.append(MIXED)
        loss = f"loss = mixed_loss({net}, images, labels, $random)\n"
    else:
        smoothing = ", label_smoothing=0.1" if style.regularisation == "smoothing" else ""
        loss = f"loss = F.cross_entropy({net}(images), labels{smoothing})\n"
    if style.precision == "bfloat16":
        loss = 'with torch.autocast("cpu", dtype=torch.bfloat16):\n' + indented(loss) + "\n"
    if style.precision == "scaled_bfloat16":
        loss = 'with torch.autocast("cpu", dtype=$half):\n' + indented(loss) + "\n"
    divided = f"(loss / {k})" if k > 1 else "loss"
    if style.precision == "scaled_bfloat16":
        divided = f"$scaler.scale({divided})"
    backward = f"{divided}.backward()\n"
    clear = "$optimizer.zero_grad()\n"
    step = update(style)
    if k == 1:
        body += loss + clear + backward + step
    elif style.framework == "torch_ddp":
        pieces.imports.append("import contextlib")
        body += f"last = step % {k} == 0\n"
        body += "with contextlib.nullcontext() if last else $parallel.no_sync():\n"
        body += indented(loss + backward) + "\nif last:\n" + indented(step + clear) + "\n"
    else:
        body += loss + backward + f"if step % {k} == 0:\n" + indented(step + clear) + "\n"
    if (style.framework, style.exchange) in EXCHANGES and "put_gradients" in step:
        pieces.helpers.append(PUT)
    total = "total_loss += loss.item() * len(labels)\n"
    return (
        "$model.train()\ntotal_loss = 0.0\n"
        + head
        + indented(body + total)
        + "\n$mean_loss = total_loss / len($batches.examples_read(epoch))\n"
    )


def update(style: Style) -> str:
    """Return the statements from the gradients of a rank to the new weights."""
    contiguous = ".contiguous()" if style.precision == "channels_last" else ""
    kind = "each" if style.exchange.startswith("accumulate") else style.exchange
    lines = EXCHANGES.get((style.framework, kind), "").format(contiguous=contiguous)
    horovod = style.framework == "torch_horovod"
    clipping = style.regularisation == "clipping"
    scaled = style.precision == "scaled_bfloat16"
    clip = "torch.nn.utils.clip_grad_norm_($model.parameters(), 1.0)\n" if clipping else ""
    apply = "$optimizer.step()\n"
    if scaled:
        apply = "$scaler.step($optimizer)\n"
        clip = "$scaler.unscale_($optimizer)\n" + clip
    if horovod and (clipping or scaled):
        lines += "$optimizer.synchronize()  # the averages are there\n" + clip
        lines += "with $optimizer.skip_synchronize():\n" + indented(apply) + "\n"
    elif kind == "server":
        lines += "if $rank == 0:\n" + indented(clip + apply) + "\n"
        lines += SEND_WEIGHTS[style.framework] + "\n"
    else:
        lines += clip + apply
    lines += "$scaler.update()\n" if scaled else ""
    lines += "$scheduler.step()\n"
    if style.regularisation == "ema":
        lines += "$averaged.update_parameters($model)\n"
    return lines


def end_of_epoch(style: Style) -> str:
    """Return what follows each epoch: evaluation on a part, averages over the ranks, the record."""
    evaluated = "$averaged.module" if style.regularisation == "ema" else "$model"
    named = style.framework in ("torch_horovod", "torch_allreduce")
    name = {what: f', "{what}"' if named else "" for what in ("loss", "accuracy")}
    return (
        "mine = slice($rank, None, $size)\n"
        f"accuracy = evaluate({evaluated}, $test_images[mine], $test_labels[mine])\n"
        f"accuracy = average(accuracy{name['accuracy']})\n"
        f"$mean_loss = average($mean_loss{name['loss']})\n"
        "$recorder.epoch_end(epoch, loss=$mean_loss, accuracy=accuracy)\n"
        '$report(f"epoch {epoch}: loss {$mean_loss:.3f}, accuracy {accuracy:.3f}")\n'
    )
