"""Grade what the server of the service has in its queue (see `hvdgrade serve`).

The worker asks the server for gradings by HTTPS, runs each like `hvdgrade run` on cores of its own, and sends
back the results. It needs no access to the database. Start as many workers as you have machines. With
--slurm, one worker on a login node runs each grading in a job of its own.

SIGTERM or Ctrl-C ends what runs, and the server lets another worker grade it. With --drain the worker first
finishes what runs, and a second signal ends it at once. After a kill -9 or a power failure, start the same
command again: it removes what was left behind, and sends results that the server does not have yet.
"""

import argparse
import re
import signal
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdgrade import HvdgradeError, __version__, profiles
from hvdgrade.batch import cleanup, slurm
from hvdgrade.batch.arguments import Refused
from hvdgrade.batch.core_allocation import worker_slots
from hvdgrade.batch.worker import set_environment
from hvdgrade.output.console import for_lines
from hvdgrade.report.result import hardware
from hvdgrade.sandbox import mounts, tiers
from hvdgrade.worker import credential
from hvdlab.arguments import positive
from hvdlab.data import DataError, load_cifar10
from hvdlab.system.hardware import visible_gpus

if TYPE_CHECKING:
    from hvdgrade.worker.runs import ClusterJobs, Slots
    from hvdgrade.worker.spool import Lease, Spool

DONE, REFUSED, FAULT = 0, 2, 3
LEAST = "user"  # the weakest tier that keeps a worker's token from a submission
EPILOG = """\
example:
  hvdgrade worker --server https://grade.example.edu --token-file token --pool cpu
  hvdgrade worker --server https://grade.example.edu --slurm --slurm-option partition=course --workers 32

exit codes: 0 ended by a signal or by --once, 2 wrong usage or the token was refused, 3 a full disk
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdgrade worker`."""
    add = parser.add_argument
    add("--server", required=True, metavar="URL", help="address of the server")
    add(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"file that holds this worker's token (default: the variable {credential.VARIABLE})",
    )
    add("--pool", default="", help="pool of machines that its token must be for (default: any)")
    add("--name", default=socket.gethostname(), help="its name, for staff (default: the host's)")
    add(
        "-np",
        type=positive,
        default=2,
        metavar="N",
        help="ranks that a slot has cores for (default 2)",
    )
    add(
        "--workers",
        type=positive,
        metavar="K",
        help="gradings at the same time (default: cores / ranks; with --slurm it must be given)",
    )
    add(
        "--spool",
        type=Path,
        metavar="DIR",
        help="folder for what it grades now (default: ~/.cache/hvdgrade/worker-NAME; with --slurm, a folder "
        "that all nodes share)",
    )
    add("--drain", action="store_true", help="at a first signal, finish what runs")
    add("--once", action="store_true", help="end after one grading, or when none waits")
    add(
        "--require-sandbox",
        default=LEAST,
        choices=tiers.TIERS,
        metavar="TIER",
        help=f"grade nothing in a weaker sandbox: {', '.join(tiers.TIERS)} (default {LEAST}; in rlimits, a "
        "submission can read the worker's files)",
    )
    add(
        "--oversubscribe",
        action="store_true",
        help="allow more workers than cores / ranks; with --slurm, share nodes with other jobs",
    )
    add("--slurm", action="store_true", help="run each grading in a Slurm job, through submitit")
    add(
        "--slurm-option",
        action="append",
        default=[],
        metavar="KEY[=VALUE]",
        help="option of sbatch, such as partition=gpu; may be repeated",
    )


def main(args: argparse.Namespace) -> int:
    """Work until a signal comes.

    Returns:
        The exit code: DONE, REFUSED or FAULT.
    """
    try:
        return work(args)
    except HvdgradeError as error:
        print(f"hvdgrade worker: {error}", file=sys.stderr)
        return REFUSED
    except OSError as error:
        print(
            f"hvdgrade worker: {error.filename}: {error.strerror}; fix this, and start it again.",
            file=sys.stderr,
        )
        return FAULT


