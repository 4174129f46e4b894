"""Train a network on CIFAR-10 with Keras and Horovod, on any number of processes.

    mpirun -np 2 python assessment.py

One solution of the assessment: ../../keras/assessment.py, and the lines marked "Horovod".
"""

import argparse

import keras

import hvdlab.keras.horovod as hvd
from hvdlab.data import Batches, load_cifar10
from hvdlab.keras.data import dataset
from hvdlab.keras.device import rank_device
from hvdlab.keras.models import assessment_network, fast_policy
from hvdlab.keras.recorder import Recorder


def parse_args():
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3, help="passes over the training set")
    parser.add_argument("--batch-size", type=int, default=96, help="images in a step, per process")
    parser.add_argument(
        "--lr", type=float, default=0.175, help="largest learning rate, per process"
    )
    parser.add_argument("--warmup", type=float, default=0.45, help="epochs in which it rises")
    parser.add_argument("--decay", type=float, default=1.9, help="epochs in which it falls again")
    parser.add_argument("--momentum", type=float, default=0.9, help="Nesterov momentum")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    args = parse_args()
    hvd.init()  # Horovod: find the other processes
    # Horovod: a GPU for each process, a GPU that processes share, or the processor
    mine = rank_device(hvd)
    keras.utils.set_random_seed(args.seed)

    data = load_cifar10()
    batches = Batches(
        data.train_images,
        data.train_labels,
        args.batch_size,
        rank=hvd.rank(),  # Horovod: each process reads its own part, in equally many steps
        size=hvd.size(),
        seed=args.seed,
        augment=True,
    )
    # Horovod: each process evaluates its part of the held-out images.
    part = slice(hvd.rank(), None, hvd.size())

    model = assessment_network(dtype=fast_policy())
    learning_rate = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        # Horovod: N times the batch, N times the rate, after a warm-up
        warmup_target=args.lr * hvd.size(),
        warmup_steps=int(args.warmup * len(batches)),
        decay_steps=int(args.decay * len(batches)),
        alpha=0.02,
    )
    optimizer = keras.optimizers.SGD(learning_rate, momentum=args.momentum, nesterov=True)
    # Horovod: average the gradients
    optimizer = hvd.DistributedOptimizer(optimizer, device_dense=mine.device_dense)
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        dataset(batches),
        steps_per_epoch=len(batches),
        epochs=args.epochs,
        validation_data=(data.test_images[part], data.test_labels[part]),
        validation_batch_size=500,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # Horovod: begin with equal weights
            hvd.callbacks.MetricAverageCallback(),  # Horovod: metrics of all processes
            Recorder(batches),
        ],
        verbose=2 if hvd.rank() == 0 else 0,  # Horovod: one process speaks
    )


if __name__ == "__main__":
    main()
