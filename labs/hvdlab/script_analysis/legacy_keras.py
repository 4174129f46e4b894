"""What a script that was written for Keras 2 needs under Keras 3."""

from hvdlab.script_analysis.ast_helpers import keyword
from hvdlab.script_analysis.script import Script

OLD_ARGUMENT = "experimental_run_tf_function"  # of compile; Keras 3 does not accept it


def old_argument(script: Script) -> int | None:
    """Return the line of the first call that passes OLD_ARGUMENT, or None."""
    calls = (call for call in script.calls if keyword(call, OLD_ARGUMENT) is not None)
    return next((call.lineno for call in calls), None)
