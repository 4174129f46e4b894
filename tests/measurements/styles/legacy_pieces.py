"""Pieces of a script with Keras 2 (`tf_keras`) and Horovod's own Keras module."""

from tests.measurements.styles.keras_pieces import FLIP_TF, MIX_TF, NAMES
from tests.measurements.styles.part import Part, Pieces, Style

NETWORK = '''\
def network(dtype):
    """Return the network of the assessment, rebuilt with Keras 2."""

    def block(x, filters, number, pool=True):
        name = f"conv{number}"
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False, name=name, dtype=dtype)(x)
        x = layers.MaxPooling2D(dtype=dtype)(x) if pool else x
        name = f"norm{number}"
        x = layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=name, dtype=dtype)(x)
        return layers.ReLU(dtype=dtype)(x)

    std = np.array(PIXEL_STD)
    images = layers.Input((32, 32, 3))
    x = layers.Rescaling(1 / 255 / std, -np.array(PIXEL_MEAN) / std, dtype=dtype)(images)
    x = layers.Conv2D(
        32, 4, strides=2, padding="same", activation="relu", name="conv1", dtype=dtype
    )(x)
    x = block(block(x, 64, 2), 128, 3)
    x = layers.GlobalMaxPooling2D(dtype=dtype)(block(x, 256, 4, pool=False))
    logits = layers.Dense(10, name="linear", dtype=dtype)(x)
    return tf.keras.Model(images, layers.Rescaling(1 / 4, dtype=dtype)(logits))
'''
RECORD = '''\
class Record(tf.keras.callbacks.Callback):
    """Writes the weights of this rank after each epoch, as the lab's Recorder does for Keras 3."""

    def __init__(self, batches):
        super().__init__()
        self.batches, self.record = batches, RunRecord()

    def on_epoch_end(self, epoch, logs=None):
        arrays = {}
        for variable in self.model.variables:
            layer, kind = variable.name.removesuffix(":0").split("/")
            axes = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}[len(variable.shape)]
            array = variable.numpy().transpose(axes).astype(np.float32)
            arrays[f"{layer}.{KINDS[kind]}"] = np.ascontiguousarray(array)
        read = self.batches.examples_read(epoch)
        self.record.write(
            epoch,
            lambda file: np.savez(file, examples_read=read, **arrays),
            steps=len(self.batches),
        )
'''
KINDS = """\
layers = tf.keras.layers
KINDS = {
    "kernel": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
"""
SMOOTHED = '''\
def smoothed(labels, logits):
    """Cross-entropy with label smoothing."""
    # Keras 2 passes labels of shape (batch, 1).
    wanted = tf.one_hot(tf.reshape(labels, [-1]), 10, dtype=logits.dtype)
    return tf.keras.losses.categorical_crossentropy(
        wanted, logits, from_logits=True, label_smoothing=0.1
    )
'''
TRIANGLE = '''\
# DistributedOptimizer copies the optimizer by its configuration.
@tf.keras.utils.register_keras_serializable("assessment")
class Triangle(tf.keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises to a peak on a straight line, and falls again."""

    def __init__(self, peak, rise, total):
        self.peak, self.rise, self.total = peak, rise, total

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        rising, falling = (step + 1) / self.rise, (self.total - step) / (self.total - self.rise)
        return self.peak * tf.maximum(0.01, tf.minimum(rising, falling))

    def get_config(self):
        return {"peak": self.peak, "rise": self.rise, "total": self.total}
'''
SCHEDULES = {
    "warmup": "$schedule = Triangle(rate, max(1, round(0.4 * updates)), total)\n",
    "step": """\
$schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay(
    [updates // 4, total // 2, 3 * total // 4], [rate / 4, rate, rate / 5, rate / 25]
)
""",
    "cosine": """\
$schedule = tf.keras.optimizers.schedules.CosineDecay(
    initial_learning_rate=0.0,
    warmup_target=rate,
    warmup_steps=round(0.4 * updates),
    decay_steps=total - round(0.4 * updates),
    alpha=0.02,
)
""",
    "onecycle": "$schedule = Triangle(rate, max(1, total // 4), total)\n",
}
OPTIMIZERS = {
    "sgd": ("$lr * $size", "tf.keras.optimizers.SGD($schedule, momentum=0.9{more})"),
    "nesterov": (
        "$lr * $size",
        "tf.keras.optimizers.SGD($schedule, momentum=0.9, nesterov=True{more})",
    ),
    "adamw": ("$lr * math.sqrt($size)", "tf.keras.optimizers.AdamW($schedule{more})"),
}
MORE = {"decay": ", weight_decay=5e-4", "ema": ", use_ema=True, ema_momentum=0.98"}
WRAPPED = {
    "accumulate2": ", backward_passes_per_step=2, average_aggregated_gradients=True",
    "accumulate4": ", backward_passes_per_step=4, average_aggregated_gradients=True",
    "fused": ", num_groups=1",
    "fp16": ", compression=hvd.Compression.fp16",
}


