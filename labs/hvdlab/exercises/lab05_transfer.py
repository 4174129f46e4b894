"""The last exercise of lab 5: convert scripts that import nothing of the course, judged from outside."""

from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from hvdlab.check import rank_report
from hvdlab.check.command import CheckError, check
from hvdlab.course.experiment import LABS, QUICK
from hvdlab.exercises import NotRun, NotYet, exercise, right
from hvdlab.exercises.harness.found_mistake import told
from hvdlab.exercises.harness.script_edits import ScriptEdits
from hvdlab.launch import LaunchError
from hvdlab.mistakes import Finding

SCRIPTS = ("torch_loop", "keras_fit", "gradient_tape", "trainer", "checkpoints")  # cases 1 to 5
RUN_IN_QUICK = {1}
SHARED = 0.02  # largest fraction of the inputs that two shards of 2,001 may share: they are padded
RUNS = {"checkpoints": [(), ("--epochs", 4)]}  # in one folder; of all others one without arguments
SERIAL = {name: LABS / "transfer" / f"{name}.py" for name in SCRIPTS}
DIFFS = {
    "torch_loop": """\
@@ horovod
+import horovod.torch as hvd
 import numpy as np
@@ horovod
-from torch.utils.data import DataLoader, TensorDataset
+from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
@@ horovod
+hvd.init()
 train, test = data(2001, 1), data(500, 2)
@@ horovod
-optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
-loader = DataLoader(train, BATCH_SIZE, shuffle=True)
+optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE * hvd.size(), momentum=0.9)
+optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
+hvd.broadcast_parameters(model.state_dict(), root_rank=0)
+sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
+loader = DataLoader(train, BATCH_SIZE, sampler=sampler)
@@ horovod
     model.train()
+    sampler.set_epoch(epoch)
@@ horovod
-    print(f"epoch {epoch}: accuracy {accuracy:.3f}")
+    if hvd.rank() == 0:
+        print(f"epoch {epoch}: accuracy {accuracy:.3f}")
""",
    "keras_fit": """\
@@ horovod
 from keras import layers

+import hvdlab.keras.horovod as hvd
+
@@ horovod
-train, test = data(2001, 1), data(500, 2)
+hvd.init()
+points, labels = data(2001, 1)
+train = points[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]
+test = data(500, 2)
@@ horovod
-optimizer = keras.optimizers.SGD(LEARNING_RATE, momentum=0.9)
+optimizer = keras.optimizers.SGD(LEARNING_RATE * hvd.size(), momentum=0.9)
+optimizer = hvd.DistributedOptimizer(optimizer)
@@ horovod
-callbacks = [keras.callbacks.EarlyStopping("val_loss", patience=2)]
+callbacks = [
+    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
+    hvd.callbacks.MetricAverageCallback(),
+    keras.callbacks.EarlyStopping("val_loss", patience=2),
+]
@@ horovod
-    verbose=2,
+    verbose=2 if hvd.rank() == 0 else 0,
""",
    "gradient_tape": """\
@@ horovod
 import tensorflow as tf

+import hvdlab.keras.horovod as hvd
+
@@ horovod
-train = data(2001, 1).shuffle(2001).batch(BATCH_SIZE, drop_remainder=True)
+hvd.init()
+train = data(2001, 1).shard(hvd.size(), hvd.rank())
+train = train.shuffle(2001).batch(BATCH_SIZE, drop_remainder=True)
@@ horovod
-optimizer = tf.keras.optimizers.SGD(LEARNING_RATE, momentum=0.9)
+hvd.broadcast_variables(model.variables, root_rank=0)
+optimizer = tf.keras.optimizers.SGD(LEARNING_RATE * hvd.size(), momentum=0.9)
+optimizer = hvd.DistributedOptimizer(optimizer)
@@ horovod
-    print(f"epoch {epoch}: loss {float(loss):.3f}")
+    if hvd.rank() == 0:
+        print(f"epoch {epoch}: loss {float(loss):.3f}")
""",
    "trainer": """\
@@ horovod
+import horovod.torch as hvd
 import numpy as np
@@ horovod
-from torch.utils.data import DataLoader, TensorDataset
+from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
@@ horovod
-        self.loader = DataLoader(train, batch_size, shuffle=True)
-        self.optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
+        self.sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
+        self.loader = DataLoader(train, batch_size, sampler=self.sampler)
+        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate * hvd.size())
+        self.optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
+        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
         self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.1, epochs)
@@ horovod
-            mean = self.train_epoch()
+            self.sampler.set_epoch(epoch)
+            mean = hvd.allreduce(torch.tensor(self.train_epoch()), name="loss").item()
@@ horovod
-            print(f"epoch {epoch}: loss {mean:.3f}")
+            if hvd.rank() == 0:
+                print(f"epoch {epoch}: loss {mean:.3f}")
@@ horovod
 def main():
+    hvd.init()
""",
    "checkpoints": """\
@@ horovod
+import horovod.torch as hvd
 import numpy as np
@@ horovod
-from torch.utils.data import DataLoader, TensorDataset
+from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
@@ horovod
-    loader = DataLoader(data(2001, 1), 32, shuffle=True)
+    hvd.init()
+    train = data(2001, 1)
+    sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
+    loader = DataLoader(train, 32, sampler=sampler)
@@ horovod
-    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
+    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
@@ horovod
-    if os.path.exists(args.checkpoint):
+    if hvd.rank() == 0 and os.path.exists(args.checkpoint):
@@ horovod
         first = state["epoch"] + 1
+    first = hvd.broadcast_object(first, root_rank=0)
+    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
+    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
+    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
@@ horovod
     for epoch in range(first, args.epochs):
+        sampler.set_epoch(epoch)
@@ horovod
-        print(f"epoch {epoch}: loss {loss.item():.3f}")
-        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
-        torch.save(state, args.checkpoint)
+        if hvd.rank() == 0:
+            print(f"epoch {epoch}: loss {loss.item():.3f}")
+            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
+            torch.save(state, args.checkpoint)
""",
}
EDITS = {name: ScriptEdits(SERIAL[name], ("horovod",), diff) for name, diff in DIFFS.items()}


