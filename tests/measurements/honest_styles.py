"""Grade honest scripts in many styles, and list every check that does not pass, with the grader's sentence.

    python -m tests.measurements.honest_styles OUT [--profile quick] [--only NAME ...]

The scripts are composed by `tests.measurements.styles` and written to OUT/scripts, and each starts with a
docstring that names its style. Each result is kept as OUT/PROFILE/NAME.json. A second call grades only what
has no result by the same rules for the same script. At the end the program prints a table of scripts and
checks, then each failed check with the sentence of the report, then the flags and the hints, of which an
honest script should have none. A script may bend a rule of the task page; its rule is printed then. The
profile "quick" takes half a minute per script, on 3,000 images. It is not a test, and pytest does not run it.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hvdgrade import profiles
from hvdgrade.evidence import hidden_data
from hvdgrade.grade import grade
from hvdlab.data import load_cifar10
from tests.measurements.false_verdicts import CHECKS, FACES
from tests.measurements.styles.part import Style
from tests.measurements.styles.script import script
from tests.measurements.styles.table import settings, styles

RANKS = 2
QUICK_IMAGES, QUICK_TEST_IMAGES = 3000, 1000


def rules_of(profile: str) -> profiles.Profile:
    """Return the rules of a profile; "quick" has low targets for the sample and much time."""
    if profile != "quick":
        return profiles.load(profile)
    return dataclasses.replace(
        profiles.load("dli"),
        train_accuracy=0.17,
        heldout_accuracy=0.15,
        budget=400.0,  # enough on a machine that is busy with other things
        probe_seconds=400.0,
        train_sample=500,
        stall_seconds=60.0,
    )


def write_sample(folder: Path) -> None:
    """Write a part of CIFAR-10 to a folder for $HVDLAB_DATA."""
    data = load_cifar10()
    n, m = QUICK_IMAGES, QUICK_TEST_IMAGES
    train, test = (data.train_images[:n], data.train_labels[:n]), data[2:4]
    part = data._replace(train_images=train[0], train_labels=train[1])
    hidden_data.write(folder, part, train, (test[0][:m], test[1][:m]), sample=True)


def result_of(style: Style, out: Path, rules: profiles.Profile, profile: str, quiet: bool) -> dict:
    """Return the kept result of a style, or grade its script and keep the result."""
    source = script(style, settings(style))
    sha256 = hashlib.sha256(source.encode()).hexdigest()
    path, kept = out / "scripts" / f"{style.name}.py", out / profile / f"{style.name}.json"
    for file in (path, kept):
        file.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    if kept.exists():
        result = json.loads(kept.read_text(encoding="utf-8"))
        by = result["document"]["grader"]["rules_sha256"]
        if (result["script_sha256"], by) == (sha256, rules.rules_sha256):
            return result
    if not quiet:
        print(f"grading {style.name} ...", file=sys.stderr, flush=True)
    document = grade(path, RANKS, rules)
    result = {
        "style": dataclasses.asdict(style),
        "rule": style.rule,
        "script_sha256": sha256,
        "document": document,
    }
    kept.write_text(json.dumps(result, indent=1), encoding="utf-8")
    return result


def table_of(results: dict[str, dict]) -> Table:
    """Return the outcome of each script in each check."""
    table = Table(box=None, header_style="dim", padding=(0, 1))
    for column in ("script", *CHECKS, "verdict", "score", "bends"):
        table.add_column(column)
    for name, result in results.items():
        document = result["document"]
        states = {check["id"]: check["state"] for check in document["checks"]}
        signs = [FACES[states[check]] if check in states else "" for check in CHECKS]
        verdict = document["verdict"] or document["status"]
        table.add_row(name, *signs, verdict, str(document["score"]), result["rule"])
    return table


def deviations(results: dict[str, dict]) -> list[str]:
    """Return a line for each check that did not pass and was not skipped, with the report's sentences."""
    lines = []
    for name, result in results.items():
        document = result["document"]
        if document["status"] != "graded":
            lines.append(f"{name}: {document['status']}: {document['reason']}")
        for check in document["checks"]:
            if check["state"] not in ("pass", "skipped"):
                rule = f" [bends: {result['rule']}]" if result["rule"] else ""
                said = f"{check['rationale']} | {check['help']}"
                lines.append(f"{name}: {check['id']} {check['state']}: {said}{rule}")
    return lines


def remarks(results: dict[str, dict]) -> list[str]:
    """Return a line for each flag and each hint: honest scripts should have none."""
    lines = []
    for name, result in results.items():
        document = result["document"]
        lines += [f"{name}: flag {one['kind']}: {one['text']}" for one in document["flags"]]
        lines += [f"{name}: hint: {json.dumps(one)}" for one in document.get("hints") or []]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of the scripts and the results")
    parser.add_argument("--profile", default="quick", help="quick (default), dli, cpu or gpu")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these scripts")
    parser.add_argument("--list", action="store_true", help="write the scripts and grade nothing")
    args = parser.parse_args()
    every = {style.name: style for style in styles()}
    if unknown := set(args.only or []) - set(every):
        parser.error(f"there is no script {', '.join(sorted(unknown))}; --list prints all names")
    if args.list:
        folder = args.out / "scripts"
        folder.mkdir(parents=True, exist_ok=True)
        for name, style in every.items():
            (folder / f"{name}.py").write_text(script(style, settings(style)), encoding="utf-8")
            print(name)
        return 0
    rules, results = rules_of(args.profile), {}
    with tempfile.TemporaryDirectory(prefix="honest-styles-") as folder:
        if args.profile == "quick":
            Path(folder).chmod(0o711)  # a submission that runs as another user can reach the data
            write_sample(Path(folder) / "data")
            os.environ["HVDLAB_DATA"] = str(Path(folder) / "data")
        for name in args.only or every:
            results[name] = result_of(every[name], args.out, rules, args.profile, quiet=False)
    console = Console(width=None if sys.stdout.isatty() else 180)
    console.print(table_of(results))
    wrong = deviations(results)
    for line in [f"{len(wrong)} checks did not pass", *wrong, *remarks(results)]:
        console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
