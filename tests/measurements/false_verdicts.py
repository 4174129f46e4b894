"""Grade all fixtures repeatedly, and count verdicts that differ from the expected ones.

    python -m tests.measurements.false_verdicts OUT --runs 20 [--workers 2] [--only NAME ...]

Each round runs tests/hvdgrade/test_submissions.py. Its results are kept as OUT/ROUND/NAME.json, and a
complete round is added as a line to false_verdicts.jsonl next to this file. Twenty rounds take hours. Two
workers need less time, because a grading does not keep two cores busy all the time. A second call continues
where the first one stopped. On another machine it continues after the rounds in the file that were graded
by the same rules. At the end the program prints the separation table (submission x check, over the rounds
in OUT), how close the measured values came to each limit from both sides, and every deviation from the
expected verdicts, over all rounds. It is not a test, and pytest does not run it.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hvdgrade.judge.parallel_checks import UNMOVED
from hvdgrade.profiles import Profile, load
from hvdlab.cli import end_when_told
from tests.helpers.submissions import NAMES, SUBMISSIONS

ROOT = Path(__file__).parents[2]
ROUNDS = Path(__file__).with_suffix(".jsonl")
TEST = "tests/hvdgrade/test_submissions.py::test_each_submission_gets_its_own_verdict"
CHECKS = "ran replicas exchange flow equivalence shards steps targets".split()
FACES = {
    "pass": "[green]+[/]",
    "partial": "[yellow]/[/]",
    "fail": "[red]-[/]",
    "skipped": "[dim].[/]",
    "error": "[red]![/]",
}


def results_in(folder: Path, names: list[str], rules: Profile) -> dict[str, dict]:
    """Return the results of a round that were graded by these rules."""
    paths = {name: folder / f"{name}.json" for name in names}
    found = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    by = {name: one["document"]["grader"]["rules_sha256"] for name, one in found.items()}
    return {name: one for name, one in found.items() if by[name] == rules.rules_sha256}


def grade(names: list[str], folder: Path, workers: int) -> None:
    """Grade `names` by several workers, and write the results to `folder`.

    Raises:
        SystemExit: pytest did not reach its end, so the round must not be recorded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tests = [f"{TEST}[{name}]" for name in names]
    ended = subprocess.run(
        [sys.executable, *f"-m pytest -q -m mpi --no-header --tb=no -n {workers}".split(), *tests],
        cwd=ROOT,
        env={**os.environ, "HVDGRADE_KEEP": str(folder.resolve())},
        stdout=sys.stderr,
        timeout=1500 * len(names),
    )
    if ended.returncode not in (0, 1):  # 1: a submission got another verdict than expected
        sys.exit(
            f"pytest ended with exit code {ended.returncode} before all submissions were graded. The same "
            "command continues the round."
        )


def separation(results: dict[str, list[dict]]) -> Table:
    """Return the outcome of each submission in each check; several signs if rounds differ."""
    table = Table(box=None, header_style="dim", padding=(0, 1))
    table.add_column("submission")
    for check in [*CHECKS, "stop cause", "verdict", "points", "rounds", "as expected"]:
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
        points = sorted({f"{one['score']} of {one['max_score']}" for one in documents})
        good = sum(not one["deviations"] for one in rounds)
        end = (" ".join(sorted(stops)), said, " / ".join(points), str(len(rounds)), str(good))
        table.add_row(name, *signs, *end)
    return table


def measured(document: dict, rules: Profile) -> Iterator[tuple[str, float, float]]:
    """Yield (quantity, its limit, measured value) for every value that a check compares with a limit."""
    seen = {check["id"]: check["evidence"] for check in document["checks"] if check["evidence"]}
    if "replicas" in seen:
        worst = max(seen["replicas"]["differences"].values())
        yield "replicas: difference of weights", rules.replica_tolerance, worst
    if "exchange" in seen:
        rounds = seen["exchange"]["rounds"]
        least = min(rounds[1:] or rounds)
        yield "exchange: rounds of gradients / needed", 1.0, least / seen["exchange"]["needed"]
    if "flow" in seen:
        ranks = seen["flow"]["ranks"]
        unseen = max(rank["test_class"] for rank in ranks)
        if much := unseen <= rules.max_unseen:
            yield "flow: class that no rank was shown", rules.max_unseen, unseen
        else:
            yield "flow: learned", rules.min_learned, min(rank["learned"] for rank in ranks)
        others = min(rank["others" if much else "others_change"] for rank in ranks)
        yield "flow: share of others' classes", rules.min_flow, others
    if "equivalence" in seen and seen["equivalence"]["distance"] < UNMOVED:
        distance = seen["equivalence"]["distance"]
        yield "equivalence: distance", seen["equivalence"]["tolerance"], distance
        yield (
            "equivalence: difference within an epoch",
            rules.replica_tolerance,
            seen["equivalence"]["difference_of_ranks"],
        )
        if (growth := seen["equivalence"]["exchange_growth"]) is not None:
            yield "equivalence: growth of the exchange", rules.max_exchange_growth, growth
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


