"""One watched rank: run a script like `python SCRIPT ARGUMENTS`, and write down what it does.

    mpirun -np 2 python labs/hvdlab/check/watched_rank.py SCRIPT ARGUMENTS
    torchrun --nproc-per-node 2 labs/hvdlab/check/watched_rank.py SCRIPT ARGUMENTS

`hvdlab check` starts it. The functions of Horovod, torch.distributed and the framework are wrapped after
their import, see `hvdlab.check.hooks`. No number is changed. A run differs from a plain run in three ways.
Training loops end early, so that a script of hours reaches its own end within seconds: see `Watch.each`.
A script ends where it passes a tensor to Horovod for which Horovod would wait for ever. And in the first
steps a hook that changes the gradient of a parameter is called twice, to see whether it clips.

Environment:
    HVDLAB_CHECK        folder for the events, one JSON line each, in rank-R.jsonl
    HVDLAB_CHECK_STEPS  training steps after which a loop ends
    HVDLAB_CHECK_WHOLE  if it is set, loops do not end early, and each rank writes its part of the rank report
    HVDLAB_CHECK_END    training steps after which the process ends; 0: it ends by itself
"""

import os
import sys
from pathlib import Path

from hvdlab.trace import records

if __name__ == "__main__":
    del sys.path[0]  # this folder: its modules are hvdlab's, not the script's

import fcntl
import importlib.abc
import importlib.machinery
import traceback
import types
from collections.abc import Callable, Sequence

from hvdlab.check import instrument, places
from hvdlab.check.event_log import Watch
from hvdlab.check.hooks import (
    horovod,
    keras,
    sklearn,
    tensorflow,
    tensorflow_gradients,
    torch,
    torch_distributed,
)
from hvdlab.record import launched_rank

WATCHED = {
    "torch": torch.watch,
    "torch.distributed": torch_distributed.watch,
    "torch.nn.parallel.distributed": torch_distributed.watch_wrapper,
    "torch.distributed.algorithms.join": torch_distributed.watch_join,
    "tensorflow.python.eager.polymorphic_function.concrete_function": tensorflow.graphs,
    "tensorflow.python.autograph.core.config": tensorflow.unchanged,
    "tensorflow.python.autograph.pyct.inspect_utils": tensorflow.sources,
    "tensorflow.python.autograph.pyct.transpiler": tensorflow.translations,
    "tensorflow.python.data.ops.dataset_ops": tensorflow.data,
    "tensorflow.python.eager.backprop": tensorflow_gradients.tapes,
    "tensorflow.python.ops.clip_ops": tensorflow_gradients.clips,
    "tensorflow.python.saved_model.save": tensorflow.saved_models,
    "sklearn.model_selection": sklearn.watch,
    "keras": keras.watch,
    "tf_keras": keras.watch,
    "horovod.torch": horovod.watch,
    "horovod.tensorflow": horovod.watch,
    "horovod.tensorflow.keras": horovod.watch,
    "horovod.keras": horovod.watch,
    "hvdlab.keras.collectives": horovod.watch,  # where hvdlab.keras.callbacks finds broadcasts
    "hvdlab.keras.horovod": horovod.watch,
}


class AfterImport(importlib.abc.MetaPathFinder):
    """Wraps the functions of a module right after its import, before any other module copies them."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module whose loader wraps its functions or its loops.

        Returns:
            The spec of a module of WATCHED or of the script's folder; None for any other module.
        """
        if name not in WATCHED:
            return self._own(name, path)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            run(module)
            WATCHED[name](module, self.watch)

        spec.loader.exec_module = exec_module
        return spec

    def _own(self, name: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module in the script's folder, unless it was installed there, or None."""
        folder = str(Path(self.watch.script).parent)
        places = [folder] if path is None else [p for p in path if Path(p).is_relative_to(folder)]
        known = name in sys.builtin_module_names or name.partition(".")[0] in ("hvdlab", "hvdgrade")
        if known or not places:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, places)
        if not spec or not (spec.origin or "").endswith(".py") or "site-packages" in spec.origin:
            return None
        spec.loader = OwnModule(spec.name, spec.origin, self.watch)
        return spec


