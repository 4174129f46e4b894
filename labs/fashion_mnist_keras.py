"""Train a small network on Fashion-MNIST with Keras, on one process.

    python labs/fashion_mnist_keras.py --epochs 3

Lab 5 converts it to a script for any number of processes; fashion_mnist_torch.py is the same in PyTorch.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import keras
from keras import layers

from hvdlab.arguments import above_zero, folder_to_write, from_0_to_1, positive, whole_number
from hvdlab.data import Batches, DataError, load_fashion_mnist
from hvdlab.keras.data import dataset
from hvdlab.keras.recorder import Recorder
from hvdlab.record import launched_rank


def parse_args():
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--epochs", type=positive, default=3, help="passes over the training set")
    parser.add_argument("--batch-size", type=positive, default=64, help="images per step and rank")
    parser.add_argument(
        "--lr", type=above_zero, default=0.02, help="learning rate per rank, of a new run"
    )
    parser.add_argument("--momentum", type=from_0_to_1, default=0.9)
    parser.add_argument("--images", type=positive, default=10_000, help="to train on (of 60000)")
    parser.add_argument("--heldout", type=positive, default=10_000, help="held-out images")
    parser.add_argument("--seed", type=whole_number(0), default=1)
    parser.add_argument(
        "--checkpoint",
        type=folder_to_write,
        help="folder to keep checkpoints in, and to resume from",
    )
    return parser.parse_args()


def make_model():
    return keras.Sequential(
        [
            layers.Input((28, 28, 1), dtype="uint8"),
            layers.Rescaling(1 / 255),
            layers.Conv2D(16, 3, padding="same", activation="relu", name="conv1"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu", name="conv2"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu", name="hidden"),
            layers.Dense(10, name="output"),
        ]
    )


def main():
    args = parse_args()
    # Processes that mpirun starts draw different numbers, like those of any script that sets
    # no seed. Here they draw the same ones each time: seed + the number that mpirun gave to each.
    seed = args.seed + launched_rank()[0]
    keras.utils.set_random_seed(seed)

    try:
        data = load_fashion_mnist()
    except DataError as error:
        sys.exit(f"fashion_mnist_keras.py: {error}")
    images, labels = data.train_images[: args.images], data.train_labels[: args.images]
    batches = Batches(images, labels, args.batch_size, seed=seed)
    heldout = data.test_images[: args.heldout], data.test_labels[: args.heldout]

    model, first_epoch = make_model(), 0
    optimizer = keras.optimizers.SGD(args.lr, args.momentum)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)

    saved = sorted(Path(args.checkpoint).glob("epoch-*.keras")) if args.checkpoint else []
    if saved:
        model = keras.models.load_model(saved[-1])
        first_epoch = int(saved[-1].stem.removeprefix("epoch-")) + 1

    callbacks = []
    callbacks.append(EpochLine(batches))
    if args.checkpoint:
        callbacks.append(Checkpoint(args.checkpoint))
    callbacks.append(Recorder(batches))
    model.fit(
        dataset(batches, first_epoch),
        steps_per_epoch=len(batches),
        initial_epoch=first_epoch,
        epochs=args.epochs,
        validation_data=heldout,
        validation_batch_size=500,
        callbacks=callbacks,
        shuffle=False,  # `batches` does that
        verbose=0,
    )


class EpochLine(keras.callbacks.Callback):
    """Prints one line per epoch, and adds speed and learning rate to what is recorded of it."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.monotonic()

    def on_test_begin(self, logs=None):  # the epoch's training is over, its evaluation begins
        self.seconds = time.monotonic() - self.began

    def on_epoch_end(self, epoch, logs=None):
        logs["images_per_second"] = len(self.batches.examples_read(epoch)) / self.seconds
        logs["learning_rate"] = float(self.model.optimizer.learning_rate)
        print(
            f"epoch {epoch}  loss {logs['loss']:.3f}  held-out {logs['val_accuracy']:.3f}  "
            f"{logs['images_per_second']:,.0f} images/s",
            flush=True,
        )


class Checkpoint(keras.callbacks.Callback):
    """Saves the model and its optimizer after each epoch: the file appears whole or not at all."""

    def __init__(self, folder):
        super().__init__()
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def on_epoch_end(self, epoch, logs=None):
        self.model.save(self.folder / "part.keras")
        os.replace(self.folder / "part.keras", self.folder / f"epoch-{epoch:03d}.keras")


if __name__ == "__main__":
    main()