def margins(results: dict[str, dict], rules: Profile) -> list[dict]:
    """Return the values of a round that are closest to each limit, from below and from above."""
    found: dict[tuple[str, float], list[list]] = {}
    for name, one in results.items():
        for quantity, limit, value in measured(one["document"], rules):
            found.setdefault((quantity, limit), []).append([float(f"{value:.4g}"), name])
    return [
        {
            "quantity": quantity,
            "limit": limit,
            "below": max((pair for pair in values if pair[0] < limit), default=None),
            "above": min((pair for pair in values if pair[0] >= limit), default=None),
        }
        for (quantity, limit), values in found.items()
    ]


def summary(names: list[str], results: dict[str, dict], rules: Profile) -> dict:
    """Return the line of the file for a round of `names`."""
    graders = [one["document"]["grader"] for one in results.values()]
    deviations = [[name, what] for name, one in results.items() for what in one["deviations"]]
    no_result = "no result: skipped here, or not graded"
    deviations += [[name, no_result] for name in names if name not in results]
    return {
        "rules_sha256": rules.rules_sha256,
        "day": datetime.date.today().isoformat(),
        "machine": " / ".join(sorted({grader["hardware"] for grader in graders})),
        "sandbox": " / ".join(sorted({grader["sandbox_tier"] for grader in graders} - {None})),
        "gradings": len(results),
        "deviations": deviations,
        "margins": margins(results, rules),
    }


def rounds_by(rules: Profile) -> list[dict]:
    """Return the rounds in the file that were judged by these rules, from any day and machine."""
    lines = ROUNDS.read_text().splitlines() if ROUNDS.exists() else []
    rounds = [json.loads(line) for line in lines]
    return [one for one in rounds if one["rules_sha256"] == rules.rules_sha256]


def nearest(rounds: list[dict]) -> Table:
    """Return the smallest margins over all rounds."""
    table = Table(box=None, header_style="dim", padding=(0, 1))
    for title in ("measured", "limit", "nearest below", "in", "nearest above", "in"):
        table.add_column(title)
    found: dict[tuple[str, float], list[dict]] = {}
    for margin in (margin for one in rounds for margin in one["margins"]):
        found.setdefault((margin["quantity"], margin["limit"]), []).append(margin)
    for (quantity, limit), several in found.items():
        below = max((m["below"] for m in several if m["below"]), default=None)
        above = min((m["above"] for m in several if m["above"]), default=None)
        sides = [(f"{pair[0]:.3g}", pair[1]) if pair else ("-", "") for pair in (below, above)]
        table.add_row(quantity, f"{limit:g}", *sides[0], *sides[1])
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--runs", type=int, default=20, help="rounds (default 20)")
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help="gradings at a time, which share all cores (default 1)",
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="these submissions: no whole round"
    )
    args = parser.parse_args()
    if unknown := set(args.only or []) - set(NAMES):
        parser.error(f"there is no submission {', '.join(sorted(unknown))} in {SUBMISSIONS}")
    names = args.only or NAMES

    end_when_told()  # and with this program, pytest
    rules = load("dli")
    rounds = [] if args.only else rounds_by(rules)
    here: dict[str, list[dict]] = {name: [] for name in names}
    for number in range(1, max(args.runs, len(rounds)) + 1):
        folder = args.out / str(number)
        results = results_in(folder, names, rules)
        if number > len(rounds):
            if missing := [name for name in names if name not in results]:
                grade(missing, folder, args.workers)
                results = results_in(folder, names, rules)
            rounds.append({**summary(names, results, rules), "workers": args.workers})
            if not args.only:
                with open(ROUNDS, "a", encoding="utf-8") as file:
                    file.write(json.dumps(rounds[-1]) + "\n")
        for name, one in results.items():
            here[name].append(one)
    console = Console(width=None if sys.stdout.isatty() else 180)
    console.print(separation({name: some for name, some in here.items() if some}))
    console.print(nearest(rounds))
    gradings = sum(one["gradings"] for one in rounds)
    wrong = [(number, *pair) for number, one in enumerate(rounds, 1) for pair in one["deviations"]]
    console.print(
        f"{len(rounds)} rounds, {gradings} gradings, {len(wrong)} deviations from what is expected"
    )
    for number, name, what in wrong:
        console.print(f"  round {number}, {name}: {what}", markup=False, highlight=False)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
