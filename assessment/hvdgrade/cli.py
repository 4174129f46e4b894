"""The command `hvdgrade`."""

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from hvdgrade import calibrate, judge, profile, report
from hvdgrade.jail import Jail, NotGradable, read_script
from hvdgrade.observe import observe
from hvdlab.data import DataError, load_cifar10

PASS, FAIL, NOT_GRADABLE, GRADER_FAULT = range(4)
EPILOG = """\
example:
  hvdgrade run assessment/solutions/torch/assessment.py -np 2 --json result.json

exit codes: 0 pass, 1 fail, 2 not gradable or wrong usage, 3 grader fault
"""


def parse_args(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="hvdgrade",
        description="Judge a distributed CIFAR-10 training script from outside its process.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run",
        help="grade one submission",
        description="Run `mpirun -np N python assessment.py`, judge it, and print the report.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("path", type=Path, help="the script, or a folder that holds assessment.py")
    run.add_argument("-np", type=int, default=2, metavar="N", help="ranks (default 2)")
    run.add_argument("--profile", default="cpu", help="table of profiles.toml (default cpu)")
    run.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    args = parse_args(arguments)
    # End as on Ctrl-C when somebody ends us: what we started must not outlive us.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) != signal.SIG_IGN:  # nohup wants it ignored
            signal.signal(ending, signal.default_int_handler)
    try:
        rules = profile.load(args.profile)
        document = grade(args.path, args.np, rules, Progress())
    except profile.UnknownProfile as error:
        print(f"hvdgrade: {error}", file=sys.stderr)
        return NOT_GRADABLE
    except KeyboardInterrupt:
        print("hvdgrade: interrupted; everything it started has been ended", file=sys.stderr)
        return GRADER_FAULT
    report.show(document, Console())
    if args.json:
        try:
            report.write_json(document, args.json)
        except OSError as error:
            print(f"hvdgrade: {args.json} cannot be written: {error.strerror}", file=sys.stderr)
            return GRADER_FAULT
    if document["status"] == "not_gradable":
        return NOT_GRADABLE
    if document["status"] == "infrastructure_error":
        return GRADER_FAULT
    return PASS if document["verdict"] == "pass" else FAIL


def grade(path: Path, ranks: int, rules: profile.Profile, tell=lambda text: None) -> dict:
    """Grade one submission: calibrate, launch, observe, judge. Returns the result document.

    Args:
        path: the script, or a folder that holds assessment.py.
        ranks: number of processes.
        rules: the thresholds, from `profile.load`.
        tell: called with a line about what is going on; a stage ends in "...".
    """
    began = time.monotonic()
    source, facts = b"", {}
    try:
        if not 1 <= ranks <= rules.max_ranks:
            raise NotGradable(f"-np must be in 1..{rules.max_ranks}. Received: {ranks}")
        source = read_script(path)
        data = load_cifar10()
        facts["synthetic"] = data.synthetic
        folder, examples = data.folder.resolve(), len(data.train_images)
        del data
        kind = judge.framework(source)
        calibration, budget = None, rules.budget
        if rules.budget == "calibrated":
            tell(f"measuring what one process can do here with {kind} ...")
            calibration = measure(kind, ranks, folder, rules, tell)
            budget = calibration.budget(examples, rules.budget_serial_epochs)
        with tempfile.TemporaryDirectory(prefix="hvdgrade-evidence-") as evidence:
            with Jail(source, ranks, folder) as jail:
                limit = budget + 1  # so that what comes just too late is seen as that
                seen = observe(jail, Path(evidence), limit, rules.stall_seconds, tell)
            tell("recomputing accuracies ...")
            evaluation = judge.evaluate(seen, rules, folder)
        if calibration and kind == "keras" and seen.torch_seen:
            # It imports Keras and also runs PyTorch, which is faster: the smaller budget holds.
            calibration = measure("torch", ranks, folder, rules, tell)
            budget = min(budget, calibration.budget(examples, rules.budget_serial_epochs))
        facts |= {"seen": seen, "calibration": calibration, "budget": budget}
        facts["judgement"] = judge.judge(source, seen, evaluation, rules, budget)
    except NotGradable as error:
        facts |= {"status": "not_gradable", "reason": str(error)}
    except (DataError, calibrate.CalibrationFailed, judge.GraderFault, OSError) as error:
        facts |= {"status": "infrastructure_error", "reason": str(error)}
    finally:
        tell("")
    seconds = time.monotonic() - began
    return report.result(path, source, rules, ranks, seconds=seconds, **facts)


def measure(kind: str, ranks: int, data: Path, rules: profile.Profile, tell):
    return calibrate.calibrate(kind, ranks, data, rules.calibration_seconds, rules.batch_size, tell)


class Progress:
    """One line on stderr, rewritten in a terminal; silent elsewhere but for a new stage."""

    def __init__(self):
        self.console = Console(stderr=True)

    def __call__(self, text: str) -> None:
        if self.console.is_terminal:
            self.console.file.write(f"\r\x1b[2K{text}")
            self.console.file.flush()
        elif text.endswith("..."):
            print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
