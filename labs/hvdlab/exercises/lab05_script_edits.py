"""The conversion of lab 5, step by step: what each step changes in the serial script.

    apply("notebooks/work/fashion_mnist.py", "init", "keras")     # make the edits of a step
    print(diff("init", "keras"))                                  # show them

The steps follow each other in the order of `STEPS`.
"""

import ast
import tokenize
from pathlib import Path

from hvdlab.course.experiment import LABS
from hvdlab.exercises.harness.script_edits import ScriptEdits
from hvdlab.script_analysis.ast_helpers import keyword
from hvdlab.variants import unified

__all__ = ["EDITS", "STEPS", "after", "apply", "diff", "serial_script", "unified", "with_float16"]

STEPS = (
    "init", "device", "output", "optimizer", "broadcast", "sharding", "metrics", "checkpoint", "resume",
)  # fmt: skip
BOTH = """\
@@ init
     args = parse_args()
+    hvd.init()  # Horovod: find the other ranks
@@ sharding
-    batches = Batches(images, labels, args.batch_size, seed=seed)
+    batches = Batches(
+        images,
+        labels,
+        args.batch_size,
+        rank=hvd.rank(),  # Horovod: each rank reads its own shard, in equally many steps
+        size=hvd.size(),
+        seed=args.seed,  # Horovod: the same on all ranks, or their shards would overlap
+        style="whole",
+    )
@@ metrics
+    # Horovod: each rank evaluates every size-th held-out image, beginning with its own number.
+    mine = slice(hvd.rank(), args.heldout, hvd.size())
-    heldout = data.test_images[: args.heldout], data.test_labels[: args.heldout]
+    heldout = data.test_images[mine], data.test_labels[mine]
"""
KERAS = """\
@@ init
+import hvdlab.keras.horovod as hvd
 from hvdlab.arguments import above_zero, folder_to_write, from_0_to_1, positive, whole_number
@@ device
+from hvdlab.keras.device import rank_device
 from hvdlab.keras.recorder import Recorder
@@ device
     hvd.init()  # Horovod: find the other ranks
+    chosen = rank_device(hvd)  # Horovod: its own GPU, a shared one, or the processor
@@ output
-        print(
-            f"epoch {epoch}  loss {logs['loss']:.3f}  held-out {logs['val_accuracy']:.3f}  "
-            f"{logs['images_per_second']:,.0f} images/s",
-            flush=True,
-        )
+        if hvd.rank() == 0:  # Horovod: one rank prints
+            print(
+                f"epoch {epoch}  loss {logs['loss']:.3f}  held-out {logs['val_accuracy']:.3f}  "
+                f"{logs['images_per_second']:,.0f} images/s",
+                flush=True,
+            )
@@ optimizer
+    # Horovod: N times the images per step, N times the learning rate; averaged gradients
-    optimizer = keras.optimizers.SGD(args.lr, args.momentum)
+    optimizer = keras.optimizers.SGD(args.lr * hvd.size(), args.momentum)
+    optimizer = hvd.DistributedOptimizer(optimizer, device_dense=chosen.device_dense)
@@ broadcast
-    callbacks = []
+    # Horovod: all ranks begin with the weights and the optimizer state of rank 0
+    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
@@ metrics
+    # Horovod: sums and counts of all ranks, before any callback reads the metrics
+    callbacks.append(hvd.callbacks.MetricAverageCallback())
     callbacks.append(EpochLine(batches))
@@ checkpoint
-    if args.checkpoint:
+    if args.checkpoint and hvd.rank() == 0:  # Horovod: one rank writes
@@ resume
-        model = keras.models.load_model(saved[-1])
+        # Horovod: with its optimizer wrapped again
+        model = hvd.load_model(saved[-1], device_dense=chosen.device_dense)
@@ resume
+    # Horovod: only rank 0 knows the first epoch; --lr times this number of ranks
+    first_epoch = hvd.broadcast_object(first_epoch, root_rank=0)
+    model.optimizer.learning_rate = args.lr * hvd.size()
+
     # Horovod: all ranks begin with the weights and the optimizer state of rank 0
"""
TORCH = """\
@@ init
+import horovod.torch as hvd
 import torch
 from torch import nn
@@ device
+from hvdlab.torch.device import rank_device
 from hvdlab.torch.recorder import Recorder
@@ device
-    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
+    chosen = rank_device(hvd)  # Horovod: its own GPU, a shared one, or the processor
+    device = chosen.device
@@ output
-        print(
-            f"epoch {epoch}  loss {loss:.3f}  held-out {accuracy:.3f}  {speed:,.0f} images/s",
-            flush=True,
-        )
+        if hvd.rank() == 0:  # Horovod: one rank prints
+            print(
+                f"epoch {epoch}  loss {loss:.3f}  held-out {accuracy:.3f}  {speed:,.0f} images/s",
+                flush=True,
+            )
@@ optimizer
+    # Horovod: N times the images per step, N times the learning rate
-    optimizer = torch.optim.SGD(model.parameters(), args.lr, args.momentum)
+    optimizer = torch.optim.SGD(model.parameters(), args.lr * hvd.size(), args.momentum)
@@ optimizer
+    # Horovod: gradients averaged over all ranks; after the move, which would discard its hooks,
+    # and before the state is loaded, because the new optimizer begins without one
+    optimizer = hvd.DistributedOptimizer(
+        optimizer, model.named_parameters(), compression=chosen.compression
+    )
     optimizer.load_state_dict(state)  # its momentum follows the weights to the device
@@ broadcast
+    # Horovod: all ranks begin with the weights and the optimizer state of rank 0. Weights
+    # last: an optimizer without a state gets it by a step, in which weight decay moves them.
+    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
+    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
+
     model.to(device)
@@ metrics
+    # Horovod: sums and counts of all ranks, so that each example counts once
+    total, count = hvd.allreduce(torch.tensor([total, count]), op=hvd.Sum).tolist()
     return total / count
@@ checkpoint
-        if args.checkpoint:
+        if args.checkpoint and hvd.rank() == 0:  # Horovod: one rank writes
@@ resume
+    # Horovod: only rank 0 knows the first epoch; --lr times this number of ranks
+    first_epoch = hvd.broadcast_object(first_epoch, root_rank=0)
+    optimizer.param_groups[0]["lr"] = args.lr * hvd.size()
+
     # Horovod: all ranks begin with the weights and the optimizer state of rank 0. Weights
"""


