"""A function on two real ranks in a second: forked from this process, which has imported torch already.

    assert on_ranks(add_up, 3) == [...]

The children have what torchrun would have set, so that `rendezvous` finds it; Gloo connects them.
"""

import multiprocessing
import os
import traceback

import torch
import torch.distributed as dist

from hvdlab.torch.process_group import free_port


def on_ranks(function, *arguments, ranks: int = 2, timeout: float = 60) -> list:
    """What `function(*arguments)` returns on each rank.

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


def _answer(pipe, variables, function, arguments):
    os.environ.update({name: str(value) for name, value in variables.items()})
    torch.set_num_threads(1)  # OpenMP's other threads, if the parent had used them, are not here
    try:
        answer = True, function(*arguments)
        if dist.is_initialized():
            dist.barrier()  # nobody leaves while another still talks
    except NotImplementedError as error:
        answer = False, error
    except BaseException:
        answer = False, traceback.format_exc()
    pipe.send(answer)
    os._exit(0)  # without the parent's own tidying up
