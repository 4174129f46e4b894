"""Pieces of a script that trains with Keras: `fit`, an own `train_step`, a GradientTape, or PyTorch below."""

from tests.measurements.styles.part import Part, Pieces, Style, indented

NAMES = {"rank": "hvd.rank()", "size": "hvd.size()", "local_rank": "hvd.local_rank()"}
BINDING = "import hvdlab.keras.horovod as hvd"
OWN_STEP = '''\
class DataParallel(keras.Model):
    """A network whose training step averages the gradients of all ranks."""

    def train_step(self, data):
        images, labels = data
        with tf.GradientTape() as tape:
            logits = self(images, training=True)
            loss = self.compute_loss(x=images, y=labels, y_pred=logits)
        gradients = tape.gradient(loss, self.trainable_variables)
@AVERAGE@
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=tf.shape(images)[0])
            else:
                metric.update_state(labels, logits)
        return {metric.name: metric.result() for metric in self.metrics}
'''
AVERAGED = {  # from `gradients` of a rank to those of all
    "each": """\
gradients = [
    hvd.allreduce(gradient, op=hvd.Average, name=f"gradient_{i}")
    for i, gradient in enumerate(gradients)
]""",
    "fp16": """\
gradients = [
    hvd.allreduce(
        gradient, op=hvd.Average, name=f"gradient_{i}", compression=hvd.Compression.fp16
    )
    for i, gradient in enumerate(gradients)
]""",
    "fused": 'gradients = hvd.grouped_allreduce(gradients, op=hvd.Average, name="gradients")',
    "scattered": """\
flat = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], axis=0)
mine = hvd.reducescatter(flat, op=hvd.Average, name="slices")
flat = hvd.allgather(mine, name="averages")
sizes = [gradient.shape.num_elements() for gradient in gradients]
parts = zip(tf.split(flat, sizes), gradients)
gradients = [tf.reshape(part, gradient.shape) for part, gradient in parts]""",
}
SMOOTHED = '''\
def smoothed(labels, logits):
    """Cross-entropy with label smoothing."""
    wanted = keras.ops.one_hot(labels, 10, dtype=logits.dtype)
    return keras.losses.categorical_crossentropy(
        wanted, logits, from_logits=True, label_smoothing=0.1
    )
'''
LOSSES = {
    "smoothing": "smoothed",
    "mixup": "keras.losses.CategoricalCrossentropy(from_logits=True)",
}
LOSS = "keras.losses.SparseCategoricalCrossentropy(from_logits=True)"
FLIP_TF = '''\
def flip_and_crop(images, labels):
    """Mirror images at random, and cut them out of larger ones at a random place."""
    images = tf.image.random_flip_left_right(images)
    padded = tf.pad(images, [[0, 0], [2, 2], [2, 2], [0, 0]], mode="REFLECT")
    top, left = tf.unstack(tf.random.uniform([2], 0, 5, tf.int32))
    return padded[:, top : top + 32, left : left + 32], labels
'''
MIX_TF = '''\
def mix(images, labels):
    """Mix the images in pairs, and their labels (mixup)."""
    part = 1 - 0.3 * tf.random.uniform([])
    mixed = part * tf.cast(images, tf.float32) + (1 - part) * tf.cast(images[::-1], tf.float32)
    wanted = part * tf.one_hot(labels, 10) + (1 - part) * tf.one_hot(labels[::-1], 10)
    return tf.cast(mixed, tf.uint8), wanted
'''
FOREVER = '''\
def forever(batches):
    """Yield the batches of all epochs, as `fit` reads them."""
    for epoch in itertools.count():
        yield from batches.epoch(epoch)
'''
FOREVER_FLIPPED = '''\
def forever(batches, seed):
    """Yield the batches of all epochs, with images that are mirrored and moved at random."""
    random = np.random.default_rng(seed)
    for epoch in itertools.count():
        for images, labels in batches.epoch(epoch):
            mirrored = random.random((len(images), 1, 1, 1)) < 0.5
            images = np.where(mirrored, images[:, :, ::-1], images)
            yield np.roll(images, random.integers(-2, 3, size=2), axis=(1, 2)), labels
'''
FOREVER_MIXED = '''\
def forever(batches, seed):
    """Yield the batches of all epochs, with images that are mixed in pairs (mixup)."""
    random = np.random.default_rng(seed)
    for epoch in itertools.count():
        for images, labels in batches.epoch(epoch):
            part, wanted = random.beta(0.2, 0.2), np.eye(10, dtype=np.float32)[labels]
            mixed = part * images + (1 - part) * images[::-1]
            yield mixed.astype(np.uint8), part * wanted + (1 - part) * wanted[::-1]
'''
OPTIMIZERS = {
    "sgd": "keras.optimizers.SGD($schedule, momentum=0.9{more})",
    "nesterov": "keras.optimizers.SGD($schedule, momentum=0.9, nesterov=True{more})",
    "adamw": "keras.optimizers.AdamW($schedule{more})",
    "lars": "LARS($schedule, trust_coefficient=0.02{more})",
    "lamb": "LAMB($schedule{more})",
}
MORE = {
    "decay": ", weight_decay=5e-4",
    "clipping": ", global_clipnorm=1.0",
    "ema": ", use_ema=True, ema_momentum=0.98",
}
RATES = {
    "sgd": "$lr * $size",
    "nesterov": "$lr * $size",
    "lars": "$lr * $size",
    "adamw": "$lr * math.sqrt($size)",
    "lamb": "$lr * math.sqrt($size)",
}
SCHEDULES = {
    "warmup": """\
warmup = max(1, round(0.4 * updates))
falling = polynomial_decay(rate, total, power=1, end=0.02 * rate)
$schedule = Schedule(gradual_warmup(falling, warmup, start=0.0), total)
""",
    "step": """\
falling = step_decay(rate, [round(0.5 * total), round(0.75 * total)], 0.2)
$schedule = Schedule(gradual_warmup(falling, max(1, updates // 3), start=rate / 10), total)
""",
    "cosine": """\
$schedule = keras.optimizers.schedules.CosineDecay(
    initial_learning_rate=0.0,
    warmup_target=rate,
    warmup_steps=round(0.4 * updates),
    decay_steps=total - round(0.4 * updates),
    alpha=0.02,
)
""",
    "onecycle": """\
$schedule = Schedule(one_cycle(rate, total, 0.25, start=rate / 25, end=rate / 100), total)
""",
}
OF_SCHEDULES = {
    "warmup": "gradual_warmup, polynomial_decay",
    "step": "gradual_warmup, step_decay",
    "onecycle": "one_cycle",
}
POLICY = """\
# 16-bit numbers. Processors compute the gradients in float16 hundreds of times slower than in bfloat16.
policy = "mixed_bfloat16"
"""


