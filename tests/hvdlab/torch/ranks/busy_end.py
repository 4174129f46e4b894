"""Train with DDP and Gloo on one busy core, and destroy the group before the wrapped network is freed.

Gloo's threads get hardly any time of the core. So the thread of the last collective still holds its tensor
when the wrapped network is freed, and without `--record` one of the five trainings hangs.
"""

import hashlib
import os
import sys
import threading

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.optim  # noqa: F401  imported later, its functions would keep the group
from torch.nn.parallel import DistributedDataParallel

from hvdlab.data import Batches
from hvdlab.torch.recorder import Recorder


def train():
    before = set(os.listdir("/proc/self/task"))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = torch.nn.Linear(4, 4)
    parallel = DistributedDataParallel(model)
    parallel(torch.ones(2, 4)).sum().backward()
    if "--record" in sys.argv:
        Recorder(model, Batches(np.ones((4, 4)), np.ones(4), 2)).epoch_end(0)
    for thread in set(os.listdir("/proc/self/task")) - before:
        os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))
    dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()


os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
long = ("sha256", b"", b"", 2**31 - 1)  # without Python's global lock
threading.Thread(target=hashlib.pbkdf2_hmac, args=long, daemon=True).start()
for _ in range(5):
    train()
print("ended", flush=True)
