"""Start ranks from Python: a script, or a function of a notebook. The command is `hvdlab run`."""

from hvdlab.launch.function_on_ranks import call
from hvdlab.launch.local import LaunchError, TimeUp, environment, mpirun_command
from hvdlab.launch.script_on_ranks import run

__all__ = ["LaunchError", "TimeUp", "call", "environment", "mpirun_command", "run"]
