"""Which framework a script trains with, so that a hint gives the advice for it."""

from hvdlab.script_analysis.script import Script


def api(script: Script) -> str:
    """Return what a script trains with, as `catalogue.Mistake.advice` takes it.

    Returns:
        "torch", "keras" (`fit`), or "tape" (a training loop with tf.GradientTape).
    """
    if script.torch and not script.keras:
        return "torch"
    if script.named("GradientTape", "DistributedGradientTape") and not script.named("fit"):
        return "tape"
    return "keras"  # Keras may compute with PyTorch
