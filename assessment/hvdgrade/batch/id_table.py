"""The table of the students of a class, which every export uses: OUT/students.json.

The table maps the name of a submission's files, NAME in OUT/results/NAME.json, to its student. NAME is a safe
file name, while a learning platform's id may be any text, for example an e-mail address. Every batch writes
the table again, so `--ids` changes the ids of a class without grading it again.
"""

import csv
import json
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from hvdgrade import HvdgradeError
from hvdgrade.output.text import printable
from hvdgrade.result_document import ResultDocument

STUDENTS = "students.json"


class BadTable(HvdgradeError):
    """A CSV file is not a table of ids. The message says why in one sentence."""


@dataclass(frozen=True)
class Student:
    """A student who handed in something.

    Attributes:
        id: the id that the learning platform or the instructor uses.
        name: the student's name; "" if the platform does not give it.
        email: the student's e-mail address; "" if the platform does not give it.
        platform: the platform that issued the id; "" if the id is the name of a file or folder, or if it
            comes from a CSV file of the instructor.
        handed_in: the names of the student's files and folders in DIR.
        left_out: the files that were handed in but are not graded.
    """

    id: str
    name: str = ""
    email: str = ""
    platform: str = ""
    handed_in: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def keys(self) -> list[str]:
        """What a platform's table may call the student, first the most certain, as `comparable` text."""
        return [comparable(key) for key in (self.id, self.email) if key.strip()]

    @property
    def shown(self) -> str:
        """The name and the id, for a reader."""
        return f"{self.name} ({self.id})" if self.name else self.id


def write_students(students: Mapping[str, Student]) -> bytes:
    """Return the content of OUT/students.json.

    Args:
        students: NAME -> student.
    """
    table = {name: asdict(student) for name, student in students.items()}
    return (json.dumps(table, indent=1) + "\n").encode()


def read_students(out: Path) -> dict[str, Student]:
    """Return the students of the last batch, NAME -> student; {} if OUT has no such table."""
    try:
        table = json.loads((out / STUDENTS).read_text(encoding="utf-8"))
        return {
            name: Student(
                **{
                    field: tuple(value) if isinstance(value, list) else value
                    for field, value in about.items()
                }
            )
            for name, about in table.items()
        }
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return {}


def student_of(document: ResultDocument) -> Student:
    """Return the student of a result that `results.load` has read."""
    about = document["submission"]
    return Student(
        about["id"], about.get("name", ""), about.get("email", ""), about.get("platform", "")
    )


def find_name(students: Mapping[str, Student], id: str) -> str | None:
    """Return the NAME of the one student with an id or e-mail address; None if there is not exactly one.

    Args:
        students: NAME -> student.
    """
    for position in (0, 1):
        names = [
            name
            for name, student in students.items()
            if student.keys[position : position + 1] == [comparable(id)]
        ]
        if names:
            return names[0] if len(names) == 1 else None
    return None


def read_pairs(path: Path, first: str, second: str) -> dict[str, str]:
    """Return the first two columns of a CSV file: `comparable` text of the first -> second.

    Args:
        second: what the second column contains, for messages.

    Raises:
        BadTable: the file cannot be read, is not UTF-8 CSV with two columns, or gives one name two values.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file)]
    except OSError as error:
        raise BadTable(f"{path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error):
        rows = []
    pairs: dict[str, str] = {}
    for key, value in (row[:2] for row in rows if len(row) >= 2 and row[0] and row[1]):
        if pairs.setdefault(comparable(key), value) != value:
            raise BadTable(f"{path} has two {second}s for {printable(key)}: keep one of them.")
    if not pairs:
        raise BadTable(
            f"{path} must be UTF-8 with two columns separated by commas: {first}, {second}."
        )
    return pairs


def comparable(name: str) -> str:
    """Return a name in the form in which names are compared.

    Unicode has two forms of letters such as "é", and macOS uses another one than most systems.
    """
    return unicodedata.normalize("NFC", name.strip())
