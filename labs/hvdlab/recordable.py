"""Check what a Recorder is given, so that a mistake ends a run at its first line and not after its epochs.

The grader names the network to train in the environment variable `hvdlab.assessment_networks.VARIABLE`. Where
it is set, a Recorder accepts only this network. Elsewhere, for example in the labs, it accepts any model.
"""

import os
import weakref
from collections.abc import Mapping
from pathlib import Path

from hvdlab import HvdlabError
from hvdlab.assessment_networks import VARIABLE, given_network, network_weights

_latest: dict[Path, weakref.ref] = {}  # folder -> the Recorder that was created for it


class NotRecordable(HvdlabError, ValueError):
    """A Recorder was given something that it cannot record. The message says what it needs instead."""


def in_grading() -> bool:
    """Return whether the grader runs this process: it then expects the weights of one given network."""
    return bool(os.environ.get(VARIABLE))


def require_batches(batches: object) -> None:
    """Check that an object can say what a rank read.

    Raises:
        NotRecordable: it is not the `Batches` of this rank, or something with the same methods.
    """
    if not (hasattr(batches, "examples_read") and hasattr(batches, "batch_size")):
        raise NotRecordable(
            "Recorder: 'batches' must be the hvdlab.data.Batches that this rank trains on. Received: "
            f"{type(batches).__name__}. Pass the Batches object itself, not its images or an iterator of it."
        )


def network_among(found: list[Mapping[str, tuple[int, ...]]], given: object, builder: str) -> int:
    """Return which part of a model is the network of the grader.

    Args:
        found: names and shapes of the weights of each part that may be it. If none is, the message compares
            the first one with it.

    Returns:
        The position in `found`, from 0.

    Raises:
        NotRecordable: it contains another network, or the network more than once.
    """
    wanted = network_weights(given_network())
    same = [position for position, weights in enumerate(found) if weights == wanted]
    if len(same) == 1:
        return same[0]
    got = f"{len(same)} of them" if same else _difference(found[0] if found else {}, wanted)
    raise NotRecordable(
        f"Recorder: the model must be, or contain once, the network '{given_network()}'. Received: "
        f"{type(given).__name__} with {got}. Build it with {builder}() and pass the network that you train."
    )


def _difference(found: Mapping[str, tuple], wanted: Mapping[str, tuple]) -> str:
    """Return the first difference between the weights of a model and those of the network, in words."""
    if not found:
        return "no weights"
    if missing := [name for name in wanted if name not in found]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        return f"no weight {missing[0]}{more} (its first weight is {next(iter(found))})"
    for name, shape in wanted.items():
        if found[name] != shape:
            return f"a weight {name} of shape {found[name]} in place of {shape}"
    return f"an additional weight {next(name for name in found if name not in wanted)}"


def require_only_recorder(recorder: object, folder: Path) -> None:
    """Check that no other Recorder of this rank waits to record, because it would write the same files.

    A Recorder may follow another one that has recorded its epochs, as in two calls of `fit`.

    Raises:
        NotRecordable: another one exists, and has recorded nothing yet. Only where the grader runs this.
    """
    earlier = _latest.get(folder, lambda: None)()
    if in_grading() and earlier is not None and not any(folder.glob("epoch-*.npz")):
        raise NotRecordable(
            "Recorder: each rank needs one Recorder. Received: a second one, while the first one has "
            "recorded nothing. Create one before the first epoch, and use it in all epochs."
        )
    _latest[folder] = weakref.ref(recorder)
