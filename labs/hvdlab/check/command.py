"""The command `hvdlab check`: start the ranks, watch for a deadlock, and print the mistakes."""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from hvdlab import HvdlabError, launch
from hvdlab.arguments import file_to_write, positive
from hvdlab.check import static
from hvdlab.check.diagnosis import judge
from hvdlab.check.replica_weights import divergence
from hvdlab.check.report import Checked, as_dict, show
from hvdlab.check.run_events import Run
from hvdlab.check.watched_run import watched
from hvdlab.launch.preflight import ranks_come_first
from hvdlab.launch.script_file import must_be_script
from hvdlab.script_analysis.script import Unreadable
from hvdlab.system import file_system, open_mpi
from hvdlab.system.rank_limit import too_many_ranks
from hvdlab.trace import records

EPILOG = """\
examples:
  hvdlab check -np 2 train.py --epochs 5     the arguments of the script come after it
  hvdlab check -np 2 --json found.json train.py

The script runs in this folder and may write its usual files. Training loops end after --steps steps, and
a loop around them ends after two rounds, so that the script reaches its own end.
Exit code: 0 nothing found, 1 mistakes found, 2 the script could not be checked.
"""
COMPARED = 6  # steps of the run with one rank


class CheckError(HvdlabError):
    """A script could not be checked. The message is one sentence."""

    def _render_traceback_(self) -> list[str]:  # what IPython shows instead of a traceback
        return [str(self)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdlab check` to a parser."""
    parser.add_argument(
        "-np", dest="ranks", type=positive, default=2, help="number of ranks (default 2)"
    )
    parser.add_argument(
        "--steps",
        type=positive,
        default=8,
        help="training steps after which a loop ends (default 8)",
    )
    parser.add_argument(
        "--timeout", type=positive, default=300, help="time limit in seconds (default 300)"
    )
    parser.add_argument(
        "--json", type=file_to_write, metavar="FILE", help="write the findings to FILE"
    )
    parser.add_argument(
        "--force", action="store_true", help="start more ranks than this machine has room for"
    )
    parser.add_argument("--show", action="store_true", help="show what the script prints")
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="training script to check")
    rest = parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="arguments of the script"
    )
    rest.required = False  # argparse would report that it is missing when SCRIPT is


def main(args: argparse.Namespace) -> int:
    """Run `hvdlab check`.

    Returns:
        The exit code: 0 nothing found, 1 mistakes found, 2 the script could not be checked.
    """
    try:
        ranks_come_first(args.arguments)
        checked = check(
            args.script,
            *args.arguments,
            ranks=args.ranks,
            steps=args.steps,
            timeout=args.timeout,
            show=args.show,
            force=args.force,
            tell=lambda line: print(f"hvdlab: {line}", file=sys.stderr, flush=True),
        )
    except (CheckError, launch.LaunchError) as error:
        print(f"hvdlab: {error}", file=sys.stderr)
        return 2
    show(checked, args.script, args.ranks)
    if args.json:
        text = json.dumps(as_dict(checked, args.script, args.ranks), indent=2) + "\n"
        try:
            file_system.write_text(args.json, text)
        except OSError as error:
            message = f"hvdlab: --json {args.json} cannot be written: {error.strerror}."
            print(message, file=sys.stderr)
            return 2
    if checked.findings:
        return 1
    return 2 if checked.error else 0


def check(
    script: str | Path,
    *arguments: object,
    ranks: int = 2,
    steps: int = 8,
    timeout: float = 300,
    show: bool = False,
    force: bool = False,
    tell: Callable[[str], object] = lambda line: None,
    **variables: str,
) -> Checked:
    """Run a script on some ranks for a few steps, and return its distributed mistakes.

    Args:
        ranks: number of ranks. Default 2.
        steps: training steps after which a loop ends. Default 8.
        timeout: time limit of the run, in seconds. Default 300.
        show: whether to print what the ranks print. Default False.
        force: start the ranks even if this machine has too few cores or too little memory for so many.
            Default False.
        tell: is called with a line of text when the ranks are about to start. Default: nothing.

    Returns:
        The findings, and how the run ended.

    Raises:
        CheckError: the script cannot be read, there are too many ranks, there is no launcher, or no rank made
            a training step.
    """
    script = Path(script)
    facts = _read(script)
    launcher = "torchrun" if facts.process_group else "mpirun"
    if not force and (sentence := too_many_ranks(ranks)):
        raise CheckError(sentence)
    if not shutil.which(launcher, path=open_mpi.search_path()):
        raise CheckError(f"there is no {launcher} here: run `hvdlab doctor`.")
    tell(f"running {script} on {ranks} ranks for a few steps")
    started = time.monotonic()
    given = [*map(str, arguments)]
    seen = watched(script, given, ranks, launcher, steps, timeout, show, **variables)
    run = Run(seen.events)
    if spawned := next(iter(run.all(records.Spawn)), None):
        raise CheckError(
            f"{script.name}, line {spawned.line}: the script starts its ranks itself, and hvdlab check "
            "starts them, too. Call the function of a rank in place of mp.spawn, take the rank from "
            'os.environ["RANK"], and start the script with torchrun.'
        )
    if ranks > 1 and run.rank0(records.Step):
        left = max(5.0, min(timeout - (time.monotonic() - started), timeout / 2))
        single = watched(script, given, 1, launcher, steps, left, end=COMPARED, **variables)
        run.compare(Run(single.events))
    findings = judge(run, facts)
    left_out = _left_out(run)
    error = None
    if not left_out:
        limit = timeout if seen.late else None
        error = _error(run, seen.output, seen.deadlock, limit, bool(findings))
    error, left_out = (text and run.places.text(text) for text in (error, left_out))
    for event in run.rank0(records.Init):
        if event.size != ranks:
            raise CheckError(_wrong_size(facts, ranks, event.size))
    made = max((event.steps for event in run.all(records.Step) + run.all(records.End)), default=0)
    if not made and not findings:
        raise CheckError(
            f"{script.name}: nothing was trained, because {(error or _no_step(facts)).rstrip('.')}."
        )
    ended = "deadlock" if seen.deadlock else "time" if seen.late else "itself"
    seconds = time.monotonic() - started
    return Checked(
        findings, error, left_out, ended, made, seconds, seen.output, seen.events, _note(run)
    )


def _wrong_size(facts: static.Facts, ranks: int, size: int) -> str:
    """Return why the library of a script counts `size` ranks, although `ranks` were started."""
    if facts.process_group:
        return (
            f"torchrun started {ranks} ranks, but the process group has {size}: leave out rank= and "
            "world_size= in init_process_group."
        )
    return (
        f"mpirun started {ranks} ranks, but Horovod reports {size}, because it was built for another MPI. "
        "Run `hvdlab doctor`."
    )


def _note(run: Run) -> str | None:
    """Return a sentence about something that is no mistake, but should be better, or None."""
    ended = all(run.of(rank, records.End) for rank in run.ranks) and not run.errors()
    if unread := sorted({event.path for event in run.all(records.Unread)}):
        return f"{', '.join(unread)} is not in the script's folder, so mistakes in it have no line"
    if run.joins_in_ddp() and divergence(run):
        return (
            "a rank that has joined the others misses steps of its optimizer. DDP sends the weights to it, "
            f"and not the optimizer's state, so the weights differ after step {divergence(run)}. Equal "
            "numbers of batches avoid that"
        )
    if run.api() == "ddp" and ended and not run.all(records.Destroy):
        return (
            "the script ends without dist.destroy_process_group(). That is no mistake, but with NCCL PyTorch "
            "warns, and a rank may exit while another one still waits for its data"
        )
    return None


def _error(
    run: Run, output: str, deadlock: bool, timeout: float | None, explained: bool
) -> str | None:
    """Return in one sentence why a run failed by itself.

    Args:
        deadlock: whether the run was ended because of a deadlock.
        timeout: the time limit in seconds that ended the run, or None.
        explained: whether there are findings, which explain a deadlock.

    Returns:
        The sentence, or None if the run did not fail.
    """
    if crash := run.crash():
        where = f", line {crash[2]}" if crash[2] else ""
        return f"rank {crash[0]} ended with {crash[1]}{where}"
    if timeout is not None:
        return f"the script did not reach its end within {timeout:g} s"
    if deadlock and not explained:
        return f"the ranks wait for each other for ever.{run.waiting()}"
    if not run.rank0(records.End) and not deadlock:
        return f"the ranks ended early: {_last_line(output)}"
    return None


def _left_out(run: Run) -> str | None:
    """Return in one sentence that a rank failed after the check had ended its training early, or None."""
    rank, error, line = run.crash() or (run.ranks[0], None, None)
    cut = " and line ".join(map(str, run.cut_at_end(rank)))
    if not error or not cut:
        return None
    return (
        f"the check ended the training of line {cut} early, and after that rank {rank} ended with {error}, "
        f"line {line}. That line may need the whole training, so this is no finding"
    )


def _no_step(facts: static.Facts) -> str:
    """Return why the check saw no step of a script that reached its end."""
    if facts.session:
        return (
            f"line {facts.session} opens a session of TensorFlow 1, and `hvdlab check` watches the "
            "optimizers of PyTorch and Keras only"
        )
    return "the script reached its end, and no optimizer of PyTorch or Keras made a step"


def _read(script: Path) -> static.Facts:
    """Return the facts of a script. Raises CheckError if it cannot be checked."""
    try:
        must_be_script(script)
    except launch.LaunchError as error:
        raise CheckError(str(error)) from None
    try:
        facts = static.read(script)
    except Unreadable as error:
        raise CheckError(f"Python cannot read {script.name}: {error}.") from None
    except OSError as error:
        raise CheckError(f"{script} cannot be read: {error}") from None
    if facts.other and not facts.horovod:
        raise CheckError(
            f"{script.name} trains with {facts.other}, and `hvdlab check` knows the mistakes of scripts with "
            "Horovod or DistributedDataParallel only: it cannot be checked."
        )
    return facts


def _last_line(output: str) -> str:
    """Return the last line of an output, without the horizontal rules around a message of mpirun's."""
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip(" -")]
    return lines[-1][:300] if lines else "it printed nothing"