def keras_pieces(style: Style) -> Pieces:
    """Return the pieces of a Keras script, except for its data."""
    pieces = Pieces(names=dict(NAMES), finish="hvd.shutdown()")
    if style.framework == "keras_torch":
        pieces.settings.append('os.environ["KERAS_BACKEND"] = "torch"')
    pieces.imports += [
        *("import keras", "import numpy as np"),
        "from hvdlab.keras.models import assessment_network, fast_policy",
        "from hvdlab.keras.recorder import Recorder",
    ]
    by_hand = style.framework == "keras_step" and style.accumulated == 1
    pieces.imports.append("import horovod.tensorflow as hvd" if by_hand else BINDING)
    start = "hvd.init()\nkeras.utils.set_random_seed($seed)\n"
    pieces.parts.append(Part("start", start))
    return pieces


def add_training(style: Style, pieces: Pieces) -> None:
    """Add the stream of batches, model, optimizer and training; the data comes before."""
    pieces.parts.append(Part("make_stream", stream(style, pieces)))
    pieces.parts.append(Part("make_model", model(style, pieces)))
    pieces.parts.append(Part("make_optimizer", optimizer(style, pieces)))
    if style.framework == "keras_tape":
        from tests.measurements.styles.tape_pieces import add_tape

        return add_tape(style, pieces)
    if style.framework == "keras_step":
        average = AVERAGED.get(style.exchange)
        own = OWN_STEP.replace("@AVERAGE@\n", indented(average, 2) + "\n" if average else "")
        pieces.helpers.append(own)
        pieces.imports.append("import tensorflow as tf")
    pieces.parts.append(Part("compile_model", compilation(style, pieces)))
    pieces.train = Part("train", fit(style))


def stream(style: Style, pieces: Pieces) -> str:
    """Return the statements that assign `$stream`, an endless stream of batches."""
    changed = style.regularisation in ("own", "mixup")
    if style.framework == "keras_torch":
        pieces.imports.append("import itertools")
        kinds = {"own": FOREVER_FLIPPED, "mixup": FOREVER_MIXED}
        pieces.helpers.append(kinds.get(style.regularisation, FOREVER))
        return f"$stream = forever($batches{', $seed + $rank' if changed else ''})\n"
    code = "$stream = dataset($batches)\n"
    if style.data == "tfdata":
        code = "$stream = $batches.dataset($rank, $size)\n"
        pieces.imports.append("import tensorflow as tf")
    else:
        pieces.imports.append("from hvdlab.keras.data import dataset")
    if changed:
        pieces.imports.append("import tensorflow as tf")
        pieces.helpers.append(FLIP_TF if style.regularisation == "own" else MIX_TF)
        name = "flip_and_crop" if style.regularisation == "own" else "mix"
        code += f"$stream = $stream.map({name})\n"
    return code


