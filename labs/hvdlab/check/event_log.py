"""What one rank does, as JSON lines: the notebook of `watch`, and the clock of its loops.

Events have `kind`, `at` (seconds since the start of the watch), `steps` (optimizer steps so far) and
`line` (of the script, where the call came from), and more by kind:

    start, end                         of the script; end with the error, if there was one
    init, wrap, broadcast, join        calls of Horovod
    collective; waiting, goes on       one was called; lasts for long, is over after all
    optimizer, compile, fit            one is made; given to a model of Keras; an epoch's batches
    step                               of an optimizer: loss, batch, rate, weights, statistics
    loop, pass                         that trains: its first round; left, how and after how many
    decision                           a value that a stop depends on, and the loop that is running
    save, lock, download, devices      a path, or that of a lock; a URL; how many GPUs
    cuda tensor                        was given to a Horovod without CUDA; its device

The rules ask for them by `run_events.Run`.
"""

import json
import os
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from hvdlab.check.fingerprints import digest, number

EPOCHS = 2  # passes over an inner training loop that an outer loop gets
CAP = 10  # times the steps of a loop: then the script ends, loop or not
LONG = 2.0  # seconds in one collective after which it is noted
DECISIONS = 64  # noted at most for each place


class Watch:
    """The events of one rank, and how far it is.

    Args:
        folder: gets rank-R.jsonl; when a file `stop` appears in it, this process ends.
        script: absolute path; lines are lines of it.
        limit: training steps after which a loop is cut.
    """

    def __init__(self, folder: Path, script: str, rank: int, size: int, limit: int):
        self.script, self.rank, self.limit = script, rank, limit
        self.steps = 0  # of all optimizers
        self.passes = 0  # training loops that were left
        self.running = []  # the loops that are running, a `Loop` each, the innermost last
        self.waits = []  # (what, line, since) of the collectives that are running
        self.locks = set()  # files that are locked, by their descriptors
        self.wrapping = False  # inside DistributedOptimizer, which makes an optimizer of its own
        self.fitting = False  # inside model.fit, which counts its own steps
        self.tape = False  # gradients come from a DistributedGradientTape
        self.batch = None  # what the model was called with since the last step
        self.kept = {}  # variables of TensorFlow in which a graph keeps a sample of its batch
        self.called = False  # the model was called since then
        self.loss = None
        self._decisions = {}
        self._lock = threading.RLock()
        self._started = time.monotonic()
        self._folder = folder
        self._file = open(folder / f"rank-{rank}.jsonl", "w", buffering=1)
        self.note("start", rank=rank, size=size)
        threading.Thread(target=self._look_around, daemon=True).start()

    def note(self, kind: str, line: int | None = None, **facts) -> None:
        if line is None:
            line = self.line()
        at = round(time.monotonic() - self._started, 4)
        text = json.dumps({"kind": kind, "at": at, "steps": self.steps, "line": line, **facts})
        with self._lock:
            if not self._file.closed:
                self._file.write(text + "\n")

    def clock(self) -> float:
        return time.monotonic()

    def looks_at_statistics(self) -> bool:
        """Statistics of batch norm are large: noted rarely, after 4, 8, 16, ... steps."""
        steps = self.steps + 1
        return steps >= 4 and steps & (steps - 1) == 0

    def end(self, error: str | None = None, line: int | None = None) -> None:
        self.note("end", line, error=error)

    def line(self) -> int | None:
        """The line of the script that is running, in the innermost of its functions."""
        frame = sys._getframe(1)
        while frame:
            if frame.f_code.co_filename == self.script:
                return frame.f_lineno
            frame = frame.f_back
        return None

    def importing(self) -> bool:
        """Whether the script is in an import."""
        frame = sys._getframe(1)
        while frame and frame.f_code.co_filename != self.script:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                return True
            frame = frame.f_back
        return frame is None

    def save(self, path) -> None:
        """Note that a file is written, unless it is one of ours or no file at all."""
        try:
            path = os.path.abspath(os.fspath(path))
        except TypeError:  # an open file
            return
        ours = path.startswith((str(self._folder), "/dev/", "/proc/"))
        if not ours:
            self.note("save", made_at(self.script) or self.line(), path=os.path.realpath(path))

    @contextmanager
    def inside(self, what: str):
        """A collective call: noted, and where this rank is while it lasts."""
        if self.waits:  # one collective made of others, or one inside a training step
            nested = self.waits[-1][0] != "a training step"
        else:
            nested = False
        line = made_at(self.script) or self.line()
        if not nested:
            self.note("collective", line, op=what)
        self.waits.append((what, line, time.monotonic()))
        try:
            yield
        finally:
            self.waits.pop()

    def step(self, may_end: bool = True, **facts) -> None:
        """An optimizer has stepped."""
        self.steps += 1
        loss, self.loss = self.loss, None
        batch, self.batch, self.called = self.batch, None, False
        found = digest(batch) if batch is not None else self._given()
        self.note("step", loss=number(loss), batch=found, loops=self.loops, **facts)  # fmt: skip
        if may_end and self.steps >= CAP * self.limit:
            raise SystemExit  # politely: what the script does at its end, it does

    @property
    def loops(self) -> list[list[int]]:
        """[line, iteration] of the loops that are running."""
        return [[loop.line, loop.iteration] for loop in self.running]

    def _given(self):
        """The hash of what the innermost loop with arrays has given."""
        return next(filter(None, (digest(loop.item) for loop in reversed(self.running))), None)

    # --- what the instrumented script calls: see `instrument` -----------------------------------

    def each(self, line: int, iterable):
        """The items of a loop, cut short when the loop trains.

        A loop whose iterations train ends after `limit` of them; one around such a loop after
        EPOCHS. The script sees loops that are exhausted, and goes on. Loops that do not train are
        left alone.
        """
        return Pass(self, line, iterable)

    def rounds(self, line: int):
        """A context around a while loop, whose test asks it: as `each`, for loops without items."""
        return Loop(self, line)

    def decide(self, line: int, text: str, value):
        """A value that a decision to stop depends on."""
        seen = self._decisions.get((line, text), 0)
        if seen < DECISIONS and (found := number(value)) is not None:
            self._decisions[line, text] = seen + 1
            loop = self.running[-1].line if self.running else None
            self.note("decision", line, text=text, value=found, loop=loop)
        return value

    # --- beside the script ------------------------------------------------------------------------

    def _look_around(self):
        """Note a long wait, and end when we are told to."""
        noted = None
        while True:
            time.sleep(0.25)
            wait = next(reversed(self.waits), None)  # the script's thread goes on meanwhile
            if noted and wait != noted:
                self.note("goes on", 0)
                noted = None
            if wait and not noted and time.monotonic() - wait[2] > LONG:
                noted = wait
                self.note("waiting", wait[1], op=wait[0], loops=self.loops)
            if (self._folder / "stop").exists():
                os._exit(3)


