"""Pieces of a script with a GradientTape and a loop of its own."""

from tests.measurements.styles.keras_pieces import AVERAGED, LOSS, LOSSES, SMOOTHED
from tests.measurements.styles.part import Part, Pieces, Style, indented

TAPE = """\
with tf.GradientTape() as tape:
    loss = loss_function(labels, $model(images, training=True))
"""
BROADCAST = """\
# The optimizer has its variables before the broadcast, so that rank 0 sends them too.
$optimizer.build($model.trainable_variables)
hvd.broadcast_variables([*$model.variables, *$optimizer.variables], root_rank=0)
"""
EVALUATE = '''\
def evaluate(model, images, labels):
    """Return the part of the images that the model classifies right."""
    logits = model.predict(images, batch_size=500, verbose=0)
    return float((logits.argmax(axis=1) == labels).mean()) if len(labels) else 0.0
'''


def add_tape(style: Style, pieces: Pieces) -> None:
    """Add the training step and the loop."""
    pieces.imports += ["import itertools", "import tensorflow as tf"]
    pieces.helpers.append(EVALUATE)
    pieces.helpers += [SMOOTHED] * (style.regularisation == "smoothing")
    pieces.parts.append(Part("broadcast_weights", BROADCAST))
    pieces.parts.append(Part("make_train_step", training_step(style)))
    rest = (
        "$iterator = iter($stream)\n$recorder = Recorder($batches)\n$recorder.set_model($model)\n"
    )
    if style.regularisation == "ema":
        rest += "$averaged = [tf.Variable(variable) for variable in $model.trainable_variables]\n"
    pieces.parts.append(Part("make_recorder", rest))
    pieces.train = Part("train_epoch", loop(style))
    pieces.epoch = (
        "mine = slice($rank, None, $size)\n"
        "accuracy = evaluate($model, $test_images[mine], $test_labels[mine])\n"
        'accuracy = float(hvd.allreduce(accuracy, name="accuracy"))\n'
        '$recorder.on_epoch_end(epoch, {"loss": $mean_loss, "accuracy": accuracy})\n'
        '$report(f"epoch {epoch}: loss {$mean_loss:.3f}, accuracy {accuracy:.3f}")\n'
    )


def training_step(style: Style) -> str:
    """Return the compiled function of one batch."""
    loss = LOSSES.get(style.regularisation, LOSS)
    if loss == "smoothed":
        lines = "def loss_function(labels, logits):\n    return tf.reduce_mean(smoothed(labels, logits))\n\n"
    else:
        lines = f"loss_function = {loss}\n\n"
    options = {
        "fp16": ", compression=hvd.Compression.fp16",
        "fused": ", num_groups=1",
    }.get(style.exchange, "")
    body = TAPE
    variables = "[variable.value for variable in $model.trainable_variables]"
    if style.accumulated > 1:
        body += f"return loss, tape.gradient(loss, {variables})\n"
        lines += "@tf.function(reduce_retracing=True)\ndef gradients_of(images, labels):\n"
        lines += indented(body) + "\n\n@tf.function\ndef apply(gradients):\n"
        update = "$optimizer.apply(gradients, $model.trainable_variables)\n"
        return lines + indented(AVERAGED["each"] + "\n" + update) + "\n\n" + packed(style)
    if style.exchange == "scattered":
        body += f"gradients = tape.gradient(loss, {variables})\n" + AVERAGED["scattered"] + "\n"
    else:
        body += f"tape = hvd.DistributedGradientTape(tape{options})\n"
        body += "gradients = tape.gradient(loss, $model.trainable_variables)\n"
    body += "$optimizer.apply(gradients, $model.trainable_variables)\nreturn loss\n"
    lines += "@tf.function(reduce_retracing=True)\ndef train_step(images, labels):\n"
    return lines + indented(body) + "\n"


def packed(style: Style) -> str:
    """Return a function that adds up the gradients of several batches before it applies them."""
    return f'''\
sums = []

def train_step(images, labels):
    """Add the gradients of a batch to the sums, and apply them after every {style.accumulated} batches."""
    loss, gradients = gradients_of(images, labels)
    sums.append(gradients)
    if len(sums) == {style.accumulated}:
        apply([tf.add_n(of_one) / {style.accumulated} for of_one in zip(*sums)])
        sums.clear()
    return loss
'''


def loop(style: Style) -> str:
    """Return the loop over the batches of an epoch."""
    ema = ""
    if style.regularisation == "ema":
        ema = (
            "    for average, variable in zip($averaged, $model.trainable_variables):\n"
            "        average.assign(0.98 * average + 0.02 * variable)\n"
        )
    return (
        "total_loss = 0.0\n"
        "for images, labels in itertools.islice($iterator, len($batches)):\n"
        "    total_loss += float($train_step(images, labels)) * len(labels)\n"
        f"{ema}"
        "$mean_loss = total_loss / len($batches.examples_read(epoch))\n"
    )
