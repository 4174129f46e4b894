"""What a script that was written for Keras 2 needs under Keras 3, or under legacy Keras."""

import ast

from hvdlab.script_analysis.ast_helpers import keyword, last_name
from hvdlab.script_analysis.script import OFFICIAL_KERAS, Script

OLD_ARGUMENT = "experimental_run_tf_function"  # of compile; Keras 3 does not accept it
# Callbacks of Horovod's own Keras module that call Keras' backend, and the variable that holds it.
OF_RATE = ("LearningRateWarmupCallback", "LearningRateScheduleCallback")
CALLBACKS = ("MetricAverageCallback", *OF_RATE)
BACKEND = "K"


def old_argument(script: Script) -> int | None:
    """Return the line of the first call that passes OLD_ARGUMENT, or None."""
    calls = (call for call in script.calls if keyword(call, OLD_ARGUMENT) is not None)
    return next((call.lineno for call in calls), None)


def failing_callback(script: Script) -> tuple[int, str] | None:
    """Return a callback of Horovod's own module that fails under legacy Keras.

    Horovod 0.28.1 passes the backend of Keras 3 to its callbacks, unless the script sets another one. Its
    momentum correction assigns to the momentum of SGD and of RMSprop, which is a number in Keras 2.11 and
    later, also when it is zero.

    Returns:
        (line that creates it, a sentence that says what it misses), or None.
    """
    legacy = script.imported("tf_keras") or any(
        getattr(node, "value", None) == "TF_USE_LEGACY_KERAS" for node in script.nodes
    )
    if not legacy or not script.imported(*OFFICIAL_KERAS):
        return None
    targets = (target for target, _ in script.bindings() if isinstance(target, ast.Attribute))
    if BACKEND not in {target.attr for target in targets}:
        for call in script.hvd(*CALLBACKS):
            return (
                call.lineno,
                "This callback calls the backend of Keras 3, but the model is of legacy Keras.",
            )
    made = script.named("SGD", "RMSprop")
    with_momentum = [last_name(call) for call in made if "legacy" not in script.names[call]]
    if with_momentum:
        for call in script.hvd(*OF_RATE):
            if keyword(call, "momentum_correction") is None:
                return (
                    call.lineno,
                    f"This callback cannot correct the momentum of {with_momentum[0]}, which is a number.",
                )
    return None
