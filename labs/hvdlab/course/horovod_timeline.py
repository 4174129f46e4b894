"""Read Horovod's timeline as a table: how long each phase of each all-reduce took.

    HOROVOD_TIMELINE=timeline.json mpirun -np 2 python train.py
    table = timeline.read("timeline.json")
    timeline.messages(table)        # all-reduce operations and bytes in each training step

Horovod writes events in the format of chrome://tracing, on rank 0. A "process" of that format is a tensor
here.

Source: horovod/common/timeline.cc of Horovod 0.28.1.
"""

import json
import math
from pathlib import Path

import pandas as pd

PHASES = {  # our name of a phase by Horovod's name, in the order of time
    "NEGOTIATE_ALLREDUCE": "negotiate",
    "MEMCPY_IN_FUSION_BUFFER": "copy in",
    "MPI_ALLREDUCE": "all-reduce",
    "GLOO_ALLREDUCE": "all-reduce",
    "NCCL_ALLREDUCE": "all-reduce",
    "MEMCPY_OUT_FUSION_BUFFER": "copy out",
}
_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}


def read(path: str | Path) -> pd.DataFrame:
    """Return the all-reduces of the gradients, with a row for each phase of each tensor in each step.

    Returns:
        a table with the columns

            tensor          name of the tensor
            step            number of the step, from 0
            phase           a value of `PHASES`, or "ready 0" for the moment at which the tensor was ready
                            on rank 0 (Horovod writes it only in the first step, unless
                            HOROVOD_CACHE_CAPACITY=0)
            start           milliseconds since the first row
            milliseconds    duration
            shape           shape of the tensor, such as "3 x 3 x 64"
            bytes           bytes of the tensor
    """
    text = Path(path).read_text(encoding="utf-8").rstrip().rstrip(",")
    # If the run was killed, the list has no end.
    events = json.loads(text if text.endswith("]") else text + "]")
    tensors, steps, shapes, sizes, open_events, rows = {}, {}, {}, {}, {}, []
    for event in events:
        tensor = event.get("pid")
        if event["ph"] == "M":
            tensors[tensor] = event["args"].get("name", tensors.get(tensor))
        elif event["ph"] == "B":
            if event["name"].startswith("NEGOTIATE"):  # the first phase of a step
                steps[tensor] = steps.get(tensor, -1) + 1
            open_events.setdefault(tensor, []).append((event["name"], event["ts"]))
        elif event["ph"] == "X" and event["name"].isdigit():
            rows.append((tensor, steps[tensor], f"ready {event['name']}", event["ts"], 0.0))
        elif event["ph"] == "E" and open_events.get(tensor):
            name, began = open_events[tensor].pop()
            if name in PHASES:
                duration = event["ts"] - began
                rows.append((tensor, steps[tensor], PHASES[name], began, duration))
            if name == "ALLREDUCE":
                shape, dtype = json.loads(event["args"]["shape"]), event["args"]["dtype"]
                shapes[tensor] = " x ".join(map(str, shape))
                sizes[tensor] = math.prod(shape) * _BYTES[dtype]
    table = pd.DataFrame(rows, columns=["tensor", "step", "phase", "start", "milliseconds"])

    # The gradients are the tensors that are reduced most often.
    counts = table[table["phase"] == "all-reduce"]["tensor"].value_counts()
    table = table[table["tensor"].isin(counts.index[counts == counts.max()])]
    return table.assign(
        tensor=table["tensor"].map(tensors),
        start=(table["start"] - table["start"].min()) / 1000,
        milliseconds=table["milliseconds"] / 1000,
        shape=table["tensor"].map(shapes),
        bytes=table["tensor"].map(sizes),
    ).reset_index(drop=True)


def messages(table: pd.DataFrame) -> pd.DataFrame:
    """Return the number of all-reduce operations and their bytes, for each step.

    Tensors that Horovod fused into one operation count as one.

    Returns:
        a table with the index step and the columns operations and bytes.
    """
    reduces = table[table["phase"] == "all-reduce"]
    steps = reduces.assign(message=message_numbers(reduces)).groupby("step")
    return pd.DataFrame({"operations": steps["message"].max() + 1, "bytes": steps["bytes"].sum()})


def message_numbers(reduces: pd.DataFrame) -> pd.Series:
    """Return the number of the message of each all-reduce in its training step, from 0.

    The timeline does not name the messages. But rank 0 writes the events of all tensors of a message directly
    one after another, and begins a message after the one before has ended. So all-reduces that overlap are
    one message.

    Args:
        reduces: the rows of `read` with the phase "all-reduce".
    """
    reduces = reduces.sort_values(["step", "start"])
    end = reduces["start"] + reduces["milliseconds"]
    before = end.groupby(reduces["step"]).transform(lambda e: e.cummax().shift())
    begins = ~(reduces["start"] < before)
    return begins.groupby(reduces["step"]).cumsum() - 1
