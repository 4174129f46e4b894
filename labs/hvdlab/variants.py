"""Scripts that are kept as edits of another script, so that nothing that they share is written twice.

An edit is a diff without line numbers: "-" begins a line that is removed, "+" one that is added, " " one that
stays. Lines that begin with "@@" separate the parts of a diff. What a part removes or keeps must stand in the
script exactly once.
"""

import difflib


def edited(text: str, diff: str) -> str:
    """Return a script after an edit.

    Args:
        text: the script.
        diff: the edit.

    Raises:
        ValueError: the script does not have the lines of a part exactly once: the edit has been made
            already, or the script was changed in that place.
    """
    for old, new in parts(diff):
        if text.count(old) != 1:
            raise ValueError(
                f"an edit replaces lines that the script has {text.count(old)} times and should have once:\n"
                f"{old}"
            )
        text = text.replace(old, new)
    return text


def parts(diff: str) -> list[tuple[str, str]]:
    """Return the lines before and after each part of an edit.

    Args:
        diff: the edit.
    """
    found: list[list[str]] = [[]]
    for line in diff.splitlines(keepends=True):
        if line.startswith("@@"):
            found.append([])
        else:
            found[-1].append(
                line if line.strip() else " \n"
            )  # editors remove spaces at the end of a line
    return [
        tuple("".join(line[1:] for line in lines if line[0] in kept) for kept in (" -", " +"))
        for lines in found
        if lines
    ]


def unified(old: str, new: str, name: str) -> str:
    """Return a unified diff with one line of context: removed lines begin with -, added lines with +.

    Args:
        old: the text before.
        new: the text after.
        name: of the text after, in the heading.
    """
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), "before", name, lineterm="", n=1
    )
    return "\n".join(lines)
