"""Train the assessment network on CIFAR-10 with the optimizer of your choice, on any number of ranks.

    mpirun -np 2 python labs/cifar10_keras.py --optimizer lamb
    python labs/cifar10_keras.py --optimizer lars --batch-size 1024 --epochs 8

After each epoch rank 0 prints the accuracies that the assessment measures. At the end it prints when their
target was reached: 0.75 on training images and 0.70 on held-out ones, in two consecutive epochs.
cifar10_torch.py is the same in PyTorch.
"""

import argparse
import sys
import time

import keras

import hvdlab.keras.horovod as hvd
from hvdlab.arguments import above_zero, non_negative, positive, whole_number
from hvdlab.data import Batches, DataError, load_cifar10
from hvdlab.keras import LAMB, LARS, NovoGrad
from hvdlab.keras.data import dataset
from hvdlab.keras.device import rank_device
from hvdlab.keras.models import AssessmentNet, fast_policy
from hvdlab.keras.schedules import Schedule
from hvdlab.schedules import cosine_decay, gradual_warmup

# name: (learning rate for 192 images per step, function of the rate)
OPTIMIZERS = {
    "sgd": (0.35, lambda rate: keras.optimizers.SGD(rate, momentum=0.9, nesterov=True)),
    "lars": (0.5, lambda rate: LARS(rate, trust_coefficient=0.02, nesterov=True)),
    "larc": (0.35, lambda rate: LARS(rate, clip=True, nesterov=True)),
    "lamb": (0.02, LAMB),
    "novograd": (0.03, NovoGrad),
}


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    parser.add_argument("--epochs", type=positive, default=4, help="passes over the training set")
    parser.add_argument("--batch-size", type=positive, default=96, help="images per step and rank")
    parser.add_argument(
        "--lr", type=above_zero, help="largest learning rate, for the batch of all ranks"
    )
    parser.add_argument(
        "--warmup", type=non_negative, default=0.45, help="epochs in which the learning rate rises"
    )
    parser.add_argument("--images", type=positive, help="train on only the first so many images")
    parser.add_argument("--seed", type=whole_number(0), default=1)
    args = parser.parse_args()
    if args.warmup >= args.epochs:  # it would rise to the learning rate of the last step, 0
        parser.error(
            f"argument --warmup: expected less than --epochs {args.epochs}, got {args.warmup:g}"
        )
    return args


class Target(keras.callbacks.Callback):
    """Measure both accuracies over all ranks after each epoch, and note when the target is reached."""

    def __init__(self, data):
        super().__init__()
        mine = slice(hvd.rank(), None, hvd.size())
        self.train = data.train_images[:10_000][mine], data.train_labels[:10_000][mine]
        self.heldout = data.test_images[mine], data.test_labels[mine]
        self.reached, self.before, self.started = None, False, time.monotonic()

    def on_epoch_end(self, epoch, logs=None):
        train, heldout = self.accuracy(*self.train), self.accuracy(*self.heldout)
        good, seconds = train >= 0.75 and heldout >= 0.70, time.monotonic() - self.started
        if good and self.before and self.reached is None:
            self.reached = f"target reached after epoch {epoch}, {seconds:.1f} s"
        self.before = good
        if hvd.rank() == 0:
            print(
                f"epoch {epoch}  loss {logs['loss']:.3f}  train {train:.3f}  "
                f"held-out {heldout:.3f}  {seconds:.1f} s",
                flush=True,
            )

    def accuracy(self, images, labels):
        """Return the fraction of the images of all ranks that the model classifies right."""
        logits = self.model.predict(images, batch_size=500, verbose=0)
        right = (logits.argmax(1) == labels).sum()
        right, count = hvd.allreduce([float(right), float(len(labels))], op=hvd.Sum)
        return float(right / count)


def main():
    args = parse_args()
    try:
        data = load_cifar10()
    except DataError as error:
        sys.exit(f"cifar10_keras.py: {error}")
    hvd.init()
    mine = rank_device(hvd)  # before TensorFlow computes anything
    keras.utils.set_random_seed(args.seed + hvd.rank())  # the broadcast makes the models equal

    batches = Batches(
        data.train_images[: args.images],
        data.train_labels[: args.images],
        args.batch_size,
        rank=hvd.rank(),
        size=hvd.size(),
        seed=args.seed,
        augment=True,
    )

    rate, make_optimizer = OPTIMIZERS[args.optimizer]
    steps = args.epochs * len(batches)
    peak = args.lr or rate * args.batch_size * hvd.size() / 192  # linear scaling
    schedule = gradual_warmup(
        cosine_decay(peak, steps), warmup_steps=round(args.warmup * len(batches)), start=0.0
    )
    model = AssessmentNet(dtype=fast_policy())
    model.compile(
        # The optimizer must see the averaged gradient, because the norm of a mean is not the mean of norms.
        optimizer=hvd.DistributedOptimizer(
            make_optimizer(Schedule(schedule, steps)), device_dense=mine.device_dense
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    target = Target(data)
    model.fit(
        dataset(batches),
        steps_per_epoch=len(batches),
        epochs=args.epochs,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            target,
        ],
        verbose=0,
    )
    if hvd.rank() == 0:
        print(f"{args.optimizer}, seed {args.seed}: {target.reached or 'target not reached'}")


if __name__ == "__main__":
    main()
