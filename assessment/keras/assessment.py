"""Train a network on CIFAR-10 with Keras, on one process.

    python assessment.py

Your task: make `mpirun -np N python assessment.py` reach the target in time, see ../README.md.
"""

import argparse

import keras

from hvdlab.data import Batches, load_cifar10
from hvdlab.keras.data import dataset
from hvdlab.keras.models import assessment_network, fast_policy
from hvdlab.keras.recorder import Recorder


def parse_args():
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3, help="passes over the training set")
    parser.add_argument("--batch-size", type=int, default=128, help="images in a step")
    parser.add_argument("--lr", type=float, default=0.25, help="largest learning rate")
    parser.add_argument("--warmup", type=float, default=0.45, help="epochs in which it rises")
    parser.add_argument("--decay", type=float, default=1.9, help="epochs in which it falls again")
    parser.add_argument("--momentum", type=float, default=0.9, help="Nesterov momentum")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    args = parse_args()
    keras.utils.set_random_seed(args.seed)

    data = load_cifar10()
    batches = Batches(
        data.train_images, data.train_labels, args.batch_size, seed=args.seed, augment=True
    )

    model = assessment_network(dtype=fast_policy())
    learning_rate = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        warmup_target=args.lr,
        warmup_steps=int(args.warmup * len(batches)),
        decay_steps=int(args.decay * len(batches)),
        alpha=0.02,
    )
    optimizer = keras.optimizers.SGD(learning_rate, momentum=args.momentum, nesterov=True)
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        dataset(batches),
        steps_per_epoch=len(batches),
        epochs=args.epochs,
        validation_data=(data.test_images, data.test_labels),
        validation_batch_size=500,
        callbacks=[Recorder(batches)],
        verbose=2,
    )


if __name__ == "__main__":
    main()
