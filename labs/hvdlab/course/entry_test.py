"""Say which sections of labs 1 to 3 a learner can skip: the core path, and the marks of the entry test.

The optional notebooks of these labs have sections of this kind too.

A lab says below each heading how long the section takes, whether it belongs to the core path, and which
functions of the learner later cells call:

    # ## Gradient
    #
    # *Core, 11 minutes. Later cells call `gradient`.*

The questions of the entry test, `labs/questions/00_test_and_bridge.toml`, name the sections that they cover.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hvdlab.course import answers_file, experiment, lab_source, workbook
from hvdlab.course.answers_file import AnswersFile, Entry, QuizAnswer

LAB = 0  # the number under which the answers are kept
SOURCE = experiment.LABS / "00_test_and_bridge.py"
MARKED = re.compile(
    r"^# #{2,3} (?P<title>.+)\n#\n# \*(?P<path>Core|Optional), (?P<minutes>\d+) minutes?\."
    r"(?: Later cells call (?P<called>.+)\.)?\*$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Section:
    """A section of a lab.

    Args:
        core: whether it belongs to the core path.
        called: the functions of its exercises that later cells call.
        source: the name of the file that has the section.
    """

    lab: int
    title: str
    core: bool
    minutes: int
    called: tuple[str, ...]
    source: str = ""

    @property
    def path(self) -> str:
        """Return "core", "optional" or "optional notebook"."""
        if self.core:
            return "core"
        return "optional notebook" if lab_source.OPTIONAL.fullmatch(self.source) else "optional"

    @property
    def name(self) -> str:
        """What a question calls the section, for example "lab 2: Gradient"."""
        return f"lab {self.lab}: {self.title}"


def sections(folder: Path = experiment.LABS) -> list[Section]:
    """Return the sections that say whether they belong to the core path, in the order of the course.

    Args:
        folder: the folder of the labs. Default: the one that this package lies in.
    """
    return [
        Section(
            lab.number,
            found["title"],
            found["path"] == "Core",
            int(found["minutes"]),
            tuple(re.findall(r"`(\w+)`", found["called"] or "")),
            path.name,
        )
        for lab in lab_source.labs(folder)
        for path in (lab.path, *lab.optional)
        for found in MARKED.finditer(path.read_text(encoding="utf-8"))
    ]


def mark(answers: Sequence[bool | None], *, needed: bool = False) -> str:
    """Return "skip", "skim" or "do" for a section.

    Args:
        answers: whether the answer is right, for each question about the section. None: the question has no
            answer yet, or the answer "I do not know."
        needed: later cells call a function that the learner writes in this section.
    """
    if not any(answers) or None in answers:
        return "do"
    return "skip" if all(answers) and not needed else "skim"


def marks(entries: Iterable[Entry], of: Iterable[Section]) -> dict[str, str]:
    """Return the mark of each section, by its name. The last answer to a question counts.

    Args:
        entries: what the learner did.
        of: the sections.
    """
    asked = workbook.questions(LAB)
    known = {
        one.number: None if is_unknown(one, asked) else one.right
        for one in entries
        if isinstance(one, QuizAnswer) and one.lab == LAB
    }
    about = {
        section: [
            known.get(n) for n, question in enumerate(asked, 1) if section.name in question.sections
        ]
        for section in of
    }
    return {section.name: mark(about[section], needed=bool(section.called)) for section in about}


def is_unknown(answer: QuizAnswer, asked: Sequence[workbook.Question]) -> bool:
    """Return whether an answer is the last choice of its question, which is "I do not know."."""
    return (
        answer.number > len(asked)
        or answer.answer.strip().lower() == asked[answer.number - 1].letters[-1]
    )


def is_answered(entries: Iterable[Entry]) -> bool:
    """Return whether the learner has answered a question of the entry test."""
    return any(isinstance(one, QuizAnswer) and one.lab == LAB for one in entries)


def show(file: AnswersFile | None = None) -> None:
    """Print the sections with their minutes, the core path, and the marks of the entry test.

    Args:
        file: what the learner did. Default: the file that the notebooks write.

    Raises:
        WorkbookError: the file cannot be read.
    """
    entries = (file or AnswersFile(answers_file.PATH)).entries()
    answered = is_answered(entries)
    all_sections = sections()
    found = marks(entries, all_sections)
    table = Table()
    for name in ("Lab", "Section", "Path", "Minutes", *(["Your mark"] if answered else [])):
        table.add_column(name, justify="right" if name in ("Lab", "Minutes") else "left")
    for section in all_sections:
        row = (str(section.lab), section.title, section.path, str(section.minutes))
        row += (found[section.name],)
        table.add_row(*row[: len(table.columns)])
    Console().print(table)
    print(total(all_sections, found if answered else {}))


def total(of: Sequence[Section], found: dict[str, str]) -> str:
    """Return a sentence about the minutes of the core path, and what the marks say about them."""
    core = [section for section in of if section.core]
    text = (
        f"The core path takes {minutes(core)} of the {minutes(of)} minutes of these labs, "
        "if you do every exercise on it."
    )
    if not found:
        return f"{text} The entry test takes five minutes and says which sections you can skip."
    skipped = [section for section in core if found[section.name] == "skip"]
    return f"{text} You can skip {minutes(skipped)} of them."


def minutes(of: Iterable[Section]) -> int:
    """Return the minutes of some sections together."""
    return sum(section.minutes for section in of)
