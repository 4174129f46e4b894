"""Call `rendezvous`, add up the ranks, and print the variables as one line of JSON per rank."""

import json
import os

import torch
import torch.distributed as dist

from hvdlab.torch.process_group import rendezvous

rendezvous()
dist.init_process_group("gloo")
total = torch.tensor(1 + dist.get_rank())
dist.all_reduce(total)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
line = json.dumps({name: os.environ[name] for name in names} | {"total": total.item()})
print(line + "\n", end="", flush=True)  # at once: the other rank prints at the same moment
dist.destroy_process_group()
