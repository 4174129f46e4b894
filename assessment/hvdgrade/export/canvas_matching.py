"""Find the row of an exported Canvas gradebook to which each result belongs."""

import re
from collections.abc import Collection

from hvdgrade.batch.handed_in import settle
from hvdgrade.batch.id_table import Student, comparable, student_of
from hvdgrade.result_document import ResultDocument

LOGIN = "SIS Login ID"
MATCH_BY = (LOGIN, "SIS User ID", "ID")
ONLY_BY_ID = "matched only by the user id in its name"
# Canvas's "Download Submissions" names a file NAME_[LATE_]USER_ATTACHMENT_FILE. The student chooses NAME and
# FILE, which may contain the same pattern. A batch then takes the whole name as the id, and this expression
# finds every possible position of the user id.
USER_ID = re.compile(r"(?=_([0-9]+)_[0-9]+_)")
# For an anonymous assignment the name is [LATE_]anon_LETTERS_ATTACHMENT_FILE. It contains no user id, but
# FILE may contain text that looks like one.
ANONYMOUS = re.compile(r"(LATE_)?anon_[^_]+_[0-9]+(_|\Z)")


class Rows:
    """The rows of a gradebook, by what they say about their students.

    Args:
        students: row number -> cells.
    """

    def __init__(self, students: dict[int, list[str]], head: list[str]) -> None:
        self.by_cell: dict[tuple[str, str], set[int]] = {}
        # Canvas ignores upper and lower case in a login.
        self.folded: dict[str, set[int]] = {}
        self.before_at: dict[str, set[int]] = {}
        self.user_names: dict[str, str] = {}
        for number, row in students.items():
            for column in MATCH_BY:
                if id := comparable(cell_of(row, head, column)):
                    self.by_cell.setdefault((column, id), set()).add(number)
                    self.folded.setdefault(id.casefold(), set()).add(number)
            if login := local_part(cell_of(row, head, LOGIN)):
                self.before_at.setdefault(login, set()).add(number)
            name = "".join(
                cell_of(row, head, part) for part in ("Student", "LastName", "FirstName")
            )
            self.user_names[cell_of(row, head, "ID")] = letters(name)

    def of(self, student: Student) -> tuple[set[int], str]:
        """Return the rows that fit a student, and a remark if the match is not certain."""
        for key in student.keys:
            # Only Canvas's own column has the ids that Canvas issued.
            issued = student.platform == "canvas" and key == comparable(student.id)
            columns = ("ID",) if issued else MATCH_BY
            fitting = set().union(*(self.by_cell.get((column, key), ()) for column in columns))
            if fitting:
                doubtful = issued and letters(student.name) != self.user_names.get(key)
                return fitting, ONLY_BY_ID if doubtful else ""
        if student.platform == "canvas":
            return set(), ""
        if place := downloaded_from(comparable(student.id), self.user_names):
            before, user = place
            if fitting := self.by_cell.get(("ID", user), set()):
                sure = self.user_names.get(user) == written_by(before)
                return fitting, "" if sure else ONLY_BY_ID
        for key in student.keys:
            if fitting := self.folded.get(key.casefold(), set()):
                return fitting, "matched without regard to upper and lower case"
        return set(), ""


def match(
    documents: list[ResultDocument],
    students: dict[int, list[str]],
    head: list[str],
    people: dict[int, str],
    names: Collection[str],
    before_at: bool = False,
) -> tuple[dict[int, ResultDocument], list[str]]:
    """Assign results to rows.

    Args:
        students: row number -> cells.
        people: row number -> name of the student, for messages.
        names: names of the submissions that are still handed in. If one row has several results, they
            decide which result counts.
        before_at: whether an id and a login may differ after "@". Default: False.

    Returns:
        A dict from row number to result, and a line for each result that matches several rows or is not
        certain, and one for all results that match no row.
    """
    rows = Rows(students, head)
    claims: dict[int, list[ResultDocument]] = {}
    messages, without_row = [], []
    for document in documents:
        student = student_of(document)
        fitting, remark = rows.of(student)
        if len(fitting) == 1:
            claims.setdefault(*fitting, []).append(document)
            if remark:
                messages.append(f"{remark}: {student.shown} belongs to {people[min(fitting)]}")
        elif fitting:
            listed = "; ".join(people[number] for number in sorted(fitting))
            messages.append(f"several rows match {student.shown}, so none is filled: {listed}")
        else:
            without_row.append(document)
    found = rows_before_at(without_row, rows.before_at, set(claims))
    if before_at:
        for number, document in found.items():
            claims[number] = [document]
            shown = student_of(document).shown
            messages.append(f"matched by the part before '@': {shown} belongs to {people[number]}")
        without_row = [document for document in without_row if document not in found.values()]
    if without_row:
        listed = ", ".join(student_of(document).shown for document in without_row)
        messages.append(f"no row in the gradebook: {listed}")
    if found and not before_at:
        messages.append(
            f"{len(found)} of these match exactly one login each by the part before '@': add --before-at "
            "to fill their rows"
        )
    settled, unclear = settle(claims, people, names)
    return settled, messages + unclear


def rows_before_at(
    documents: list[ResultDocument], logins: dict[str, set[int]], taken: set[int]
) -> dict[int, ResultDocument]:
    """Return the results that match exactly one row by the part of the login before "@", row -> result.

    Args:
        logins: part of a login before "@" -> rows.
    """
    by_part: dict[str, list[ResultDocument]] = {}
    for document in documents:
        student = student_of(document)
        if student.platform != "canvas":
            by_part.setdefault(local_part(student.id), []).append(document)
    return {
        min(logins[part]): same[0]
        for part, same in by_part.items()
        if len(same) == 1 and len(logins.get(part, ())) == 1 and not logins[part] & taken
    }


def local_part(address: str) -> str:
    """Return the part of an e-mail address before "@", in the form in which logins are compared."""
    return comparable(address).partition("@")[0].casefold()


def downloaded_from(file: str, user_names: dict[str, str]) -> tuple[str, str] | None:
    """Find the user id in the name of a downloaded file.

    If only one number can be the user id, it is taken. This also covers the file of a group, whose name is
    in no row. If several numbers can be the user id, it is the number that has its student's name in front
    of it, and only if this holds for exactly one of them.

    Args:
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
    """Return the `letters` of the student's name at the start of a file name."""
    return letters(before.removesuffix("_LATE"))


def letters(name: str) -> str:
    """Return what remains of a name in Canvas's file names: "Lovelace, Ada" becomes "lovelaceada".

    Underscores are removed, too, because Canvas drops them around some numbers.
    """
    return re.sub(r"[\W_]", "", comparable(name.casefold()))


def cell_of(row: list[str], head: list[str], name: str) -> str:
    """Return the cell in the column `name`, or "" if there is no such column."""
    return row[head.index(name)].strip() if name in head and row != [""] else ""