def work(args: argparse.Namespace) -> int:
    """Work until a signal comes.

    Raises:
        HvdgradeError: the worker cannot start, or the server refuses its token.
        OSError: a file of the spool cannot be read or written.
    """
    secret = credential.take(args.token_file)
    if not find_spec("httpx"):
        raise Refused("hvdgrade worker needs httpx: install it with `pip install httpx`.")
    from hvdgrade.worker.client import Server
    from hvdgrade.worker.loop import Worker
    from hvdgrade.worker.spool import Spool

    set_environment()
    server = Server(args.server, secret)
    name = re.sub(r"[^\w.-]", "_", args.name)
    default = Path.home() / ".cache" / "hvdgrade" / f"worker-{name}"
    place = (args.spool or default).expanduser().resolve()
    console = for_lines()
    facts = facts_about_the_cluster(args) if args.slurm else facts_about_this_machine(args, place)
    spool = Spool(place)
    with spool.locked():
        if (place / "slurm").exists() and not slurm.cancel(place):
            raise Refused(
                "Slurm does not confirm that the jobs of the worker before this one have ended. Look at "
                f"`squeue --name {slurm.job_name(place)}`, and start again when it lists no job."
            )
        cleanup.end_left_over(place)
        runs = runs_of(args, spool, console.print)
        facts["slots"] = runs.free
        worker = Worker(
            server, spool, runs, facts, unfit(args), args.require_sandbox, console.print,
            once=args.once, drain=args.drain,
        )  # fmt: skip
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup sets SIGHUP
                signal.signal(number, worker.stop)
        console.print(
            f"worker {args.name}: {runs.free} gradings at the same time, sandbox {facts['tier']}, "
            f"{facts['hardware']}, {facts['data']}, server {args.server}"
        )
        worker.work()
    return DONE


def runs_of(args: argparse.Namespace, spool: "Spool", tell: Any) -> "Slots | ClusterJobs":
    from hvdgrade.worker.runs import ClusterJobs, Slots

    if not args.slurm:
        return Slots(worker_slots(args.np, args.workers, args.oversubscribe))
    alone = [] if args.oversubscribe else ["exclusive"]  # a grading measures time
    return ClusterJobs(spool, args.workers, [*alone, *args.slurm_option], tell)


def unfit(args: argparse.Namespace) -> Any:
    """Return a function that returns why this worker cannot run a grading, or ""."""

    def why(lease: "Lease") -> str:
        if args.slurm:  # each job finds out
            return ""
        if lease.ranks > args.np and not args.oversubscribe:
            return f"it has {lease.ranks} ranks: start this worker with -np {lease.ranks}"
        try:
            if lease.require_sandbox:
                tiers.choose(lease.require_sandbox)
        except tiers.SandboxUnavailable as error:
            return str(error)
        return ""

    return why


def facts_of(args: argparse.Namespace, has_gpus: bool, **more: Any) -> dict[str, Any]:
    known = (profiles.load(name) for name in profiles.names())
    rules = {one.name: one.rules_sha256 for one in known if has_gpus or one.devices != "gpu"}
    facts = {"rules": rules, "version": __version__, "pool": args.pool, "name": args.name}
    return facts | more


def facts_about_this_machine(args: argparse.Namespace, spool: Path) -> dict[str, Any]:
    """Return what the server gets to know about this machine.

    Raises:
        Refused: the machine cannot grade; the message says what to do.
        SandboxUnavailable: no acceptable isolation level works here.
    """
    if args.slurm_option:
        raise Refused("--slurm-option has no meaning without --slurm: add --slurm or remove it.")
    tier = tiers.choose(args.require_sandbox)
    try:
        data = load_cifar10()
    except DataError as error:
        raise Refused(str(error)) from None
    if obstacle := mounts.why_exposed(data.folder, tier):
        raise Refused(f"a submission could read the hidden test images: {obstacle}.")
    if mounts.why_exposed(spool, tier):
        raise Refused(
            f"--spool {spool} lies among the files of the system or of Python, which a submission needs: "
            "choose another folder."
        )
    found = (
        "synthetic data (`hvdlab data cifar10` installs CIFAR-10)" if data.synthetic else "CIFAR-10"
    )
    gpus = len(visible_gpus())
    return facts_of(args, gpus > 0, hardware=hardware(), tier=tier, gpus=gpus, data=found)


def facts_about_the_cluster(args: argparse.Namespace) -> dict[str, Any]:
    """Return what the server gets to know about the nodes, on each of which a job checks its sandbox.

    Raises:
        Refused, slurm.Unavailable: no job can be submitted.
    """
    if not args.workers:
        raise Refused("--slurm needs --workers K, the largest number of jobs at the same time.")
    slurm.must_work(args.slurm_option)
    where = " ".join(["Slurm", *args.slurm_option])
    about = {"hardware": where, "tier": args.require_sandbox, "data": "data of the nodes"}
    return facts_of(args, True, gpus=0, **about)  # which devices the nodes have is not known here
