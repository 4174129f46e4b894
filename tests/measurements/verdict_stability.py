"""Grade the solution and its serial starting script repeatedly, to see how stable the verdict is.

    python -m tests.measurements.verdict_stability OUT --runs 10 [--framework keras] [--condition busy]

The scripts are graded in turns, on a machine without other work and (condition "busy") while another process
keeps one core busy. Each result is kept as OUT/SCRIPT-CONDITION-N.json. A second call continues where the
first one stopped. Ten runs of each script in both conditions take about 80 minutes on two cores. It is not
a test, and pytest does not run it.
"""

import argparse
import json
import statistics
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

ASSESSMENT = Path(__file__).parents[2] / "assessment"


@contextmanager
def condition(name: str):
    """Do nothing, or run a process that keeps one core busy."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if name == "busy" else None
    try:
        yield
    finally:
        if busy:
            busy.kill()
            busy.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--runs", type=int, default=10, help="of each script and condition")
    parser.add_argument("--framework", choices=("torch", "keras"), default="torch")
    parser.add_argument("--condition", choices=("quiet", "busy"), action="append")
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
                            timeout=1200,
                        )
                document = json.loads(result.read_text())
                results.setdefault((who, under), []).append(document)
                print(f"{result.name}: {document['verdict']}", file=sys.stderr, flush=True)

    table = Table(box=None, header_style="dim", padding=(0, 2))
    for title in (
        "script",
        "machine",
        "n",
        "passed",
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
            f"{statistics.mean(seconds):.1f}{spread}" if seconds else "-",
            f"{statistics.mean(left):.0%}" if left else "-",
            f"{min(left):.0%}" if left else "-",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
