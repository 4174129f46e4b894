"""A communicator that records what a rank sends and receives, also if the run does not end."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import numpy as np

from hvdlab.exercises.harness.counting_communicator import Counting

if TYPE_CHECKING:
    from mpi4py import MPI


class Recording(Counting):
    """A communicator that writes a line of JSON to a file before each call, see `read_calls`.

    It finds the array of the rank among the local variables of the learner's function: an array, or a list of
    chunks, that has as many values as the vector, and with which the message shares its memory.

    Args:
        path: the file of this rank.
        length: number of values of the vector.
    """

    def __init__(self, comm: "MPI.Comm", path: Path, length: int) -> None:
        super().__init__(comm)
        self.path, self.length, self.pieces = path, length, []

    def Send(self, buf, dest, tag=0):
        """Send an array, see `Counting`."""
        self._write("Send", buf, dest)
        super().Send(buf, dest, tag)

    def Isend(self, buf, dest, tag=0):
        """Start to send an array, see `Counting`."""
        self._write("Isend", buf, dest)
        return super().Isend(buf, dest, tag)

    Ssend, Issend = Send, Isend

    def Recv(self, buf, source=-1, tag=-1, status=None):
        """Receive into an array, see `Counting`."""
        self._write("Recv", source=source)
        super().Recv(buf, source, tag, status)

    def Sendrecv(self, sendbuf, dest, sendtag=0, recvbuf=None, source=-1, recvtag=-1, status=None):
        """Send one array and receive another, see `Counting`."""
        self._write("Sendrecv", sendbuf, dest, source)
        super().Sendrecv(sendbuf, dest, sendtag, recvbuf, source, recvtag, status)

    def _write(self, call, buf=None, dest=None, source=None):
        """Write a line about a call that begins now."""
        sent = None if buf is None else np.asarray(buf[0] if isinstance(buf, list | tuple) else buf)
        self.pieces = _pieces(_learners_frame(), sent, self.length) or self.pieces
        line = {"call": call, "to": dest, "source": source, "array": _values(self.pieces)}
        if sent is not None:
            line |= {"start": _position(self.pieces, sent), "values": sent.ravel().tolist()}
        self.append(line)

    def append(self, line: dict) -> None:
        """Append a line to the file of this rank."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def record(comm: "MPI.Comm", function: Callable, values: np.ndarray, folder: str) -> None:
    """Call a learner's function with a communicator that records, into the file RANK.jsonl of a folder."""
    recording = Recording(comm, Path(folder, f"{comm.rank}.jsonl"), values.size)
    recording.pieces = [values]
    result = function(recording, values.copy())
    recording.not_waited_for()
    returned = result.ravel().tolist() if isinstance(result, np.ndarray) else None
    recording.append({"array": _values(recording.pieces), "returned": returned})


def read_calls(folder: Path, ranks: int) -> list[list[dict]]:
    """Return what each rank has recorded: a dict per call, and a last one with "returned" if it returned.

    A call has the keys call (name), to, source, start (position of what is sent), values (that are sent), and
    array (the values of the rank's array before the call).
    """
    files = [folder / f"{rank}.jsonl" for rank in range(ranks)]
    texts = [file.read_text(encoding="utf-8") if file.exists() else "" for file in files]
    return [[json.loads(line) for line in text.splitlines()] for text in texts]


def _learners_frame() -> FrameType:
    """Return the frame of the learner's function, which `record` has called."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_back.f_code is not record.__code__:
        frame = frame.f_back
    return frame


def _pieces(frame: FrameType, sent: np.ndarray | None, length: int) -> list[np.ndarray]:
    """Return the array of a rank in pieces; [] if only a message could tell, and there is none."""
    found = []
    for value in frame.f_locals.values():
        pieces = [value] if isinstance(value, np.ndarray) else value
        if isinstance(pieces, list | tuple) and all(isinstance(p, np.ndarray) for p in pieces):
            if sum(piece.size for piece in pieces) == length:
                found.append(pieces)  # the list itself: its items may be replaced
    if sent is None:
        return []
    sharing = [pieces for pieces in found if any(np.shares_memory(p, sent) for p in pieces)]
    lists = [pieces for pieces in found if len(pieces) > 1]
    return (sharing or lists or found[-1:] or [[]])[0]


def _values(pieces: list[np.ndarray]) -> list[float]:
    return [float(value) for piece in pieces for value in piece.ravel()]


def _position(pieces: list[np.ndarray], sent: np.ndarray) -> int | None:
    """Return the position of a message in an array: by its memory, or by its values if it is a copy."""
    offset = 0
    for piece in pieces:
        if np.shares_memory(piece, sent):
            return offset + (sent.ctypes.data - piece.ctypes.data) // piece.itemsize
        offset += piece.size
    whole, wanted = _values(pieces), sent.ravel().tolist()
    places = range(len(whole) - len(wanted) + 1)
    return next((k for k in places if whole[k : k + len(wanted)] == wanted), None)