def legacy_pieces(style: Style) -> Pieces:
    """Return the pieces of a script with legacy Keras, except for its data."""
    pieces = Pieces(names=dict(NAMES), finish="hvd.shutdown()")
    pieces.settings.append('os.environ["TF_USE_LEGACY_KERAS"] = "1"')
    pieces.imports += [
        *("import numpy as np", "import tensorflow as tf"),
        *("import horovod.tensorflow.keras as hvd", "from hvdlab.keras.models import fast_policy"),
        "from hvdlab.record import PIXEL_MEAN, PIXEL_STD, RunRecord",
    ]
    pieces.start.append(KINDS)
    pieces.helpers += [NETWORK, RECORD]
    pieces.parts.append(Part("start", "hvd.init()\ntf.keras.utils.set_random_seed($seed)\n"))
    return pieces


def add_legacy_training(style: Style, pieces: Pieces) -> None:
    """Add stream, model, optimizer and `fit`."""
    code = "$stream = dataset($batches)\n"
    if style.data == "tfdata":
        code = "$stream = $batches.dataset($rank, $size)\n"
    else:
        pieces.imports.append("from hvdlab.keras.data import dataset")
    changes = {"own": (FLIP_TF, "flip_and_crop"), "mixup": (MIX_TF, "mix")}
    if style.regularisation in changes:
        helper, name = changes[style.regularisation]
        pieces.helpers.append(helper)
        code += f"$stream = $stream.map({name})\n"
    pieces.parts.append(Part("make_stream", code))
    pieces.parts.append(Part("make_model", "$model = network(fast_policy())\n"))

    rate, made = OPTIMIZERS[style.optimizer]
    pieces.imports += ["import math"] * ("math" in rate)
    pieces.helpers += [TRIANGLE] * (style.schedule in ("warmup", "onecycle"))
    made = made.format(more=MORE.get(style.regularisation, ""))
    pieces.parts.append(
        Part(
            "make_optimizer",
            f"rate = {rate}\nupdates = len($batches)\ntotal = $epochs * updates\n"
            f"{SCHEDULES[style.schedule]}$optimizer = {made}\n"
            f"$optimizer = hvd.DistributedOptimizer($optimizer{WRAPPED.get(style.exchange, '')})\n",
        )
    )
    loss = {
        "smoothing": "smoothed",
        "mixup": "tf.keras.losses.CategoricalCrossentropy(from_logits=True)",
    }.get(style.regularisation, "tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)")
    pieces.helpers += [SMOOTHED] * (style.regularisation == "smoothing")
    pieces.parts.append(
        Part(
            "compile_model",
            f'$model.compile(\n    optimizer=$optimizer, loss={loss}, metrics=["accuracy"]\n)\n',
        )
    )
    labels = "$test_labels[mine]"
    if style.regularisation == "mixup":
        labels = "np.eye(10)[$test_labels[mine]]"
    pieces.train = Part(
        "train",
        "mine = slice($rank, None, $size)\n"
        "$model.fit(\n    $stream,\n    steps_per_epoch=len($batches),\n    epochs=$epochs,\n"
        f"    validation_data=($test_images[mine], {labels}),\n"
        "    validation_batch_size=500,\n"
        "    callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), Record($batches)],\n"
        "    verbose=2 if $rank == 0 else 0,\n)\n",
    )
