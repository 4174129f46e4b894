"""Calibration run of the grader: trains the given network alone and prints its rate."""

import json
import sys

import horovod.torch as hvd

from hvdlab.data import Batches, load_cifar10
from hvdlab.torch.device import rank_device
from hvdlab.torch.measure_speed import measure

seconds, batch_size = float(sys.argv[1]), int(sys.argv[2])

hvd.init()  # to begin and leave together; no gradients are exchanged
device = rank_device(hvd).device
data = load_cifar10()
batches = Batches(data.train_images, data.train_labels, batch_size, augment=True)
ready, rate = measure(batches, hvd.barrier, seconds=seconds, device=device)
print(json.dumps({"ready": ready, "images_per_second": rate}), flush=True)
