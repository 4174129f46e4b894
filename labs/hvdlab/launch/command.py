"""`hvdlab run`: start a script on N ranks, show what they print, and say which rank failed."""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from hvdlab.arguments import above_zero, positive
from hvdlab.launch import host_watch, local
from hvdlab.launch import hosts as hosts_of
from hvdlab.launch.launchers.launcher import Launcher
from hvdlab.launch.local import LaunchError
from hvdlab.launch.plan import LAUNCHERS, Plan, plan
from hvdlab.launch.preflight import must_work, ranks_come_first
from hvdlab.launch.process_tree import GRACE_SECONDS
from hvdlab.launch.rank_output import RankOutput
from hvdlab.launch.script_file import must_be_script
from hvdlab.system import tensorflow_log
from hvdlab.system.held_folder import held_folder

EPILOG = """\
examples:
  hvdlab run -np 2 labs/cifar10_torch.py --epochs 1
  hvdlab run -np 4 -H host1:2,host2:2 train.py    on two hosts
  hvdlab run -np 2 --dry-run train.py             only print the command
  hvdlab run -np 2 --launcher torchrun train.py   for torch.distributed, on this machine
  hvdlab run -np 8 --launcher srun train.py       for torch.distributed, in a Slurm allocation

exit codes: 0 if all ranks ended well, 2 if nothing was started because of an error in the command,
124 at the time limit, 128 + N after signal N, else the exit code of the rank that failed first
"""
TIME_UP = 124  # exit code, as of the command `timeout`
REFUSED = 2  # exit code
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdlab run` to its parser."""
    parser.add_argument(
        "-np", type=positive, metavar="N", dest="ranks", help="number of ranks (required)"
    )
    parser.add_argument(
        "--launcher",
        choices=LAUNCHERS,
        default="mpirun",
        help="program that starts the ranks (default mpirun)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-H", dest="hosts", metavar="HOST:SLOTS,...", help="hosts, and number of ranks on each"
    )
    where.add_argument(
        "--hostfile",
        metavar="FILE",
        help="a hostfile of Open MPI, MPICH or PBS, with lines such as `host1 slots=2`",
    )
    parser.add_argument(
        "--timeout", type=above_zero, metavar="SECONDS", help="end all ranks after so many seconds"
    )
    parser.add_argument(
        "--force", action="store_true", help="start more ranks than this machine has room for"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the command that would start the ranks, and start nothing",
    )
    parser.add_argument("script", metavar="SCRIPT", help="a Python file")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="the arguments of the script"
    )


def main(
    args: argparse.Namespace, runner: str | None = None, variables: Mapping[str, str] | None = None
) -> int:
    """Run the command and return its exit code, as described in EPILOG.

    Args:
        args: of the parser of `add_arguments`.
        runner: a program that runs the script on each rank, and gets its path as the first argument. Default:
            none.
        variables: more environment variables of the ranks.
    """
    program = [runner, os.path.abspath(args.script)] if runner else [args.script]
    try:
        ranks_come_first(args.arguments)
        if args.ranks is None:
            raise LaunchError(f"give the number of ranks: hvdlab run -np 2 {args.script}.")
        must_be_script(args.script)
        planned = plan(
            args.ranks,
            *program,
            *args.arguments,
            launcher=args.launcher,
            hosts=args.hosts,
            hostfile=args.hostfile,
        )
        planned.variables.update(variables or {})
        if args.dry_run:
            print(planned.line())
            return 0
        must_work(planned, args.script, args.force)
    except LaunchError as error:
        return refused(str(error))
    sentence, code = follow(planned, Path(args.script).name, args.timeout)
    if sentence:
        print(f"hvdlab run: {sentence}.", file=sys.stderr)
    return code


def refused(sentence: str) -> int:
    """Print why nothing was started, and return the exit code that says so."""
    print(f"hvdlab run: {sentence}", file=sys.stderr)
    return REFUSED


def follow(planned: Plan, name: str, limit: float | None) -> tuple[str, int]:
    """Start the ranks, show what they print, and return why they did not end well.

    A signal or the time limit asks the launcher to end the ranks. A second signal, or five seconds, ends
    them all. mpirun asks its ranks to end and ends them 0.25 s later. So a script should save its work while
    it trains, not at its end.

    Args:
        planned: what to start.
        name: file name of the script, for messages.
        limit: time limit in seconds. None: no limit.

    Returns:
        One sentence without its full stop, "" if all ranks ended well; and the exit code of `hvdlab run`.
    """
    launcher = LAUNCHERS[planned.launcher]
    log_level = {**os.environ, **planned.variables}[tensorflow_log.LEVEL]
    output = RankOutput(planned.ranks, launcher.Reader(), log_level=log_level)
    others = [host.name for host in planned.hosts if not hosts_of.is_here(host.name)]
    try:
        with (
            _received_signals() as signals,
            held_folder("hvdlab-run-") as folder,
            local.started(
                planned.command, planned.variables | _logs(folder.path), subprocess.PIPE
            ) as process,
            host_watch.watched(others) as lost,
        ):
            late = _pass_on(process, launcher, output, signals, limit, lost)
            lost_hosts = lost()
        output.settle(everything=True)
    except (
        BrokenPipeError
    ):  # the reader of our output has ended, such as `head` in `hvdlab run ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return "", 128 + signal.SIGPIPE
    if lost_hosts:
        return lost_hosts, 1
    subject = f"{name} on {planned.ranks} ranks"
    if signals:
        return f"{subject} was ended by {signal.Signals(signals[0]).name}", 128 + signals[0]
    if late:
        return f"{subject} did not end within {limit:g} s{output.where(name)}", TIME_UP
    stall = {**os.environ, **planned.variables}.get("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "")
    sentence, code = output.why(process.returncode, planned.launcher, stall)
    return sentence + (output.where(name) if output.stalled else ""), code


@contextlib.contextmanager
def _received_signals() -> Iterator[list[int]]:
    """Collect the signals that ask this process to end, instead of ending at once, while the block runs.

    Yields:
        The numbers of the signals that have arrived so far. A signal that nohup ignores stays ignored.
    """
    received: list[int] = []
    handled = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in handled
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _logs(folder: Path) -> dict[str, str]:
    """Return where torchrun keeps the output of the ranks. By default it makes a folder that stays."""
    return {"PET_LOG_DIR": os.environ.get("PET_LOG_DIR", str(folder))}


def _pass_on(
    process: subprocess.Popen,
    launcher: Launcher,
    output: RankOutput,
    signals: list[int],
    limit: float | None,
    lost: Callable[[], str],
) -> bool:
    """Give lines to `output` until the launcher has ended, and return whether the time limit ended it.

    Args:
        process: the running launcher.
        launcher: which program it is.
        output: takes the lines.
        signals: that this process has received so far.
        limit: time limit in seconds. None: no limit.
        lost: returns a sentence about lost hosts; "" if there is none.
    """
    began, asked, late = time.monotonic(), None, False
    for printed in local.printed_lines(process):
        if printed:
            output.line(*printed)
        output.settle()
        waited = 0.0 if asked is None else time.monotonic() - asked
        # If a host is lost, do not ask the launcher to end, because it would wait for that host.
        if len(signals) > 1 or lost() or waited >= GRACE_SECONDS:
            launcher.send(process, signal.SIGKILL)  # otherwise `started` would wait once more
            return late
        if asked is None:
            late = limit is not None and time.monotonic() - began > limit
            if signals:
                launcher.send(process, signal.SIGTERM)
            elif late:
                launcher.tell_where(process, None)
            elif output.stalled:
                launcher.tell_where(process, output.stalled)
            if signals or late or output.stalled:
                asked = time.monotonic()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_SECONDS)
    return late


if __name__ == "__main__":
    own = argparse.ArgumentParser(prog="hvdlab run")
    add_arguments(own)
    sys.exit(main(own.parse_args()))
