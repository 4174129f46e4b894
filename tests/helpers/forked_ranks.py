"""Run a function on two real ranks within a second: they are forked after this process has imported torch.

    assert on_ranks(add_up, 3) == [...]

The children have the variables that torchrun would set, for `rendezvous`. Gloo connects them.
"""

import json
import multiprocessing
import os
import traceback
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist

from hvdlab.launch import LaunchError, function_on_ranks
from hvdlab.system.free_port import free_port


def on_ranks(function, *arguments, ranks: int = 2, timeout: float = 60) -> list:
    """Return the results of `function(*arguments)` on each rank.

    Raises:
        AssertionError: a rank failed, with its traceback.
        TimeoutError: a rank did not answer in time.
    """
    context = multiprocessing.get_context("fork")
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
            child = context.Process(target=_answer, args=(there, variables, function, arguments))
            child.start()
            children.append((child, here))
        answers = []
        for rank, (_, here) in enumerate(children):
            if not here.poll(timeout):
                raise TimeoutError(f"rank {rank} did not answer within {timeout:g} s")
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

    import torch._dynamo  # noqa: F401  (otherwise each rank imports it with its first optimizer)
    import torch.distributed.fsdp  # noqa: F401

    def answer():
        there = {"np": np}
        for part in (*uses, function):
            exec(function_on_ranks._source(part), there)
        comm = SimpleNamespace(Barrier=lambda: None, rank=int(os.environ["RANK"]), size=ranks)
        result = there[function.__name__](comm, *json.loads(json.dumps(arguments)))
        return json.dumps(result, default=function_on_ranks._as_list)

    try:
        return [json.loads(row) for row in on_ranks(answer, ranks=ranks, timeout=300)]
    except AssertionError as error:
        raise LaunchError(str(error).strip().splitlines()[-1]) from None


def _answer(pipe, variables, function, arguments):
    os.environ.update({name: str(value) for name, value in variables.items()})
    torch.set_num_threads(1)  # fork copies no other thread, so OpenMP must not wait for its own
    try:
        answer = True, function(*arguments)
        if dist.is_initialized():
            dist.barrier()  # no rank ends while another still sends
    except NotImplementedError as error:
        answer = False, error
    except BaseException:
        answer = False, traceback.format_exc()
    pipe.send(answer)
    os._exit(0)  # without the exit handlers of the parent
