"""Checks of the frameworks, Keras and Horovod: whether they are installed and fit each other."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from importlib import metadata
from pathlib import Path

from hvdlab.doctor.answers import (
    FAILURE,
    OK,
    WARNING,
    Answer,
    ProgramOutput,
    build_horovod,
    image,
    install,
    version,
)

NAMES = {"torch": "pytorch", "tensorflow": "tensorflow"}  # package -> in Horovod's metadata.json
# Horovod's own modules for Keras; horovod.tensorflow without Keras is for custom training loops.
OFFICIAL = re.compile(
    r"\s*(import horovod\.(tensorflow\.)?keras|from horovod\.(tensorflow\.)?keras\b"
    r"|from horovod(\.tensorflow)? import (.*\b)?keras\b)"
)


def frameworks(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check which of PyTorch, TensorFlow and Keras can be imported."""
    there = [name for name in NAMES if outputs[name].answer()]
    seen = [f"{name} {outputs[name].answer()['version']}" for name in there]
    seen += [f"{name} {installed(name)}" for name in ("keras", "tf_keras") if installed(name)]
    lacking = [name for name in NAMES if name not in there]
    if not lacking:
        return Answer(OK, ", ".join(seen))
    if image() in there:
        return Answer(OK, f"{', '.join(seen)}: this image has only {image()}")
    broken = [f"{name} cannot be imported ({outputs[name].last_words()})" for name in lacking]
    if there:
        broken.append(f"its labs will not run; found {', '.join(seen)}")
    if any(outputs[name].late for name in lacking):
        fix = "hvdlab doctor --timeout 300"  # a slow disk, or a busy machine
    else:
        again = ["--force-reinstall"] if any(map(installed, lacking)) else []
        fix = install(*again, *lacking)
    return Answer(WARNING if there else FAILURE, "; ".join(broken), fix)


def keras(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check that no script uses Horovod's own Keras module with Keras 3, where it averages no gradient."""
    found = installed("keras")
    if not found:
        return Answer(OK, "not installed: the PyTorch labs do not need it")
    legacy = os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")
    if legacy and not installed("tf_keras"):
        text = "TF_USE_LEGACY_KERAS is set and tf-keras is not installed: TensorFlow has no Keras"
        return Answer(FAILURE, text, install("tf-keras"))
    if legacy or int(found.split(".")[0]) < 3:
        used = installed("tf_keras") if legacy else found
        text = (
            f"legacy Keras {used}, with which Horovod's own module averages. Its callbacks for metrics and "
            "learning rates need `hvd.callbacks.K = tf.keras.backend` in the script"
        )
        return Answer(OK, text)
    for script in sorted(Path.cwd().glob("*.py")):
        for number, line in enumerate(_lines(script), 1):
            if OFFICIAL.match(line):
                text = (
                    f"{script.name}, line {number}, imports Horovod's own Keras module. Under "
                    f"Keras {found} that averages no gradient and does not say so: each rank "
                    "trains separately. Import hvdlab.keras.horovod there, or use legacy Keras"
                )
                return Answer(WARNING, text, "export TF_USE_LEGACY_KERAS=1")
    return Answer(
        OK,
        f"Keras {found}: use hvdlab.keras.horovod. Horovod's own horovod.tensorflow.keras averages "
        "no gradient under Keras 3 and prints no error, unless TF_USE_LEGACY_KERAS=1",
    )


def _lines(script: Path) -> list:
    """Return the lines of a script; [] for a folder, or a dangling link of an editor, with such a name."""
    try:
        return script.read_text("utf-8", errors="replace").splitlines() if script.is_file() else []
    except OSError:
        return []


def horovod(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check that Horovod is installed, and with what it was built."""
    if folder() is None:
        return Answer(FAILURE, "not installed for this Python", build_horovod())
    halves = [outputs[name].answer().get("horovod", {}) for name in NAMES]
    working = [half for half in halves if "mpi" in half]
    text = f"{installed('horovod') or 'a copy without metadata'} in {folder()}"
    if not working:
        return Answer(FAILURE, f"{text}: neither of its halves can be imported", build_horovod())
    for flag, state, lost in (
        ("mpi", FAILURE, "started by mpirun, each rank would train separately"),
        ("gloo", WARNING, "elastic training and horovodrun --gloo will not work"),
    ):
        if not all(half[flag] for half in working):
            name = "MPI" if flag == "mpi" else "Gloo"
            return Answer(state, f"{text}, built without {name}: {lost}", build_horovod())
    built = ["MPI", "Gloo"]
    built += [name for name in ("NCCL", "CUDA") if all(half[name.lower()] for half in working)]
    without = [name for name in ("NCCL", "CUDA") if name not in built]
    text += f", built with {', '.join(built)}"
    return Answer(OK, text + (f"; without {', '.join(without)}" if without else ""))


def horovod_torch(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check that Horovod can be used with PyTorch."""
    return _half(outputs, "torch", "PyTorch")


def horovod_tensorflow(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check that Horovod can be used with TensorFlow."""
    return _half(outputs, "tensorflow", "TensorFlow")


def _half(outputs: dict[str, ProgramOutput], package: str, name: str) -> Answer:
    """Check that Horovod's half for a framework can be imported and was built for this version."""
    found = outputs[package].answer()
    if not found and image() not in ("", package):
        return Answer(OK, f"not tried: this image has only {image()}")
    if not found:
        return Answer(WARNING, f"not tried: {package} cannot be imported", build_horovod())
    if folder() is None:
        return Answer(FAILURE, "not tried: Horovod is not installed", build_horovod())
    half = found.get("horovod") or {"error": f"the import failed: {outputs[package].last_words()}"}
    built = built_for(package)
    other = f"built for {name} {built}, and {found['version']} is installed"
    if "error" in half:
        why = " ".join(half["error"].split())
        if built and built != found["version"]:
            why = f"{other}: {why}"
        return Answer(FAILURE, f"does not work: {why[:300]}", build_horovod())
    if not built:
        return Answer(OK, f"works with {name} {found['version']}")
    if built != found["version"]:
        text = f"{other}: it can be imported, and may still fail or compute nonsense"
        return Answer(WARNING, text, build_horovod())
    return Answer(OK, f"built for {name} {built}, which is installed")


def built_for(package: str) -> str:
    """The version that Horovod was built for, from its own record; "" where there is none."""
    try:
        return json.loads((folder() / "metadata.json").read_text(encoding="utf-8")).get(
            NAMES[package], ""
        )
    except (OSError, ValueError):
        return ""


def folder() -> Path | None:
    """Horovod's folder, found without importing it; None where it is not installed."""
    found = importlib.util.find_spec("horovod")
    return Path(found.submodule_search_locations[0]) if found else None


def installed(name: str) -> str:
    """The version of an installed package; "" without it."""
    try:
        return version(metadata.version(name))
    except metadata.PackageNotFoundError:
        return ""
