"""Compare invented GPUs, then form a group at the same address; print one line of JSON per rank.

python group_device.py LIST_OF_RANK_0 LIST_OF_RANK_1     each as "GPU-a,GPU-b"
"""

import json
import os
import sys

import torch
import torch.distributed as dist

from hvdlab.torch import device, process_group

process_group.rendezvous()
rank = int(os.environ["RANK"])
device.gpus_of_torch = lambda: [gpu for gpu in sys.argv[1 + rank].split(",") if gpu]
process_group.nccl_version = lambda: 22907
torch.cuda.set_device = lambda device: None
chosen = [process_group.group_device(share) for share in (True, False)]
dist.init_process_group("gloo")
total, everyone = torch.tensor(1 + dist.get_rank()), [None] * dist.get_world_size()
dist.all_reduce(total)
dist.all_gather_object(everyone, rank)
found = {"rank": rank, "total": total.item(), "everyone": everyone}
found["chosen"] = [[str(one.device), one.ranks, one.backend] for one in chosen]
print(json.dumps(found) + "\n", end="", flush=True)
dist.destroy_process_group()