class Script(importlib.machinery.SourceFileLoader):
    """Loads the script with its loops and decisions to stop instrumented."""

    block = 0

    def source_to_code(self, data: bytes, path: str, *, _optimize: int = -1) -> types.CodeType:
        """Return the code of the instrumented script."""
        tree = instrument.instrument(data, path, self.block)
        return compile(tree, path, "exec", dont_inherit=True)

    def get_code(self, fullname: str) -> types.CodeType:
        """Return the code of the instrumented script, without a cache."""
        return self.source_to_code(self.get_data(self.path), self.path)


class OwnModule(Script):
    """Loads a module of the script's folder as it loads the script."""

    def __init__(self, name: str, path: str, watch: Watch) -> None:
        super().__init__(name, path)
        self.watch = watch
        self.relative = os.path.relpath(path, Path(watch.script).parent)
        self.block = watch.blocks[path] = places.block(self.relative)

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the module, and write down that it was imported."""
        setattr(module, instrument.WATCH, self.watch)
        self.watch.note(records.Module, path=self.relative, block=self.block)
        super().exec_module(module)


def files_and_locks(watch: Watch) -> Callable[[str, tuple], None]:
    """Return an audit hook that writes down files that are written, network requests, and file locks."""

    def hook(event: str, arguments: tuple) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            if writes and isinstance(path, str) and not watch.importing():
                if not os.path.isdir(path):  # a temporary file without a name of its own
                    watch.save(path)
        elif event == "urllib.Request":
            watch.note(records.Download, url=str(arguments[0]), locked=bool(watch.locks))
        elif event in ("fcntl.flock", "fcntl.lockf"):
            file, operation = arguments[:2]
            if operation & fcntl.LOCK_UN:
                watch.locks.discard(file)
            elif file not in watch.locks:  # a program that waits for a lock calls repeatedly
                watch.locks.add(file)
                watch.note(records.Lock, path=os.path.realpath(f"/proc/self/fd/{file}"))

    return hook


def main() -> None:
    """Run the script of the command line as __main__, and write down how it ended."""
    script = str(Path(sys.argv[1]).resolve())
    rank, size = launched_rank()
    folder = Path(os.environ["HVDLAB_CHECK"])
    watch = Watch(
        folder,
        script,
        rank,
        size,
        int(os.environ.get("HVDLAB_CHECK_STEPS", 0)),
        "HVDLAB_CHECK_WHOLE" in os.environ,
    )
    sys.meta_path.insert(0, AfterImport(watch))
    sys.addaudithook(files_and_locks(watch))

    del sys.argv[0]
    sys.path.insert(0, str(Path(script).parent))
    module = types.ModuleType("__main__")
    module.__file__, module.__builtins__ = script, __builtins__
    setattr(module, instrument.WATCH, watch)
    sys.modules["__main__"] = module
    try:
        Script("__main__", script).exec_module(module)
    except BaseException as error:
        watch.end(_one_line(error), *_lines(error, watch))
        raise
    watch.end()


def _lines(error: BaseException, watch: Watch) -> tuple[int | None, int | None]:
    """Return the line of the script that raised an error, and the line that created the failing object."""
    made = None
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        if (block := watch.blocks.get(frame.f_code.co_filename)) is not None:
            return block + line, made
        made = made or getattr(frame.f_locals.get("self"), "_hvdlab_line", None)
    return None, None


def _one_line(error: BaseException) -> str | None:
    """Return an error in one line; None for exit code 0, with which the watch ends a script too."""
    if not isinstance(error, SystemExit):
        return " ".join(f"{type(error).__name__}: {error}".split())[:600]
    if isinstance(error.code, str):
        return f"exit code 1 ({error.code})"[:600]
    return f"exit code {error.code}" if error.code else None


if __name__ == "__main__":
    main()
