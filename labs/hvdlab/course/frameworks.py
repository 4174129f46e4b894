"""Choose between Keras and PyTorch in a lab whose experiments exist in both.

    FRAMEWORK = "keras"  # or "torch"
    training = frameworks.load("dense_training", FRAMEWORK)     # hvdlab.course.dense_training_keras

The two modules of such a pair have the same names with the same meaning, so the cells of the lab do not
depend on the framework.
"""

import os
from importlib import import_module
from types import ModuleType

from hvdlab import HvdlabError
from hvdlab.course import experiment

FRAMEWORKS = "keras", "torch"


class UnknownFramework(HvdlabError, ValueError):
    """A framework that the labs do not have; the message names those that they have."""


def load(name: str, framework: str) -> ModuleType:
    """Return the module `hvdlab.course.NAME_FRAMEWORK`, and print which framework trains.

    The environment variable LAB_FRAMEWORK takes precedence. Without it a quick run uses PyTorch, which
    starts in less time, and a reference run uses Keras, with which the shipped results were measured.

    Args:
        framework: "keras" or "torch".

    Raises:
        UnknownFramework: the framework is neither "keras" nor "torch".
    """
    default = experiment.by_run_length(quick="torch", learner=framework, reference="keras")
    chosen = os.environ.get("LAB_FRAMEWORK") or default
    for value in (framework, chosen):
        if value not in FRAMEWORKS:
            raise UnknownFramework(f'framework must be "keras" or "torch". Received: {value!r}')
    print(f"The experiments of this lab train with {chosen}{_reason(framework, chosen)}.")
    return import_module(f"hvdlab.course.{name}_{chosen}")


def _reason(framework: str, chosen: str) -> str:
    """Return why the framework is not the one that the lab chooses; empty if it is."""
    if chosen == framework:
        return ""
    if os.environ.get("LAB_FRAMEWORK"):
        return ", because LAB_FRAMEWORK is set"
    if experiment.QUICK:
        return ", because LAB_QUICK is set and PyTorch starts in less time"
    return ", because the shipped results were measured with it"
