"""Results to export, a gradebook to fill, and a function that runs `hvdgrade export`."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

from hvdgrade.batch.id_table import STUDENTS, Student, write_students
from hvdgrade.batch.results import load
from hvdgrade.batch.submissions import safe_name

FIXTURES = Path(__file__).parents[1] / "fixtures" / "export"
COLUMN = "Assignment 1 (1234)"
NASTY = [*"=+-@'\",;\t\r\n |!€é日\u202e\x1b\\", "a", "7", "=1+1", "''", '""', "\r\n"]


def export(
    graded: Path, format: str, *arguments, most_bytes: int | None = None
) -> subprocess.CompletedProcess:
    """Run `hvdgrade export`. `most_bytes` limits the size of a file, like a full disk."""
    limit = [] if most_bytes is None else ["prlimit", f"--fsize={most_bytes}"]
    command = [sys.executable, "-m", "hvdgrade.cli", "export", graded, "--format", format]
    return subprocess.run(
        [*limit, *command, *arguments], capture_output=True, text=True, timeout=60
    )


def keep(graded: Path, document: dict) -> None:
    """Write a result into the output folder of a batch."""
    path = graded / "results" / f"{document['batch']['name']}.json"
    path.write_text(json.dumps(document))


def result(id: str, score: int = 87, maximum: int = 100, status: str = "graded") -> dict:
    document = json.loads((FIXTURES / "results" / "ada.json").read_text())
    document["submission"]["id"] = document["batch"]["name"] = id
    return document | {"score": score, "max_score": maximum, "status": status}


def tell_handed_in(out: Path, *ids: str) -> None:
    """Record these submissions as a batch does that has found them."""
    named = {one["submission"]["id"]: one["batch"]["name"] for one in load(out)}
    tell_students(out, {named.get(id, safe_name(id)): Student(id) for id in ids})


def tell_students(out: Path, students: dict[str, Student]) -> None:
    """Record these students, name of their files -> student, as a batch does."""
    (out / STUDENTS).write_bytes(write_students(students))


def gradebook(people: list[tuple], **style) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file, **style)
    writer.writerow(["Student", "ID", "SIS User ID", "SIS Login ID", "Section", COLUMN, "Final"])
    writer.writerow(["    Points Possible", "", "", "", "", "100.00", "(read only)"])
    for person in people:
        writer.writerow([*person, "A"])
    return file.getvalue().encode()
