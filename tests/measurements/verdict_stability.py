"""Grade the solution and its serial starting script repeatedly, to see how stable the verdict is.

    python -m tests.measurements.verdict_stability OUT --runs 10 [--framework keras] [--condition busy]

The scripts are graded in turns, on a machine without other work ("quiet"), and while other processes keep one
core ("busy") or two cores ("crowded") busy. Each result is kept as OUT/SCRIPT-CONDITION-N.json. A second call
continues where the first one stopped. Ten runs of each script in two conditions take about 80 minutes on two
cores, and more if late runs are repeated. It is not a test, and pytest does not run it.
"""

import argparse
import json
import statistics
import subprocess
import sys
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.table import Table

ASSESSMENT = Path(__file__).parents[2] / "assessment"


BUSY_CORES = {"quiet": 0, "busy": 1, "crowded": 2}


@contextmanager
def condition(name: str):
    """Run as many processes as the condition names, each of which keeps a core busy."""
    others = []
    try:
        for _ in range(BUSY_CORES[name]):
            others.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
        yield
    finally:
        for process in others:
            process.kill()
            process.wait()


def other_work(documents: list[dict]) -> str:
    """Return the smallest and largest percentage of the processor time that others took in a judged round."""
    parts = chain.from_iterable((d["budget"] or {}, d["resources"]) for d in documents)
    found = [part["other_work"]["fraction"] for part in parts if "other_work" in part]
    known = [fraction for fraction in found if fraction is not None]
    return f"{min(known):.1%} to {max(known):.1%}" if known else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--runs", type=int, default=10, help="of each script and condition")
    parser.add_argument("--framework", choices=("torch", "keras"), default="torch")
    parser.add_argument("--condition", choices=BUSY_CORES, action="append")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    name = f"{args.framework}/assessment.py"
    scripts = {args.framework: ASSESSMENT / "solutions" / name, "serial": ASSESSMENT / name}
    conditions = args.condition or ["quiet", "busy"]

    results: dict[tuple[str, str], list[dict]] = {}
    for run in range(1, args.runs + 1):
        for under in conditions:
            for who, script in scripts.items():
                result = args.out / f"{who}-{under}-{run}.json"
                if not result.exists():
                    with condition(under):
                        subprocess.run(
                            [sys.executable, "-m", "hvdgrade.cli", "run", script, "--json", result],
                            stdout=subprocess.DEVNULL,
                            timeout=2400,
                        )
                document = json.loads(result.read_text())
                results.setdefault((who, under), []).append(document)
                said = document["verdict"] or document["reason"]
                print(f"{result.name}: {said}", file=sys.stderr, flush=True)

    table = Table(box=None, header_style="dim", padding=(0, 2))
    for title in (
        "script",
        "machine",
        "n",
        "passed",
        "failed",
        "not judged",
        "other work",
        "seconds to target",
        "budget left",
        "smallest",
    ):
        table.add_column(title)
    for (who, under), documents in results.items():
        passed = [d for d in documents if d["verdict"] == "pass"]
        seconds = [d["seconds_to_target"] for d in passed]
        left = [1 - d["seconds_to_target"] / d["budget"]["seconds"] for d in passed]
        spread = f" +- {statistics.stdev(seconds):.1f}" if len(seconds) > 1 else ""
        table.add_row(
            who,
            under,
            str(len(documents)),
            str(len(passed)),
            str(sum(d["verdict"] == "fail" for d in documents)),
            str(sum(d["status"] != "graded" for d in documents)),
            other_work(documents),
            f"{statistics.mean(seconds):.1f}{spread}" if seconds else "-",
            f"{statistics.mean(left):.0%}" if left else "-",
            f"{min(left):.0%}" if left else "-",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
