"""The conversion of lab 11, step by step: what each step changes in the serial script to train with DDP.

EDITS.apply("notebooks/work/fashion_mnist_ddp.py", "init")     # make the edits of a step
print(EDITS.diff("init"))                                      # show them
"""

from hvdlab.course.experiment import LABS
from hvdlab.exercises.harness.script_edits import ScriptEdits

STEPS = (
    "init", "device", "sampler", "ddp", "download", "output", "metrics", "checkpoint", "resume",
)  # fmt: skip
DIFF = """\
@@ init
 import torch
+import torch.distributed as dist
 from torch import nn
@@ init
     args = parse_args()
+    # DDP: connect to the other ranks; NCCL sends between GPUs, Gloo between processors
+    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
@@ init
 if __name__ == "__main__":
     main()
+    # DDP: close the connections after main() has freed everything that uses them
+    dist.destroy_process_group()
@@ device
-    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
+    local_rank = int(os.environ["LOCAL_RANK"])  # DDP: the number of this rank on its machine
+    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
+    if device.type == "cuda":
+        torch.cuda.set_device(device)  # DDP: each rank has a GPU of its own
@@ sampler
 from torch.nn import functional as F
+from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
@@ sampler
-    batches = Batches(images, labels, args.batch_size, seed=seed)
+    # DDP: each rank reads its own shard, in equally many steps. The seed is the same on all ranks.
+    examples = TensorDataset(to_input(images, "cpu"), torch.tensor(labels).long())
+    sampler = DistributedSampler(examples, seed=args.seed)
+    batches = DataLoader(examples, args.batch_size, sampler=sampler)
@@ sampler
-        for x, y in batches.epoch(epoch):
+        sampler.set_epoch(epoch)  # DDP: another order, and other shards, in each epoch
+        for x, y in batches:
@@ sampler
-            loss = F.cross_entropy(model(to_input(x, device)), torch.from_numpy(y).to(device))
+            loss = F.cross_entropy(model(x.to(device)), y.to(device))
@@ sampler
-        read = len(batches.examples_read(epoch))
+        read = len(sampler)
@@ sampler
-from hvdlab.data import Batches, DataError, load_fashion_mnist
+from hvdlab.data import DataError, load_fashion_mnist
@@ ddp
 from torch.nn import functional as F
+from torch.nn.parallel import DistributedDataParallel
 from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
@@ ddp
-    optimizer = torch.optim.SGD(model.parameters(), args.lr, args.momentum)
+    # DDP: N times the images per step, so N times the learning rate
+    rate = args.lr * dist.get_world_size()
+    optimizer = torch.optim.SGD(model.parameters(), rate, args.momentum)
@@ ddp
+    # DDP: sends rank 0's weights to all ranks now, and averages the gradients in every backward pass
+    parallel = DistributedDataParallel(model)
     recorder = Recorder(model, batches)
@@ ddp
-            loss = F.cross_entropy(model(x.to(device)), y.to(device))
+            loss = F.cross_entropy(parallel(x.to(device)), y.to(device))
@@ download
+    # DDP: local rank 0 of each machine loads first, and the other ranks of the machine wait for it
+    if local_rank != 0:
+        dist.barrier()
     try:
         data = load_fashion_mnist()
     except DataError as error:
         sys.exit(f"fashion_mnist_torch.py: {error}")
+    if local_rank == 0:
+        dist.barrier()
@@ output
-        print(
-            f"epoch {epoch}  loss {loss:.3f}  held-out {accuracy:.3f}  {speed:,.0f} images/s",
-            flush=True,
-        )
+        if dist.get_rank() == 0:  # DDP: one rank prints
+            print(
+                f"epoch {epoch}  loss {loss:.3f}  held-out {accuracy:.3f}  {speed:,.0f} images/s",
+                flush=True,
+            )
@@ metrics
+    # DDP: each rank evaluates every N-th held-out image, beginning with its own number
+    mine = slice(dist.get_rank(), args.heldout, dist.get_world_size())
-    heldout = data.test_images[: args.heldout], data.test_labels[: args.heldout]
+    heldout = data.test_images[mine], data.test_labels[mine]
@@ metrics
-        loss = mean(total, read)
+        loss = mean(total, read, device)
@@ metrics
-        accuracy = mean(count_right(model, *heldout, device), len(heldout[1]))
+        accuracy = mean(count_right(model, *heldout, device), len(heldout[1]), device)
@@ metrics
-def mean(total, count):
-    return total / count
+def mean(total, count, device):
+    # DDP: sums and counts of all ranks, so that each example counts once
+    both = torch.tensor([total, count], dtype=torch.float64, device=device)
+    dist.all_reduce(both)
+    total, count = both.tolist()
+    return total / count
@@ checkpoint
-        if args.checkpoint:
+        if args.checkpoint and dist.get_rank() == 0:  # DDP: one rank writes
@@ checkpoint
     folder.mkdir(parents=True, exist_ok=True)
+    # DDP: the model, and not its wrapper, which would put "module." before every name
@@ resume
-    if saved:
-        state = torch.load(saved[-1], map_location="cpu", weights_only=True)
-        model.load_state_dict(state["model"])
-        optimizer.load_state_dict(state["optimizer"])
-        first_epoch = int(saved[-1].stem.removeprefix("epoch-")) + 1
+    # DDP: rank 0 reads the file and sends its content to all: DDP sends weights, but no momentum
+    found = [None, 0]
+    if saved and dist.get_rank() == 0:
+        found = [torch.load(saved[-1], map_location="cpu", weights_only=True)]
+        found.append(int(saved[-1].stem.removeprefix("epoch-")) + 1)
+    dist.broadcast_object_list(found, src=0)
+    state, first_epoch = found
+    if state:
+        model.load_state_dict(state["model"])
+        optimizer.load_state_dict(state["optimizer"])
+        optimizer.param_groups[0]["lr"] = args.lr * dist.get_world_size()
"""
EDITS = ScriptEdits(LABS / "fashion_mnist_torch.py", STEPS, DIFF)
