"""Find the row of an exported Canvas gradebook to which each result belongs."""

import re
from collections.abc import Collection

from hvdgrade.batch.handed_in import comparable, settle

MATCH_BY = ("SIS Login ID", "SIS User ID", "ID")
# Canvas's "Download Submissions" names a file NAME_[LATE_]USER_ATTACHMENT_FILE. The student chooses NAME and
# FILE, which may contain the same pattern, so this expression finds every possible position of the user id.
USER_ID = re.compile(r"(?=_([0-9]+)_[0-9]+_)")
# For an anonymous assignment the name is [LATE_]anon_LETTERS_ATTACHMENT_FILE. It contains no user id, but
# FILE may contain text that looks like one.
ANONYMOUS = re.compile(r"(LATE_)?anon_[^_]+_[0-9]+(_|\Z)")


def match(
    documents: list[dict],
    students: dict[int, list[str]],
    head: list[str],
    people: dict[int, str],
    names: Collection[str],
) -> tuple[dict[int, dict], list[str]]:
    """Assign results to rows.

    Args:
        documents: the results.
        students: row number -> cells.
        head: names of the columns.
        people: row number -> name of the student, for messages.
        names: names of the submissions that are still handed in. If one row has several results, they
            decide which result counts.

    Returns:
        A dict from row number to result, and a line for each result that matches no row, several rows, or
        a row only by part of its name.
    """
    rows: dict[tuple[str, str], list[int]] = {}
    folded: dict[str, set[int]] = {}  # Canvas ignores upper and lower case in a login
    for number, row in students.items():
        for column in MATCH_BY:
            if id := comparable(cell_of(row, head, column)):
                rows.setdefault((column, id), []).append(number)
                folded.setdefault(id.casefold(), set()).add(number)
    user_names = {
        cell_of(row, head, "ID"): letters(
            "".join(cell_of(row, head, part) for part in ("Student", "LastName", "FirstName"))
        )
        for row in students.values()
    }
    claims: dict[int, list[dict]] = {}
    messages = []
    for document in documents:
        original_id = document["submission"]["id"]
        id = comparable(original_id)
        fitting = {number for column in MATCH_BY for number in rows.get((column, id), [])}
        weak_match = ""
        if not fitting and (place := downloaded_from(id, user_names)):
            before, user = place
            fitting = set(rows.get(("ID", user), []))
            if not user_names.get(user) or written_by(before) != user_names[user]:
                weak_match = "matched only by the user id in its name"
        if not fitting:
            fitting = folded.get(id.casefold(), set())
            weak_match = "matched without regard to upper and lower case"
        if len(fitting) == 1:
            claims.setdefault(*fitting, []).append(document)
            if weak_match:
                messages.append(f"{weak_match}: {original_id} belongs to {people[min(fitting)]}")
        elif fitting:
            listed = "; ".join(people[number] for number in sorted(fitting))
            messages.append(f"several rows match {original_id}, so none is filled: {listed}")
        else:
            messages.append(f"no row in the gradebook: {original_id}")
    settled, unclear = settle(claims, people, names)
    return settled, messages + unclear


def downloaded_from(file: str, user_names: dict[str, str]) -> tuple[str, str] | None:
    """Find the user id in the name of a downloaded file.

    If only one number can be the user id, it is taken. This also covers the file of a group, whose name is
    in no row. If several numbers can be the user id, it is the number that has its student's name in front
    of it, and only if this holds for exactly one of them.

    Args:
        file: name of the file.
        user_names: user id -> `letters` of the student's name; "" where the gradebook has no name.

    Returns:
        The text before the user id, and the user id; None if the name is ambiguous or has no user id.
    """
    if ANONYMOUS.match(file):
        return None
    places = [(file[: place.start()], place[1]) for place in USER_ID.finditer(file)]
    if len(places) == 1:
        return places[0]
    fitting = [
        (before, user)
        for before, user in places
        if user_names.get(user) and written_by(before) == user_names[user]
    ]
    return fitting[0] if len(fitting) == 1 else None


def written_by(before: str) -> str:
    """Return the `letters` of the student's name at the start of a file name.

    Args:
        before: the part of the file name before the user id.
    """
    return letters(before.removesuffix("_LATE"))


def letters(name: str) -> str:
    """Return what remains of a name in Canvas's file names: "Lovelace, Ada" becomes "lovelaceada".

    Underscores are removed, too, because Canvas drops them around some numbers.

    Args:
        name: a name, or part of a file name.
    """
    return re.sub(r"[\W_]", "", comparable(name.casefold()))


def cell_of(row: list[str], head: list[str], name: str) -> str:
    """Return the cell in the column `name`, or "" if there is no such column.

    Args:
        row: cells of the row.
        head: names of the columns.
        name: name of the column.
    """
    return row[head.index(name)].strip() if name in head and row != [""] else ""
