"""Does any submission ever get a verdict that it should not? Grades all fixtures again and again.

    python -m tests.measurements.false_verdicts OUT --runs 20 [--only NAME ...]

Each round is tests/hvdgrade/test_submissions.py as it stands; what it saw is kept as
OUT/RUN/NAME.json, and a second call goes on where the first one stopped. At the end come the
separation table (submission x check, over all rounds), how near what was measured came to each limit
from either side, and every deviation from what was expected. Twenty rounds take hours. Not a test:
pytest does not run it.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from hvdgrade.evaluate import EXACT
from hvdgrade.parallel import UNMOVED
from hvdgrade.profile import Profile, load

ROOT = Path(__file__).parents[2]
TEST = "tests/hvdgrade/test_submissions.py::test_each_submission_gets_its_own_verdict"
SUBMISSIONS = ROOT / "tests" / "fixtures" / "submissions"
CHECKS = "ran replicas exchange flow equivalence shards steps targets".split()
FACES = {
    "pass": "[green]+[/]",
    "partial": "[yellow]/[/]",
    "fail": "[red]-[/]",
    "skipped": "[dim].[/]",
    "error": "[red]![/]",
}


def grade_missing(names: list[str], folder: Path) -> None:
    """Grade what has no result in `folder` yet."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in names if not (folder / f"{name}.json").exists()]
    if missing:
        tests = [f"{TEST}[{name}]" for name in missing]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "mpi",
            "--no-header",
            "--tb=no",
            *tests,
        ]
        subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "HVDGRADE_KEEP": str(folder.resolve())},
            stdout=sys.stderr,
            timeout=600 * len(missing),
        )


def separation(results: dict[str, list[dict]]) -> Table:
    """How each submission fared in each check; several signs where rounds differed."""
    table = Table(box=None, header_style="dim", padding=(0, 1))
    table.add_column("submission")
    for check in [*CHECKS, "stop cause", "verdict", "rounds", "as expected"]:
        table.add_column(check)
    for name, rounds in results.items():
        documents = [one["document"] for one in rounds]
        states = [{c["id"]: c["state"] for c in document["checks"]} for document in documents]
        signs = [
            " ".join(FACES[state] for state in sorted({s[check] for s in states if check in s}))
            for check in CHECKS
        ]
        stops = {document["resources"].get("stop_cause", "") for document in documents}
        verdicts = Counter(document["verdict"] or document["status"] for document in documents)
        said = ", ".join(sorted(verdicts))
        good = sum(not one["deviations"] for one in rounds)
        table.add_row(name, *signs, " ".join(sorted(stops)), said, str(len(rounds)), str(good))
    return table


def measured(document: dict, rules: Profile) -> Iterator[tuple[str, float, float]]:
    """(quantity, its limit, what was seen) of all that a check holds against a limit."""
    seen = {check["id"]: check["evidence"] for check in document["checks"] if check["evidence"]}
    if "replicas" in seen:
        worst = max(seen["replicas"]["differences"].values())
        yield "replicas: difference of weights", rules.replica_tolerance, worst
    if "exchange" in seen:
        rounds = seen["exchange"]["rounds"]
        least = min(rounds[1:] or rounds)
        yield "exchange: rounds of gradients / needed", 1.0, least / seen["exchange"]["needed"]
    if "flow" in seen:
        learned = fmean(rank["learned"] for rank in seen["flow"]["ranks"])
        yield "flow: learned", rules.min_learned, learned
        if learned >= rules.min_learned:
            others = min(rank["others"] for rank in seen["flow"]["ranks"])
            yield "flow: share of others' classes", rules.min_flow, others
    if "equivalence" in seen and seen["equivalence"]["distance"] < UNMOVED:
        distance = seen["equivalence"]["distance"]
        yield "equivalence: distance", rules.equivalence_tolerance, distance
        growth, drop = (seen["equivalence"][f"exchange_{what}"] for what in ("growth", "drop"))
        if growth is not None:
            yield "equivalence: growth of the exchange", rules.max_exchange_growth, growth
        if drop is not None and distance > EXACT:
            yield "equivalence: drop of the exchange", rules.max_exchange_drop, drop
    if "shards" in seen:
        shared = max(epoch["shared"] for epoch in seen["shards"].values())
        yield "shards: shared examples", rules.max_shared_examples, shared
    if "steps" in seen:
        coverage = min(epoch["coverage"] for epoch in seen["steps"].values())
        yield "steps: coverage", rules.min_coverage, coverage
    goals = document["targets"]
    above = [
        min(epoch[which] - goals[which] for which in ("train_accuracy", "heldout_accuracy"))
        for epoch in document["timeline"]
    ]
    if len(above) > 1:
        yield "targets: accuracy above them", 0.0, max(map(min, pairwise(above)))


def margins(results: dict[str, list[dict]], rules: Profile) -> Table:
    """The nearest that any grading came to each limit, from below and from above."""
    found: dict[tuple[str, float], list[tuple[float, str]]] = {}
    for name, rounds in results.items():
        for one in rounds:
            for quantity, limit, value in measured(one["document"], rules):
                found.setdefault((quantity, limit), []).append((value, name))
    table = Table(box=None, header_style="dim", padding=(0, 1))
    for title in ("measured", "limit", "nearest below", "in", "nearest above", "in"):
        table.add_column(title)
    for (quantity, limit), values in found.items():
        below = max((pair for pair in values if pair[0] < limit), default=None)
        above = min((pair for pair in values if pair[0] >= limit), default=None)
        sides = [(f"{pair[0]:.3g}", pair[1]) if pair else ("-", "") for pair in (below, above)]
        table.add_row(quantity, f"{limit:g}", *sides[0], *sides[1])
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--runs", type=int, default=20, help="rounds (default 20)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these submissions")
    args = parser.parse_args()
    names = sorted(path.name for path in SUBMISSIONS.iterdir() if path.is_dir())
    if unknown := set(args.only or []) - set(names):
        parser.error(f"there is no submission {', '.join(sorted(unknown))} in {SUBMISSIONS}")
    names = args.only or names

    results: dict[str, list[dict]] = {name: [] for name in names}
    deviations = []
    for run in range(1, args.runs + 1):
        grade_missing(names, args.out / str(run))
        for name in names:
            path = args.out / str(run) / f"{name}.json"
            if path.exists():
                results[name].append(json.loads(path.read_text()))
                deviations += [(run, name, what) for what in results[name][-1]["deviations"]]
            else:
                deviations.append((run, name, "no result: skipped here, or the grader failed"))
    console = Console(width=None if sys.stdout.isatty() else 180)
    console.print(separation(results))
    console.print(margins(results, load("dli")))
    verdicts = sum(len(rounds) for rounds in results.values())
    console.print(f"{verdicts} gradings, {len(deviations)} deviations from what is expected")
    for run, name, what in deviations:
        console.print(f"  round {run}, {name}: {what}", markup=False, highlight=False)
    return bool(deviations)


if __name__ == "__main__":
    sys.exit(main())
