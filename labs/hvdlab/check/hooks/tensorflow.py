"""Hooks in TensorFlow: the graphs of tf.function, in which a rank may wait or decide, and tf.data."""

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from hvdlab.check.event_log import Watch
from hvdlab.check.fingerprints import content, number
from hvdlab.check.instrument import with_decisions
from hvdlab.trace import records


def graphs(module: ModuleType, watch: Watch) -> None:
    """Note where a rank is while a graph runs.

    Horovod's operations in a graph call no Python, so nothing else shows that a rank waits in one. Only
    graphs with collectives count, and the time of tracing them does not.
    """
    watch.when_run = _when_run
    function = module.ConcreteFunction
    call_flat = function._call_flat

    @functools.wraps(call_flat)
    def noting_call_flat(self: Any, *arguments: Any, **options: Any) -> Any:
        watched = watch.fitting or watch.waits  # by another hook already
        if watched or self.graph not in watch.graphs:
            return call_flat(self, *arguments, **options)
        function, number = watch.graphs[self.graph]
        watch.waits_in("graph", watch.line(), f"{function} {number + 1}")
        try:
            return call_flat(self, *arguments, **options)
        finally:
            watch.waits.pop()

    function._call_flat = noting_call_flat


def _when_run(tensor: Any, function: Callable[[Any], None]) -> None:
    """Insert a call of a function into the graph that TensorFlow is building, with the value of a tensor."""
    tf = sys.modules.get("tensorflow")
    if not hasattr(tf, "is_symbolic_tensor") or not tf.is_symbolic_tensor(tensor):
        return

    def call(value: Any) -> None:  # py_function wants no result
        function(value)

    kind = tensor.dtype
    if tensor.shape.rank == 0 and (kind.is_floating or kind.is_integer or kind.is_bool):
        if not compiled(tf):
            tf.py_function(call, [tensor], [])


def compiled(tf: ModuleType) -> bool:
    """Return whether XLA compiles the graph: XLA has no variables of changing shape, and calls no Python."""
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

    return GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def unchanged(module: ModuleType, watch: Watch) -> None:
    """Let AutoGraph leave the functions of the watch as they are."""
    module.CONVERSION_RULES = (module.DoNotConvert("hvdlab.check"), *module.CONVERSION_RULES)


def sources(module: ModuleType, watch: Watch) -> None:
    """Give AutoGraph the script with its decisions instrumented, because it translates the source."""
    read = module.getimmediatesource

    @functools.cache
    def lines(path: str) -> list[str]:
        return with_decisions(Path(path).read_bytes(), watch.blocks[path])

    @functools.wraps(read)
    def instrumented(function: Any) -> str:
        path = inspect.getsourcefile(function)
        if path not in watch.blocks:
            return read(function)
        _, start = inspect.findsource(function)
        return "".join(inspect.getblock(lines(path)[start:]))

    module.getimmediatesource = instrumented


def saved_models(module: ModuleType, watch: Watch) -> None:
    """Write down saved models, because TensorFlow writes them without Python's `open`."""
    save = module.save

    @functools.wraps(save)
    def noting_save(obj: Any, export_dir: Any, *arguments: Any, **options: Any) -> Any:
        watch.save(export_dir)
        return save(obj, export_dir, *arguments, **options)

    module.save = noting_save


def translations(module: ModuleType, watch: Watch) -> None:
    """Keep from which lines of the script AutoGraph has translated the lines of a function."""
    transform = module.PyToPy.transform_function

    @functools.wraps(transform)
    def noting_transform(self: Any, function: Any, context: Any) -> tuple:
        translated, made, lines = transform(self, function, context)
        for new, origin in lines.items():
            if (block := watch.blocks.get(origin.loc.filename)) is not None:
                watch.translated[new.filename, new.lineno] = block + origin.loc.lineno
        return translated, made, lines

    module.PyToPy.transform_function = noting_transform


def data(module: ModuleType, watch: Watch) -> None:
    """Write down which shard of a data set a rank takes, and note when the script begins to read it."""
    shard = module.DatasetV2.shard

    @functools.wraps(shard)
    def noting_shard(
        self: Any, num_shards: Any, index: Any, *arguments: Any, **options: Any
    ) -> Any:
        which, count = number(index), number(num_shards)
        if watch.line() and which is not None and (count or 0) > 1:
            watch.note(
                records.Part,
                which=[which, count],
                content=_content(self) if watch.has_cut else None,
                order=_order(self, watch.rank),
                again=_shards(self) * count > watch.size,
            )
        return shard(self, num_shards, index, *arguments, **options)

    iterate = module.DatasetV2.__iter__

    @functools.wraps(iterate)
    def noting_iterate(self: Any) -> Any:
        if watch.line() and not watch.fitting:
            watch.reads(watch.line(), of_shard(self))
        return iterate(self)

    module.DatasetV2.shard, module.DatasetV2.__iter__ = noting_shard, noting_iterate


def _order(data: Any, rank: int) -> str | None:
    """Return what the order of a data set depends on: the seeds of its shuffle, or the rank without seeds."""
    shuffle = _made_by(data, "ShuffleDataset")
    if shuffle is None:
        return None
    seeds = [number(shuffle._seed), number(shuffle._seed2)]
    return f"shuffled by rank {rank}" if seeds == [0, 0] else str(seeds)


def _made_by(data: Any, kind: str) -> Any:
    """Return the data set itself, or the last one that it is made of, of one kind of tf.data, or None."""
    while data is not None and kind not in type(data).__name__:
        data = getattr(data, "_input_dataset", None)
    return data


def of_shard(data: Any) -> bool:
    """Return whether a data set of tf.data, or one that it is made of, is a shard of several."""
    return _shards(data) > 1


def _shards(data: Any) -> float:
    """Return of how many shards a data set is one, or one that it is made of; 1: it is no shard."""
    shard = _made_by(data, "ShardDataset")
    return 1 if shard is None else number(shard._num_shards) or 1


def _content(data: Any) -> int | None:
    """Return the hash of the array or list that a data set is made of, or None if there is none."""
    slices = _made_by(data, "TensorSliceDataset")
    return None if slices is None else content(slices._tensors[0])
