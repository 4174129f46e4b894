"""What a script that was written for Keras 2 needs under Keras 3, or under legacy Keras."""

import ast

from hvdlab.script_analysis.ast_helpers import keyword
from hvdlab.script_analysis.script import OFFICIAL_KERAS, Script

OLD_ARGUMENT = "experimental_run_tf_function"  # of compile; Keras 3 does not accept it
# Callbacks of Horovod's own Keras module that call Keras' backend, and the variable that holds it.
CALLBACKS = (
    "MetricAverageCallback",
    "LearningRateWarmupCallback",
    "LearningRateScheduleCallback",
)
BACKEND = "K"


def old_argument(script: Script) -> int | None:
    """Return the line of the first call that passes OLD_ARGUMENT, or None.

    Args:
        script: the script.
    """
    calls = (call for call in script.calls if keyword(call, OLD_ARGUMENT) is not None)
    return next((call.lineno for call in calls), None)


def failing_callback(script: Script) -> int | None:
    """Return the line that creates a callback which fails under legacy Keras, or None.

    Horovod 0.28.1 passes the backend of Keras 3 to its callbacks, unless the script sets another one.

    Args:
        script: the script.
    """
    legacy = script.imported("tf_keras") or any(
        getattr(node, "value", None) == "TF_USE_LEGACY_KERAS" for node in script.nodes
    )
    if not legacy or not script.imported(*OFFICIAL_KERAS):
        return None
    if any(
        isinstance(target, ast.Attribute) and target.attr == BACKEND
        for target, _ in script.bindings()
    ):
        return None
    return min((call.lineno for call in script.hvd(*CALLBACKS)), default=None)