def model(style: Style, pieces: Pieces) -> str:
    """Return the statements that make the network in the precision of the style."""
    policy, before = {
        "float32": ("", ""),
        "bfloat16": ("dtype=fast_policy()", ""),
        "scaled_bfloat16": ("dtype=policy", POLICY),
    }[style.precision]
    if style.precision != "bfloat16":
        pieces.imports = [
            line.replace("assessment_network, fast_policy", "assessment_network")
            for line in pieces.imports
        ]
    if style.framework != "keras_step":
        return f"{before}$model = assessment_network({policy})\n"
    return (
        f"{before}network = assessment_network({policy})\n"
        "$model = DataParallel(network.inputs, network.outputs)\n"
    )


def optimizer(style: Style, pieces: Pieces) -> str:
    """Return the statements that make the schedule and the optimizer."""
    # Keras' schedules count batches, also where gradients are accumulated, except in an own loop.
    own_loop = style.framework == "keras_tape" and style.accumulated > 1
    rate = RATES[style.optimizer]
    pieces.imports += ["import math"] * ("math" in rate)
    code = f"rate = {rate}\n"
    if own_loop:
        code += f"total = $epochs * len($batches) // {style.accumulated}\n"
        code += "updates = total // $epochs\n" * ("updates" in SCHEDULES[style.schedule])
    else:
        code += "updates = len($batches)\ntotal = $epochs * updates\n"
    code += SCHEDULES[style.schedule]
    if style.schedule != "cosine":
        pieces.imports += [
            f"from hvdlab.schedules import {OF_SCHEDULES[style.schedule]}",
            "from hvdlab.keras.schedules import Schedule",
        ]
    if style.optimizer in ("lars", "lamb"):
        pieces.imports.append(f"from hvdlab.keras.optimizers import {style.optimizer.upper()}")
    more = MORE.get(style.regularisation, "")
    code += f"$optimizer = {OPTIMIZERS[style.optimizer].format(more=more)}\n"
    if style.precision == "scaled_bfloat16":
        code += "$optimizer = keras.optimizers.LossScaleOptimizer($optimizer)\n"
    wrapped = style.framework in ("keras_fit", "keras_torch")
    if wrapped or (style.framework == "keras_step" and style.accumulated > 1):
        options = {
            "accumulate2": ",\n    backward_passes_per_step=2,\n    average_aggregated_gradients=True,\n",
            "accumulate4": ",\n    backward_passes_per_step=4,\n    average_aggregated_gradients=True,\n",
            "fused": ", groups=2",
            "fp16": ", compression=hvd.Compression.fp16",
            "accumulate4_fp16": (
                ",\n    backward_passes_per_step=4,\n    average_aggregated_gradients=True,"
                "\n    compression=hvd.Compression.fp16,\n"
            ),
        }.get(style.exchange, "")
        line = "\n    " if "\n" in options else ""
        code += f"$optimizer = hvd.DistributedOptimizer({line}$optimizer{options})\n"
    return code


def compilation(style: Style, pieces: Pieces) -> str:
    """Return the call of `compile`, and what a script without a callback does to begin with equal weights."""
    loss = LOSSES.get(style.regularisation, LOSS)
    pieces.helpers += [SMOOTHED] * (style.regularisation == "smoothing")
    jit = "    jit_compile=False,\n" if style.framework == "keras_step" else ""
    code = (
        "$model.compile(\n    optimizer=$optimizer,\n"
        f'    loss={loss},\n    metrics=["accuracy"],\n{jit})\n'
    )
    if style.framework == "keras_step" and style.accumulated == 1:
        code += (
            "# All ranks begin with the weights of rank 0.\n"
            "hvd.broadcast_variables([v.value for v in $model.variables], root_rank=0)\n"
        )
    return code


def fit(style: Style) -> str:
    """Return the call of `fit`."""
    callbacks = ["Recorder($batches)"]
    if style.regularisation == "ema":
        callbacks.insert(0, "keras.callbacks.SwapEMAWeights()")
    if not (style.framework == "keras_step" and style.accumulated == 1):
        broadcast = "hvd.callbacks.BroadcastGlobalVariablesCallback(0)"
        callbacks = [broadcast, "hvd.callbacks.MetricAverageCallback()", *callbacks]
    labels = "$test_labels[mine]"
    if style.regularisation == "mixup":
        labels = "np.eye(10)[$test_labels[mine]]"
    listed = ",\n        ".join(callbacks)
    return (
        "mine = slice($rank, None, $size)\n"
        "$model.fit(\n    $stream,\n    steps_per_epoch=len($batches),\n    epochs=$epochs,\n"
        f"    validation_data=($test_images[mine], {labels}),\n"
        f"    validation_batch_size=500,\n    callbacks=[\n        {listed},\n    ],\n"
        "    verbose=2 if $rank == 0 else 0,\n)\n"
    )
