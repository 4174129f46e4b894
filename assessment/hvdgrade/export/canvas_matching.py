"""Which row of a gradebook that Canvas exported belongs to which result."""

import re

from hvdgrade.batch.handed_in import comparable, settle

MATCH_BY = ("SIS Login ID", "SIS User ID", "ID")
# A file of Canvas's "Download Submissions": NAME_[LATE_]USER_ATTACHMENT_FILE. A student chooses NAME and
# FILE, which may look the same, so this finds every place where a user id may stand.
USER_ID = re.compile(r"(?=_([0-9]+)_[0-9]+_)")
# The same of an anonymous assignment, [LATE_]anon_LETTERS_ATTACHMENT_FILE: no user id, but what is in FILE.
ANONYMOUS = re.compile(r"(LATE_)?anon_[^_]+_[0-9]+(_|\Z)")


def match(
    documents: list[dict],
    students: dict[int, list[str]],
    head: list[str],
    who: dict[int, str],
    handed_in: set[str],
) -> tuple[dict[int, dict], list[str]]:
    """Which result belongs to which row, {row number: document}, and what does not fit.

    Args:
        documents: the results.
        students: row number -> cells.
        head: the names of the columns.
        who: row number -> the student's name, for the instructor.
        handed_in: names of the submissions that still are: of two results for one row they decide.
    """
    rows: dict[tuple[str, str], list[int]] = {}
    folded: dict[str, set[int]] = {}  # Canvas does not tell capitals of a login apart
    for number, row in students.items():
        for column in MATCH_BY:
            if id := comparable(named(row, head, column)):
                rows.setdefault((column, id), []).append(number)
                folded.setdefault(id.casefold(), set()).add(number)
    names = {
        named(row, head, "ID"): letters(
            "".join(named(row, head, part) for part in ("Student", "LastName", "FirstName"))
        )
        for row in students.values()
    }
    claims: dict[int, list[dict]] = {}
    report = []
    for document in documents:
        id = comparable(document["submission"]["id"])
        fitting = {number for column in MATCH_BY for number in rows.get((column, id), [])}
        how = ""
        if not fitting and (place := downloaded_from(id, names)):
            before, user = place
            fitting = set(rows.get(("ID", user), []))
            if not names.get(user) or written_by(before) != names[user]:
                how = "by the number in its name alone"
        if not fitting:
            fitting, how = folded.get(id.casefold(), set()), "but for capitals"
        if how and len(fitting) == 1:
            people = who[next(iter(fitting))]
            report.append(f"{how}: {document['submission']['id']} is of {people}")
        if len(fitting) == 1:
            claims.setdefault(*fitting, []).append(document)
        elif fitting:
            people = "; ".join(who[number] for number in sorted(fitting))
            report.append(
                f"several rows fit {document['submission']['id']}, none is filled: {people}"
            )
        else:
            report.append(f"no row in the gradebook: {document['submission']['id']}")
    settled, doubts = settle(claims, who, handed_in)
    return settled, report + doubts


def downloaded_from(file: str, names: dict[str, str]) -> tuple[str, str] | None:
    """The user id in the name of a downloaded file, and what stands before it; None where it is not clear.

    A number that stands alone is it, also in a file of a group, whose name is in no row. Where there are
    more, the student's name must stand before the id, and that must be so for one of them only.

    Args:
        file: its name.
        names: user id -> what is left of the student's name; "" where the gradebook tells none.
    """
    if ANONYMOUS.match(file):
        return None
    places = [(file[: place.start()], place[1]) for place in USER_ID.finditer(file)]
    if len(places) == 1:
        return places[0]
    fitting = [
        (before, user)
        for before, user in places
        if names.get(user) and written_by(before) == names[user]
    ]
    return fitting[0] if len(fitting) == 1 else None


def written_by(before: str) -> str:
    """Whose name stands before the user id, as `letters` has it."""
    return letters(before.removesuffix("_LATE"))


def letters(name: str) -> str:
    """What is left of a name in Canvas's file names, where "Lovelace, Ada" is "lovelaceada".

    Without "_", which Canvas drops around some numbers.
    """
    return re.sub(r"[\W_]", "", comparable(name.casefold()))


def named(row: list[str], head: list[str], name: str) -> str:
    """A cell by the name of its column; empty if there is no such column."""
    return row[head.index(name)].strip() if name in head and row != [""] else ""