EDITS = {
    framework: ScriptEdits(LABS / f"fashion_mnist_{framework}.py", STEPS, BOTH + diff)
    for framework, diff in (("keras", KERAS), ("torch", TORCH))
}


def serial_script(framework: str) -> Path:
    """Return the path of the script that the lab begins with."""
    if framework not in EDITS:
        raise ValueError(f"framework must be keras or torch. Received: framework={framework!r}")
    return EDITS[framework].serial


def apply(path: str | Path, step: str, framework: str) -> None:
    """Make the edits of one step in a file.

    Args:
        path: The path of the script.
        step: One of STEPS.
        framework: "keras" or "torch".

    Raises:
        ValueError: The step does not fit the script, see `ScriptEdits.edited`.
    """
    EDITS[framework].apply(path, step)


def after(step: str | None, framework: str) -> str:
    """Return the script after all steps up to this one.

    Args:
        step: One of STEPS, or None for the serial script.
        framework: "keras" or "torch".
    """
    return EDITS[framework].after(step)


def diff(step: str, framework: str) -> str:
    """Return the edits of a step as a unified diff."""
    return EDITS[framework].diff(step)


def with_float16(script: str) -> str:
    """Return a finished script that sends its gradients as float16.

    The new argument replaces `compression=chosen.compression`, which ranks that share a GPU need. So run
    the result on CPUs.

    Args:
        script: The text of a script, with any call of DistributedOptimizer.

    Raises:
        ValueError: The script does not call hvd.DistributedOptimizer.
    """
    for node in ast.walk(ast.parse(script)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "hvd.DistributedOptimizer":
            if given := keyword(node, "compression"):
                same = "Compression." in ast.unparse(given)
                return script if same else _replaced(script, given, "hvd.Compression.fp16")
            lines = script.split("\n")
            row, column = _end_of_arguments(lines, node)
            added = ", " * bool(node.args or node.keywords) + "compression=hvd.Compression.fp16"
            lines[row - 1] = lines[row - 1][:column] + added + lines[row - 1][column:]
            return "\n".join(lines)
    raise ValueError("the script has no hvd.DistributedOptimizer(...) to give a compression to")


def _replaced(script: str, node: ast.expr, new: str) -> str:
    """Return a script with another text in place of one expression."""
    text = script.encode()  # columns of the tree are counted in bytes
    lines = text.splitlines(keepends=True)
    begin, end = (
        sum(map(len, lines[: line - 1])) + column
        for line, column in (
            (node.lineno, node.col_offset),
            (node.end_lineno, node.end_col_offset),
        )
    )
    return (text[:begin] + new.encode() + text[end:]).decode()


def _end_of_arguments(lines: list[str], call: ast.Call) -> tuple[int, int]:
    """Return line and column after a call's last argument and the brackets around it, before a comma."""
    # Columns of the tree are counted in bytes, those of tokens in characters.
    last_line = lines[call.end_lineno - 1].encode()
    closing = call.end_lineno, len(last_line[: call.end_col_offset - 1].decode())
    ignored = tokenize.NL, tokenize.COMMENT
    end = None
    for token in tokenize.generate_tokens(iter(f"{line}\n" for line in lines).__next__):
        if token.start >= closing:
            return end
        if token.type not in ignored and token.string != ",":
            end = token.end
