"""Calibration run of the grader: trains the assessment network alone and prints its rate."""

import json
import time

import horovod.torch as hvd
import torch
from torch.nn import functional as F

from hvdlab.data import Batches, load_cifar10
from hvdlab.torch.models import AssessmentNet, autocast

SECONDS = 8.0
BATCH_SIZE = 128
WARM_UP_STEPS = 5

hvd.init()  # only to begin together; nothing is exchanged
device = torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
data = load_cifar10()
batches = Batches(data.train_images, data.train_labels, BATCH_SIZE, augment=True)
model = AssessmentNet().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
images_seen = 0
for step, (images, labels) in enumerate(batches.epoch(0)):
    if step == WARM_UP_STEPS:
        ready = time.monotonic()
        hvd.barrier()
        began = time.monotonic()
    images, labels = torch.from_numpy(images).to(device), torch.from_numpy(labels).to(device)
    with autocast(device):
        loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    if step >= WARM_UP_STEPS:
        images_seen += len(images)
        if time.monotonic() - began > SECONDS:
            break
rate = images_seen / (time.monotonic() - began)
print(json.dumps({"ready": ready, "images_per_second": rate}), flush=True)
hvd.barrier()  # nobody leaves, and gives its core to the others, before all have measured