@exercise
def check_transfer(case: int, script: str | Path) -> None:
    """Demand of a converted script what the rank report and `hvdlab check` see of it.

    Args:
        case: 1 to 5, the place of the script in SCRIPTS.
        script: the path of the converted script.
    """
    name, script = SCRIPTS[case - 1], Path(script).absolute()
    if QUICK and case not in RUN_IN_QUICK:
        raise NotRun(name)
    for number, rows in enumerate(reports_of(name, script, RUNS.get(name, [()]))):
        if problem := problem_of(rows):
            again = "after the script has resumed from its checkpoint, " if number else ""
            raise NotYet(f"{name}: {again}{problem}")
    right(f"{name}: one network on two ranks, each with its own half of the data.")


def reports_of(name: str, script: Path, runs: list[tuple[str, ...]]) -> list[list[rank_report.Row]]:
    """Return the rank reports of runs of a script on two ranks, one after the other in one folder.

    Args:
        name: what messages call the script.
        runs: the arguments of each run.

    Raises:
        NotYet: `hvdlab check` finds a mistake, or the script fails.
    """
    found: list[Finding] = []
    try:
        print(f"{script.name} runs on two ranks: first a few steps, then to its end.", flush=True)
        with TemporaryDirectory() as folder, chdir(folder):  # without the files of an earlier run
            found = check(script).findings
        print("The few steps are done.", flush=True)
        with TemporaryDirectory() as folder, chdir(folder):
            reports = [rank_report.report_of(script, *given) for given in runs]
    except (LaunchError, CheckError) as error:
        # A mistake that the few steps have shown may be why, such as two ranks that write one file.
        raise NotYet(f"{name}, {told(found[0])}" if found else f"{name}: {error}") from None
    rank_report.show(reports[-1], 2)
    if found:
        raise NotYet(f"{name}, {told(found[0])}")
    return reports


def problem_of(rows: list[rank_report.Row]) -> str:
    """Return what the report says against a script in which `hvdlab check` finds nothing, or ""."""
    if len(rows) < 2 or len({row.weights for row in rows}) > 1:
        return "the ranks did not train one network. Both need a training step."
    if rows[1].overlap is not None and rows[1].overlap > SHARED:
        return f"rank 1 reads {rows[1].overlap:.0%} of its inputs from the part of rank 0."
    if len({row.steps for row in rows}) > 1:
        return "the ranks make different numbers of steps."
    return ""
