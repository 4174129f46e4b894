"""What one rank does, as JSON lines: the notebook of `watch`, and the clock of its loops.

Events have `kind`, `at` (seconds since the start of the watch), `steps` (optimizer steps so far) and
`line` (of the script, where the call came from), and more by kind:

    start, end                         of the script; end with the error, if there was one
    init, wrap, broadcast, join        calls of Horovod
    collective; waiting, goes on       one was called; lasts for long, is over after all
    optimizer, compile, fit            one is made; given to a model of Keras; an epoch's batches
    step                               of an optimizer: loss, batch, rate, weights, statistics
    loop, pass                         that trains: its first round; left, how and after how many
    decision                           a value that a stop depends on
    save, download, devices            a path; a URL; how many GPUs

The rules ask for them by `run_facts.Run`.
"""

import json
import os
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from hvdlab.check.samples import digest, number

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
        self.locks = 0  # file locks held
        self.wrapping = False  # inside DistributedOptimizer, which makes an optimizer of its own
        self.fitting = False  # inside model.fit, which counts its own steps
        self.tape = False  # gradients come from a DistributedGradientTape
        self.batch = None  # what the model was called with since the last step
        self.called = False  # the model was called since then
        self.loss = None
        self._decisions = {}
        self._while = {}  # line -> (iterations that trained, steps and passes before this one)
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
        self.note("end", line, error=error, loops=self.loops)

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
            self.note("save", made_at(self.script) or self.line(), path=path)

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

    def again(self, line: int, test):
        """The test of a while loop, false when the loop is cut: as `each`, for loops without items."""
        trained, steps, passes = self._while.pop(line, (0, self.steps, self.passes))
        if self.steps > steps:
            trained += 1
        limit = EPOCHS if self.passes > passes else self.limit
        if trained < limit and test:
            self._while[line] = trained, self.steps, self.passes
            return True
        self.passes += trained > 0
        return False

    def decide(self, line: int, text: str, value):
        """A value that a decision to stop depends on."""
        seen = self._decisions.get((line, text), 0)
        if seen < DECISIONS and (found := number(value)) is not None:
            self._decisions[line, text] = seen + 1
            self.note("decision", line, text=text, value=found)
        return value

    # --- beside the script ------------------------------------------------------------------------

    def _look_around(self):
        """Note a long wait, and end when we are told to."""
        noted = None
        while True:
            time.sleep(0.25)
            wait = self.waits[-1] if self.waits else None
            if noted and wait != noted:
                self.note("goes on", 0)
                noted = None
            if wait and not noted and time.monotonic() - wait[2] > LONG:
                noted = wait
                self.note("waiting", wait[1], op=wait[0], loops=self.loops)
            if (self._folder / "stop").exists():
                os._exit(3)


class Loop:
    """A loop that is running."""

    def __init__(self, line: int):
        self.line, self.iteration, self.item = line, 0, None


class Pass:
    """The iterable of a `for` loop, cut short: see `Watch.each`."""

    def __init__(self, watch, line, iterable):
        self.watch, self.line, self.iterable = watch, line, iterable

    def __len__(self):
        return len(self.iterable)

    def __getattr__(self, name):
        return getattr(self.iterable, name)

    def __iter__(self):
        watch, loop = self.watch, Loop(self.line)
        watch.running = [*watch.running, loop]
        trained, left = 0, "early"  # by `break`, `return` or an error
        try:
            for loop.item in self.iterable:
                steps, passes = watch.steps, watch.passes
                loop.iteration += 1
                yield loop.item
                if watch.steps == steps:
                    continue
                trained += 1
                nested = watch.passes > passes
                if trained == 1:
                    made = getattr(self.iterable, "_hvdlab_line", None)
                    length = None if nested else _length(self.iterable)
                    watch.note("loop", self.line, length=length, made=made, nested=nested)
                if trained >= (EPOCHS if nested else watch.limit):
                    left = "cut"
                    break
            else:
                left = "at its end"
        finally:
            if trained or loop.iteration and watch.steps > steps:
                watch.passes += 1
                watch.note("pass", self.line, iterations=loop.iteration, left=left)
            if sys.exc_info()[0] in (None, GeneratorExit):  # an error is told where it happened
                watch.running = [one for one in watch.running if one is not loop]


def _length(iterable):
    try:
        return len(iterable)
    except TypeError:
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
