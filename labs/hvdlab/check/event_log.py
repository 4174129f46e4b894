"""The events of one rank, as JSON lines, and the loops of its script, which end after a few steps.

The records are those of `hvdlab.trace`. The rules read them through `run_events.Run`.
"""

import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hvdlab.check import unwatched
from hvdlab.check.epoch_totals import Totals
from hvdlab.check.fingerprints import digest, inputs, items, number, rows
from hvdlab.check.long_waits import Wait, note_long_waits
from hvdlab.check.loops import Loop, Pass, planned
from hvdlab.script_analysis.script import Script
from hvdlab.trace import records

CAP = 10  # times the step limit of a loop: then the script ends, in a loop or not
FULL = 64  # steps that are all written down
MAX_DECISIONS = 64  # written down for each place


class Watch:
    """The events of one rank, and its progress.

    Args:
        script: absolute path; lines are lines of it.
        size: number of ranks.
        limit: training steps after which a loop ends.
        whole: whether no loop ends early, and the rank report is written. Default False.
    """

    def __init__(
        self, folder: Path, script: str, rank: int, size: int, limit: int, whole: bool = False
    ) -> None:
        self.script, self.rank, self.size, self.limit = script, rank, size, limit
        self.blocks = {script: 0}  # path of the script, or of a module of it -> see `places`
        self.imported = {*sys.modules}  # before the script began
        self.steps = 0  # of all optimizers
        self.totals = Totals() if whole else None
        # The step with which the process ends; 0: none.
        self.last = int(os.environ.get("HVDLAB_CHECK_END", 0))
        self.progress = 0  # steps, and broadcasts of weights, which another rank may have changed
        self.passes = 0  # training loops that have ended
        self.running: list[Loop] = []  # the loops that are running, the innermost last
        self.waits: list[Wait] = []  # the innermost last
        self.locks: set[int] = set()  # descriptors of files that are locked
        self.wrapping = False  # inside DistributedOptimizer, which creates another optimizer
        self.fitting = False  # inside model.fit, which counts its own steps
        self.norms = False  # there has been a layer of batch norm
        self.planned: int | None = None  # steps that `fit` makes in total
        self.taped = False  # there has been a DistributedGradientTape
        self.taped_at: int | None = None  # the line that has asked a tape for gradients last
        self.clipped_at: int | None = None  # the line of TensorFlow's last clipping
        # identity of a variable of TensorFlow -> gradients of it that no optimizer has got yet
        self.local: dict[int, list] = {}
        self.sketched: Any = None  # variable with the sketches of the last step of `fit`
        self.batch = None  # what the model was called with since the last step
        # Graphs of TensorFlow with collectives -> (traced function, number of its graphs before this one).
        self.graphs: Any = weakref.WeakKeyDictionary()
        self.kept: dict = {}  # TensorFlow variables in which a graph keeps a sample of its batch
        self.called = False  # whether the model was called since then
        self.rows: int | None = None  # of the batch, where only the model has got it
        self.loss = None
        self.backward: int | None = None  # the line of the last backward pass
        # Norms of the weights when the first step of an optimizer, or a step without an average, begins.
        self.start: list[float] | None = None
        self.exchanging: list = []  # references to the wrapped optimizers of PyTorch
        self.gradients: Any = None  # what `hooks.torch_gradients` knows of them
        self.group: Any = None  # of torch.distributed, for the collectives that the script calls
        # The loader that was read last, until the model is evaluated: its line, and whether it reads a shard.
        self.loader: tuple[int | None, bool] | None = None
        self.calls = 0  # of the model until it counts as evaluated
        self.forward: int | None = None  # the line that called the model since the last step
        self.wrapped_parameters: dict[
            int, str
        ] = {}  # id -> name, of those in a DistributedDataParallel
        # (file, line) of code that AutoGraph has made of the script -> line of the script
        self.translated: dict[tuple[str, int], int] = {}
        # Calls a function with the value of a tensor of TensorFlow when its graph runs.
        self.when_run: Callable[[Any, Callable], None] | None = None
        self._decisions: dict[tuple[int, str], int] = {}
        self._wholes: set[int] = set()  # lines
        self._lock = threading.RLock()
        self._started = time.monotonic()
        self._folder = folder
        self._file = open(folder / f"rank-{rank}.jsonl", "w", buffering=1, encoding="utf-8")
        unwatched.watches.append(self)
        self.note(records.Start, rank=rank, size=size)
        threading.Thread(target=note_long_waits, args=(self, folder), daemon=True).start()

    def __reduce__(self) -> tuple:  # a script may send its functions, which call the watch
        return unwatched.of_this_process, ()

    def note(self, kind: type[records.Record], line: int | None = None, **facts: Any) -> None:
        """Write a record.

        Args:
            line: of the script. Default None: the line that is running.
            facts: its other fields.
        """
        if line is None:
            line = self.line()
        at = round(time.monotonic() - self._started, 4)
        text = records.as_line(kind(at=at, steps=self.steps, line=line, **facts), number)
        with self._lock:
            if not self._file.closed:
                self._file.write(text + "\n")

    def reads(self, made: int | None, sharded: bool) -> None:
        """Note that the script begins to read a loader.

        Args:
            sharded: whether it reads the shard of one rank.
        """
        by_hand = self.running and self.running[-1].iteration > 0  # perhaps next(iter(loader))
        self.loader, self.calls = (made, sharded), 2 if by_hand else 1

    def evaluates(self) -> None:
        """Note that the script calls the model in no training mode, once for each reading of a loader.

        A single call with one batch that the script has read by itself is no evaluation.
        """
        self.calls -= 1
        if self.loader and self.calls <= 0:
            (made, sharded), self.loader = self.loader, None
            self.note(records.Evaluate, made=made, sharded=sharded, content=None, loops=self.loops)

    def waits_in(self, operation: str, line: int | None, name: str | None = None) -> None:
        """Note that a call begins in which the rank may wait for other ranks.

        Args:
            name: of what it sends, or of the graph that it runs. Default None: no name.
        """
        self.waits.append(Wait(operation, line, time.monotonic(), name, stack=tuple(self.stack())))

    @property
    def writes(self) -> bool:
        """Whether the next step is written down: the first FULL ones, and later those of a power of two."""
        steps = self.steps + 1
        return steps <= FULL or steps & (steps - 1) == 0

    def looks_at_statistics(self) -> bool:
        """Return whether the next step writes down the statistics of batch norm.

        They are large, so only steps 4, 8, 16, ... write them down.
        """
        steps = self.steps + 1
        return steps >= 4 and steps & (steps - 1) == 0

    def end(
        self, error: str | None = None, line: int | None = None, made: int | None = None
    ) -> None:
        """Write down that the script has ended.

        Args:
            error: in one line. Default None: there was none.
        """
        for path in foreign_files(self.blocks, self.imported):
            self.note(records.Unread, 0, path=path)
        if self.totals:
            self.note(records.Report, 0, **self.totals.record())
        self.note(records.End, line, error=error, made=made)

    def line(self) -> int | None:
        """Return the line of the script that is running, in the innermost of its functions."""
        return next(self._lines(), None)

    def stack(self) -> list[int]:
        """Return the lines of the script that are running, the outermost function first."""
        made = made_at(self)
        return [made] if made else [*self._lines()][::-1]

    def _lines(self) -> Iterator[int]:
        """Yield the lines of the script that are running, the innermost function first."""
        frame = sys._getframe(1)
        while frame:
            block = self.blocks.get(frame.f_code.co_filename)
            if block is not None:
                yield block + frame.f_lineno
            elif line := self.translated.get((frame.f_code.co_filename, frame.f_lineno)):
                yield line
            frame = frame.f_back

    def importing(self) -> bool:
        """Return whether the script is in an import."""
        frame = sys._getframe(1)
        while frame and frame.f_code.co_filename not in self.blocks:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                return True
            frame = frame.f_back
        return frame is None

    def in_library(self, name: str) -> bool:
        """Return whether a module whose name begins so runs now, called by the script."""
        frame = sys._getframe(1)
        while frame and frame.f_code.co_filename not in self.blocks:
            if frame.f_globals.get("__name__", "").startswith(name):
                return True
            frame = frame.f_back
        return False

    def save(self, path: Any) -> None:
        """Write down that the script writes a file, unless it is a file of ours or no file at all."""
        try:
            path = os.path.abspath(os.fspath(path))
        except TypeError:  # an open file
            return
        ours = path.startswith((str(self._folder), "/dev/", "/proc/"))
        if not ours:
            self.note(records.Save, made_at(self) or self.line(), path=os.path.realpath(path))

    @contextmanager
    def inside(self, operation: str, name: str | None = None) -> Iterator[None]:
        """A context for a collective: it writes down the call, and where the rank is meanwhile.

        Args:
            name: that the script gives to its tensor. Default None: no name.
        """
        # A collective may be made of others, or run inside a training step of Keras.
        if self.gradients:
            self.gradients.end()
        nested = bool(self.waits) and self.waits[-1].operation != "a training step"
        stack = self.stack()
        line = stack[-1] if stack else None
        if not nested:
            self.note(records.Collective, line, op=operation, name=name, stack=stack)
        self.waits.append(Wait(operation, line, time.monotonic(), name, stack=tuple(stack)))
        try:
            yield
        finally:
            self.waits.pop()

    def step(self, may_end: bool = True, line: int | None = None, **facts: Any) -> None:
        """Write down a step of an optimizer.

        Args:
            may_end: whether the script may end here, after CAP times the step limit. Default True.
            line: of the script. Default None: the line that is running.

        Raises:
            SystemExit: the script has made enough steps. It still runs the code at its end.
        """
        written = self.writes
        self.steps += 1
        self.progress += 1
        if self.totals:
            read = [self.batch] if self.batch is not None else [e.item for e in self.running[::-1]]
            self.totals.step(next(filter(None, map(inputs, read)), None), self.loss)
        if written:
            self._write_step(line, facts)
        self.loss = self.batch = self.rows = self.forward = self.start = None
        self.called = False
        self.loader = None  # what is read now is for training
        if self.steps == self.last:
            self.end()
            os._exit(0)
        if may_end and not self.totals and self.steps >= CAP * self.limit:
            raise SystemExit

    def _write_step(self, line: int | None, facts: dict[str, Any]) -> None:
        read = [self.batch]
        if self.batch is None:
            read = [loop.item for loop in reversed(self.running)]
        hashed = next(filter(None, map(digest, read)), None)
        facts.setdefault("rows", next(filter(None, map(rows, read)), self.rows))
        facts |= {"loops": self.loops, "start": self.start, "stack": self.stack()}
        facts["forward"] = self.forward
        facts.setdefault("planned", planned([loop.iterable for loop in self.running]))
        self.note(records.Step, line, loss=number(self.loss), batch=hashed, **facts)

    @property
    def loops(self) -> list[list[int]]:
        """[line, iteration] of the loops that are running, the innermost last."""
        return [[loop.line, loop.iteration] for loop in self.running]

    # --- methods that the instrumented script calls: see `instrument` ---------------------------

    def each(self, line: int, iterable: Iterable) -> Pass:
        """Return the items of a loop, which ends early when it trains.

        A loop whose rounds train ends after `limit` of them. A loop around such a loop ends after EPOCHS
        rounds. The script sees iterables that are exhausted, and continues. Loops that do not train
        are left unchanged.
        """
        return Pass(self, line, iterable)

    def rounds(self, line: int) -> Loop:
        """Return the context of a while loop, whose test calls its `again`: see `each`."""
        return Loop(self, line)

    def collective(self, line: int, name: str, function: Callable) -> Callable:
        """Return a collective of mpi4py that writes down its call."""

        def call(*arguments: Any, **options: Any) -> Any:
            with self.inside(f"MPI.{name}"):
                return function(*arguments, **options)

        return call

    def whole(self, line: int, value: Any) -> Any:
        """Write down what a rank takes a part of by its rank, and return it."""
        self._note_whole(line, value, None)
        return value

    def part(self, line: int, value: Any, *bounds: Any) -> Any:
        """Return a slice, and write down what it is a part of.

        Args:
            bounds: of the slice: start, stop and step.
        """
        self._note_whole(line, value, [number(bound) for bound in bounds])
        return value[slice(*bounds)]

    @property
    def has_cut(self) -> bool:
        """Whether the script has taken a part of something by its rank."""
        return bool(self._wholes)

    def _note_whole(self, line: int, value: Any, bounds: list[float | None] | None) -> None:
        """Write down once for each line of what a rank takes a part by its rank."""
        if line not in self._wholes:  # a part of each batch may be taken in each step
            self._wholes.add(line)
            if found := items(value, self.size):
                which = bounds if bounds and bounds[0] is not None else None
                self.note(
                    records.Part, line,
                    which=which, items=found.count, content=found.content, order=found.order,
                )  # fmt: skip

    def decide(self, line: int, text: str, value: Any) -> Any:
        """Write down a value that a decision to stop depends on, and return the value."""
        if self.when_run:
            self.when_run(value, lambda result: self.decide(line, text, result))
        seen = self._decisions.get((line, text), 0)
        if seen < MAX_DECISIONS and (noted := number(value)) is not None:
            self._decisions[line, text] = seen + 1
            where = {"loops": self.loops, "stack": self.stack()}
            self.note(records.Decision, line, text=text, value=noted, **where)
        return value


def foreign_files(own: Iterable[str], before: Collection[str]) -> list[str]:
    """Return the files that a script imports and that are neither installed nor in its folder nor ours.

    Args:
        own: the script first, and its modules.
        before: modules that were imported before the script began.
    """
    folder = str(Path(next(iter(own))).parent)
    known = sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]), folder
    full = {name for path in own for name in Script(Path(path).read_bytes()).imports}
    named = {name[: end.start()] for name in full for end in re.finditer(r"\.|$", name)}
    files = {getattr(sys.modules.get(name), "__file__", None) or "" for name in named - {*before}}
    found = (path for path in files if path.endswith(".py") and "-packages" not in path)
    return [path for path in found if os.path.isabs(path) and not path.startswith(known)]


def made_at(watch: Watch) -> int | None:
    """Return the line that created the object whose method is running, such as a callback inside `fit`."""
    frame = sys._getframe(1)
    while frame and frame.f_code.co_filename not in watch.blocks:
        line = getattr(frame.f_locals.get("self"), "_hvdlab_line", None)
        if line:
            return line
        frame = frame.f_back
    return None
