"""Print a table of the findings of `hvdlab check` for each script in labs/faults, and for correct scripts.

    python -m tests.measurements.check_by_fault [--correct]

The program checks the scripts one after another, on two ranks. It takes several minutes on two cores.
"""

import argparse
import os
import tempfile
from pathlib import Path

from hvdlab.check.command import check
from hvdlab.faults import faults, write
from tests.helpers import check_cases as cases

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--correct", action="store_true", help="the correct scripts only")
correct = parser.parse_args().correct

print("| script | expected | found | as expected | ended by | steps | s |", flush=True)
print("|---|---|---|---|---|---|---|", flush=True)
wrong = 0
for name in sorted(cases.CORRECT if correct else faults()):
    wanted = None if correct else faults()[name]
    if wanted and wanted.needs:
        print(f"| {name} | not run: it needs {wanted.needs} | | | | | |", flush=True)
        continue
    os.chdir(tempfile.mkdtemp(prefix="check-"))
    path = cases.CORRECT[name] if correct else write(name, Path.cwd())
    found = check(path, *cases.ARGUMENTS.get(name, []))
    said = [(one.id, one.line) for one in found.findings]
    right = said == ([(wanted.finding, wanted.line)] if wanted else [])
    wrong += not right
    told = ", ".join(f"{id}, line {line}" for id, line in said) or found.error or "nothing"
    expected = f"{wanted.finding}, line {wanted.line}" if wanted else "nothing"
    print(
        f"| {name} | {expected} | {told} | {'yes' if right else '**no**'} | {found.ended} "
        f"| {found.steps} | {found.seconds:.0f} |",
        flush=True,
    )
print(f"\n{wrong} not as expected")
