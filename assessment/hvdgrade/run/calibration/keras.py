"""Calibration run of the grader: trains the given network alone and prints its rate."""

import json
import sys

import hvdlab.keras.horovod as hvd
from hvdlab.data import Batches, load_cifar10
from hvdlab.keras.device import rank_device
from hvdlab.keras.measure_speed import measure

seconds, batch_size = float(sys.argv[1]), int(sys.argv[2])

hvd.init()  # to begin and leave together; no gradients are exchanged
rank_device(hvd)  # a GPU whose memory it takes as it needs it, or the processor
data = load_cifar10()
batches = Batches(data.train_images, data.train_labels, batch_size, augment=True)
ready, rate = measure(batches, lambda: hvd.allreduce(0.0), seconds=seconds)
print(json.dumps({"ready": ready, "images_per_second": rate}), flush=True)
