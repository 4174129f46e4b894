"""Calibration run of the grader: trains the assessment network alone and prints its rate."""

import json
import sys

import tensorflow as tf

import hvdlab.keras.horovod as hvd
from hvdlab.data import Batches, load_cifar10
from hvdlab.keras.throughput import measure

seconds, batch_size = float(sys.argv[1]), int(sys.argv[2])

hvd.init()  # to begin and leave together; no gradients are exchanged
if gpus := tf.config.list_physical_devices("GPU"):
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
data = load_cifar10()
batches = Batches(data.train_images, data.train_labels, batch_size, augment=True)
ready, rate = measure(batches, lambda: hvd.allreduce(0.0), seconds=seconds)
print(json.dumps({"ready": ready, "images_per_second": rate}), flush=True)
