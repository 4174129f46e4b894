"""Run a function on two real ranks within a second: a process that has imported torch forks them.

    assert on_ranks(add_up, 3) == [...]

The ranks have the variables that torchrun would set, for
`rendezvous`. Gloo connects them. The process of pytest forks nothing: the threads of TensorFlow and PyTorch
hold locks that nobody would release in the ranks.
"""

import faulthandler
import json
import multiprocessing
import os
import sys
import tempfile
import traceback
from types import SimpleNamespace

import cloudpickle
import numpy as np
import torch
import torch.distributed as dist

from hvdlab.launch import LaunchError, function_on_ranks
from hvdlab.system.free_port import free_port

multiprocessing.set_forkserver_preload(
    ["torch", "torch._dynamo", "torch.distributed.fsdp", "hvdlab.launch"]
)


def on_ranks(function, *arguments, ranks: int = 2, timeout: float = 60) -> list:
    """Return the results of `function(*arguments)` on each rank.

    Raises:
        AssertionError: a rank failed, with its traceback.
        TimeoutError: a rank did not answer in time.
    """
    context = multiprocessing.get_context("forkserver")
    cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
    task = cloudpickle.dumps((function, arguments))
    stacks = [
        tempfile.NamedTemporaryFile("r", encoding="utf-8") for _ in range(ranks)
    ]  # where each rank waits at the end
    port = free_port()
    children = []
    try:
        for rank in range(ranks):
            here, there = context.Pipe(duplex=False)
            variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
            variables |= {
                "LOCAL_WORLD_SIZE": ranks,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            child = context.Process(
                target=_answer, args=(there, variables, task, timeout, stacks[rank].name)
            )
            child.start()
            children.append((child, here))
        answers = []
        for rank, (_, here) in enumerate(children):
            if not here.poll(timeout):
                raise TimeoutError(
                    f"rank {rank} did not answer within {timeout:g} s:\n{stacks[rank].read()}"
                )
            answers.append(here.recv())
    finally:
        for child, _ in children:
            child.kill()
            child.join()
    for good, answer in answers:
        if isinstance(answer, NotImplementedError):
            raise answer
        assert good, answer
    return [answer for _, answer in answers]


def call(function, *arguments, ranks: int, timeout: float, uses: tuple) -> list:
    """Return what `hvdlab.launch.call` returns, within a second instead of five."""
    sources = [function_on_ranks._source(part) for part in (*uses, function)]
    task = _from_sources, sources, function.__name__, json.dumps(arguments)
    try:
        return [json.loads(row) for row in on_ranks(*task, ranks=ranks, timeout=300)]
    except AssertionError as error:
        raise LaunchError(str(error).strip().splitlines()[-1]) from None


def _from_sources(sources, name, arguments):
    there = {"np": np}
    for source in sources:
        exec(source, there)
    rank, size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    comm = SimpleNamespace(Barrier=lambda: None, rank=rank, size=size)
    return json.dumps(there[name](comm, *json.loads(arguments)), default=function_on_ranks._as_list)


def _answer(pipe, variables, task, timeout, stack):
    faulthandler.dump_traceback_later(0.9 * timeout, file=open(stack, "w", encoding="utf-8"))
    os.environ.update({name: str(value) for name, value in variables.items()})
    torch.set_num_threads(1)
    try:
        function, arguments = cloudpickle.loads(task)
        answer = True, function(*arguments)
        if dist.is_initialized():
            dist.barrier()  # no rank ends while another still sends
    except NotImplementedError as error:
        answer = False, error
    except BaseException:
        answer = False, traceback.format_exc()
    pipe.send(answer)
    os._exit(0)  # without the exit handlers of the parent
