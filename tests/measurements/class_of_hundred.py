"""Grade a hundred submissions in one batch, which is killed three times by kill -9. Print the result.

    python -m tests.measurements.class_of_hundred FOLDER [--students 100] [--workers K]

Half of the submissions end at once. The others sleep, are not Python, are links, or are missing. After each
kill the batch is started again. The third kill also ends the graders and all their processes. At the end
every student must have exactly one result, no result from before a kill may have been written again, and no
process may still run. This takes about 3 minutes on two cores. It is not a test, and pytest does not run
it.
"""

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path

from hvdgrade.batch.core_allocation import worker_slots
from tests.helpers.school import Class

KINDS = ("quick", "quick", "quick", "sleeper", "no Python", "link", "no file", "strange name")


def hand_in(school: Class, number: int) -> str:
    """Make the submission of one student; return the student's id."""
    student, kind = f"student{number:03}", KINDS[number % len(KINDS)]
    if kind == "strange name":
        student = random.choice(["=1+{}", "-{}", "Zoë {}", "a,b;\"{}'"]).format(number)
    if kind == "sleeper":
        school.add_sleeper(student, 2)
    elif kind == "no Python":
        school.add(student, "#!/bin/sh\n")
    elif kind == "link":
        (school.folder / student).symlink_to("/etc")
    elif kind == "no file":
        (school.folder / student).mkdir()
    else:
        school.add(student)
    return student


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="an empty folder")
    parser.add_argument("--students", type=int, default=100)
    parser.add_argument("--workers", type=int, default=len(worker_slots(1, None, False)))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    school = Class(args.folder)
    students = {hand_in(school, number) for number in range(args.students)}

    began, kept, rewritten = time.monotonic(), {}, 0
    for kill in (1, 2, 3):
        batch = school.start("--workers", args.workers)
        enough = len(students) * kill // 4
        while len(school.files()) < enough and batch.poll() is None:
            time.sleep(0.2)
        time.sleep(random.uniform(0, 3))
        running = school.processes()
        for process in running if kill == 3 else [batch]:
            process.kill()
        batch.kill()
        batch.communicate()
        killed = time.monotonic()
        while school.processes() and time.monotonic() < killed + 60:
            time.sleep(0.05)
        rewritten += sum(
            kept.setdefault(name, file) != file for name, file in school.files().items()
        )
        print(
            f"kill -9 number {kill}: {len(school.files())} of {len(students)} done, {len(running)} "
            f"processes; {len(school.processes())} left after {time.monotonic() - killed:.1f} s",
            flush=True,
        )
    answer = school.grade("--workers", args.workers, timeout=3600)
    results = school.results()
    rewritten += sum(school.files().get(name) != file for name, file in kept.items())
    again = time.monotonic()
    school.grade("--workers", args.workers)
    print(answer.stdout.strip())
    print(
        f"all: {time.monotonic() - began:.0f} s; once more, all kept: {time.monotonic() - again:.1f} s"
    )
    print("outcomes:", dict(Counter(d["verdict"] or d["status"] for d in results.values())))
    table = (school.out / "summary.csv").read_text(encoding="utf-8").splitlines()
    faults = {
        "students without a result": len(students - set(results)),
        "results without a student": len(set(results) - students),
        "results written again": rewritten,
        "processes left": len(school.processes()),
        "grader faults": sum(d["status"] == "infrastructure_error" for d in results.values()),
        "exit code": answer.returncode,
        "rows of the table too few or too many": len(table) - 1 - len(students),
    }
    print(faults)
    sys.exit(any(faults.values()))


if __name__ == "__main__":
    main()
