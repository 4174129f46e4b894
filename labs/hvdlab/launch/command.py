"""`hvdlab run`: start a script on N ranks, show what they print, and say which one failed."""

import argparse
import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from hvdlab.launch import host_watch, local
from hvdlab.launch import hosts as hosts_of
from hvdlab.launch.local import LaunchError
from hvdlab.launch.plan import LAUNCHERS, Plan, plan
from hvdlab.launch.preflight import must_work, ranks_come_first
from hvdlab.launch.rank_output import RankOutput

EPILOG = """\
examples:
  hvdlab run -np 2 labs/cifar10_torch.py --epochs 1
  hvdlab run -np 4 -H host1:2,host2:2 train.py    on two hosts
  hvdlab run -np 2 --dry-run train.py             only print the line that would be run
  hvdlab run -np 2 --launcher torchrun train.py   for torch.distributed, on this machine
  hvdlab run -np 8 --launcher srun train.py       for torch.distributed, in a Slurm allocation

exit codes: 0 all ranks ended well, 2 refused before the start, 124 time limit, 128 + N ended by
signal N, else that of the rank that failed first
"""
TIME_UP = 124  # as the command `timeout` does
REFUSED = 2
POLITE_SECONDS = 5  # that a launcher has for ending its ranks; mpirun gives them 0.25 s of it
CHANNELS = ("stdout", "stderr")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-np", type=int, metavar="N", dest="ranks", help="number of ranks; must be given"
    )
    parser.add_argument(
        "--launcher", choices=LAUNCHERS, default="mpirun", help="what starts them (default mpirun)"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-H", dest="hosts", metavar="HOST:SLOTS,...", help="hosts, and ranks on each"
    )
    where.add_argument(
        "--hostfile", metavar="FILE", help="a file with lines such as `host1 slots=2`"
    )
    parser.add_argument(
        "--timeout", type=_seconds, metavar="S", help="end all ranks after S seconds"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the line that would be run, and run nothing"
    )
    parser.add_argument("script", metavar="SCRIPT", help="a Python file")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="the arguments of the script"
    )


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"expected seconds, more than 0, got {text!r}")


def main(args: argparse.Namespace) -> int:
    """0 if all ranks ended well, the exit code of the first that failed, 2 for a refusal, 124 for
    the time limit, 128 + the signal that ended the run."""
    try:
        ranks_come_first(args.arguments)
        if args.ranks is None:
            raise LaunchError(f"give the number of ranks: hvdlab run -np 2 {args.script}.")
        if not Path(args.script).is_file():
            raise LaunchError(f"{args.script} is not a file: name the script for the ranks to run.")
        planned = plan(
            args.ranks,
            args.script,
            *args.arguments,
            launcher=args.launcher,
            hosts=args.hosts,
            hostfile=args.hostfile,
        )
        if args.dry_run:
            print(planned.line())
            return 0
        must_work(planned, args.script)
    except LaunchError as error:
        print(f"hvdlab run: {error}", file=sys.stderr)
        return REFUSED
    sentence, code = follow(planned, Path(args.script).name, args.timeout)
    if sentence:
        print(f"hvdlab run: {sentence}.", file=sys.stderr)
    return code


def follow(planned: Plan, name: str, limit: float | None) -> tuple[str, int]:
    """Run it, show what the ranks print, and return a sentence if they did not end well, and a code.

    A signal or the time limit asks the launcher to end the ranks; a second signal, or five seconds, ends
    all. mpirun asks the ranks, and ends them 0.25 s later: save while training goes on, not at its end.
    """
    launcher = LAUNCHERS[planned.launcher]
    output = RankOutput(planned.ranks, launcher.Reader())
    signals = []
    # What nohup ignores stays ignored.
    heard = [one for one in SIGNALS if signal.getsignal(one) != signal.SIG_IGN]
    before = {number: signal.signal(number, lambda n, _: signals.append(n)) for number in heard}
    try:
        away = [host.name for host in planned.hosts if not hosts_of.is_here(host.name)]
        with (
            tempfile.TemporaryDirectory(prefix="hvdlab-run-") as folder,
            local.started(
                planned.command, planned.variables | _logs(folder), subprocess.PIPE
            ) as process,
            host_watch.watched(away) as lost,
        ):
            late = _pass_on(process, launcher, output, signals, limit, lost)
            gone = lost()
        output.settle(everything=True)
    except BrokenPipeError:  # nobody reads on, such as after `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return "", 128 + signal.SIGPIPE
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if gone:
        return gone, 1
    who = f"{name} on {planned.ranks} ranks"
    if signals:
        return f"{who} was ended by {signal.Signals(signals[0]).name}", 128 + signals[0]
    if late:
        return f"{who} did not end within {limit:g} s{output.where(name)}", TIME_UP
    stall = {**os.environ, **planned.variables}.get("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "")
    sentence, code = output.why(process.returncode, planned.launcher, stall)
    return sentence + (output.where(name) if output.stalled else ""), code


def _logs(folder):
    """Where torchrun keeps what the ranks print. By itself it makes a folder that stays."""
    return {"PET_LOG_DIR": os.environ.get("PET_LOG_DIR", folder)}


def _pass_on(process, launcher, output, signals, limit, lost):
    """Pass lines on until there are no more; return whether it was the time limit that ended them."""
    lines = queue.SimpleQueue()
    for channel in CHANNELS:
        threading.Thread(target=_read, args=(process, channel, lines), daemon=True).start()
    began, asked, late, ended = time.monotonic(), None, False, 0
    # A launcher that is asked to end would wait for a lost host.
    while (
        len(signals) < 2
        and not lost()
        and (asked is None or time.monotonic() - asked < POLITE_SECONDS)
    ):
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
        with contextlib.suppress(queue.Empty):
            channel, line = lines.get(timeout=0.1)
            if line:
                output.line(line, channel)
            else:
                ended += 1
            if ended == len(CHANNELS):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLITE_SECONDS)
                return late
        output.settle()
    launcher.send(process, signal.SIGKILL)  # `started` would ask once more
    return late


def _read(process, channel, lines):
    with contextlib.suppress(ValueError):  # closed, when it is ended
        for line in getattr(process, channel).buffer:
            lines.put((channel, line.decode(errors="replace")))
    lines.put((channel, ""))


if __name__ == "__main__":
    own = argparse.ArgumentParser(prog="hvdlab run")
    add_arguments(own)
    sys.exit(main(own.parse_args()))