class Loop:
    """A loop of the script that is running, and when it is cut: see `Watch.each`.

    Args:
        iterable: what it goes over, for its length.
    """

    def __init__(self, watch: Watch, line: int, iterable=None):
        self.watch, self.line, self.iterable = watch, line, iterable
        self.item = None
        self.iteration, self.trained = 0, 0  # rounds that were begun, and those that trained
        self.steps, self.passes = watch.steps, watch.passes  # when the last round ended
        self.left = "early"  # by `break`, `return` or an error

    def __enter__(self):
        self.watch.running = [*self.watch.running, self]
        return self

    def ended(self) -> bool:
        """After a round: whether it was the last that this loop gets."""
        if self.watch.steps == self.steps:
            return False
        self.trained += 1
        nested = self.watch.passes > self.passes
        self.steps, self.passes = self.watch.steps, self.watch.passes
        if self.trained == 1:
            made = getattr(self.iterable, "_hvdlab_line", None)
            length = None if nested else _length(self.iterable)
            self.watch.note("loop", self.line, length=length, made=made, nested=nested)
        if self.trained < (EPOCHS if nested else self.watch.limit):
            return False
        self.left = "cut"
        return True

    def again(self, test) -> bool:
        """The test of a while loop, false when the loop is cut."""
        if self.ended():
            return False
        if test:
            self.iteration += 1
            return True
        self.left = "at its end"
        return False

    def __exit__(self, *error):
        if self.trained or self.watch.steps > self.steps:
            self.watch.passes += 1
            self.watch.note("pass", self.line, iterations=self.iteration, left=self.left)
        self.watch.running = [loop for loop in self.watch.running if loop is not self]


class Pass:
    """The iterable of a `for` loop, cut short: see `Watch.each`."""

    def __init__(self, watch, line, iterable):
        self.watch, self.line, self.iterable = watch, line, iterable

    def __len__(self):
        return len(self.iterable)

    def __getattr__(self, name):
        return getattr(self.iterable, name)

    def __iter__(self):
        with Loop(self.watch, self.line, self.iterable) as loop:
            for loop.item in self.iterable:
                loop.iteration += 1
                yield loop.item
                if loop.ended():
                    return
            loop.left = "at its end"


def _length(iterable):
    try:
        return len(iterable)
    except (TypeError, NotImplementedError):
        return None


def made_at(script: str) -> int | None:
    """The line where the object was made that is at work now: a callback, say, inside `fit`."""
    frame = sys._getframe(1)
    while frame and frame.f_code.co_filename != script:
        line = getattr(frame.f_locals.get("self"), "_hvdlab_line", None)
        if line:
            return line
        frame = frame.f_back
    return None
