"""Downloads of learning platforms with awkward names, and whom a batch must find in each."""

from dataclasses import dataclass, field
from pathlib import Path

from school import QUICK

LATER = QUICK + "# the last attempt\n"
NEEDS_HELPERS = "import helpers\n"


@dataclass(frozen=True)
class Download:
    """What a platform's download contains.

    Attributes:
        title: what the batch calls the platform.
        files: path -> content.
        names: student id -> name.
        graded: student id -> script that is graded.
        reasons: student id -> words of the sentence that says why there is no grade.
        left_out: student id -> files that are not graded.
        folder: name of the folder.
        ids: the instructor's table of ids.
    """

    title: str
    files: dict[str, str]
    names: dict[str, str]
    graded: dict[str, str]
    reasons: dict[str, str]
    left_out: dict[str, list[str]] = field(default_factory=dict)
    folder: str = "class"
    ids: str = ""

    def write(self, place: Path) -> Path:
        """Write the download to a folder in `place` and return that folder."""
        folder = place / self.folder
        for name, content in (self.files | {".DS_Store": ""}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8")
        return folder


METADATA = """\
---
submission_221001:
  :submitters:
  - :name: Ada Lovelace
    :sid: '007'
    :email: ada@uni.edu
  - :name: "Zoë O'Neil"
    :sid:
    :email: zoe.o'neil@uni.edu
  :created_at: 2026-05-01 10:00:00.000000000 Z
  :score: 3.0
submission_221002:
  :submitters:
  - :name: "=1+1"
    :sid: 009
    :email: bob@uni.edu
"""
MOODLE = "_assignsubmission_"
BLACKBOARD = "Assignment 1"

DOWNLOADS = {
    "canvas": Download(
        "Canvas",
        {
            "lovelaceada_4001_9917_assessment-2.py": QUICK,
            "lovelaceada_4001_9918_notes.pdf": "%PDF",
            "oneilzoë_LATE_4002_text.html": "<p>import torch</p>",
            "smithbob_4003_link.html": "<a>",
            "straßeeve_4004_9921_work.zip": "PK",
            "halhelper_4005_9922_assessment.py": NEEDS_HELPERS,
            "halhelper_4005_9923_helpers.py": "x = 1",
            "mallory_4001_7_4009_9924_work.zip": "PK",  # her name contains the id of Ada
            "LATE_anon_aB3_9925_4001_7.py.txt": "",
        },
        {
            "4001": "lovelaceada",
            "4002": "oneilzoë",
            "4003": "smithbob",
            "4004": "straßeeve",
            "4005": "halhelper",
            "mallory_4001_7_4009_9924_work": "",
            "anon_aB3": "",
        },
        {"4001": QUICK},
        {
            "4002": "it is text that was typed into the learning platform",
            "4003": "it is a link to a web page",
            "4004": "it is a zip archive (work.zip)",
            "4005": "imports helpers, which was handed in next to it",
            "mallory_4001_7_4009_9924_work": "it is a zip archive",
            "anon_aB3": "a script whose name ends in .txt",
        },
        {"4001": ["notes.pdf"], "4005": ["helpers.py"]},
    ),
    "moodle": Download(
        "Moodle",
        {
            f"Ada Lovelace_102231{MOODLE}file_/Assessment.py": QUICK,
            f"Ada Lovelace_102231{MOODLE}onlinetext_/onlinetext.html": "<p>please</p>",
            f"Zoë O'Neil_102232{MOODLE}file_work.tar.gz": "",
            f"=1+1_102233{MOODLE}onlinetext_/onlinetext.html": "<p>import torch</p>",
            f"Mallory_102231{MOODLE}file_x_102234{MOODLE}file_/assessment.zip": "PK",
        },
        {
            "102231": "Ada Lovelace",
            "102232": "Zoë O'Neil",
            "102233": "=1+1",
            f"Mallory_102231{MOODLE}file_x_102234{MOODLE}file_": "",
        },
        {"102231": QUICK},
        {
            "102232": "it is a tar archive (work.tar.gz)",
            "102233": "it is text that was typed into the learning platform",
            f"Mallory_102231{MOODLE}file_x_102234{MOODLE}file_": "it is a zip archive",
        },
        {"102231": ["onlinetext.html"]},
    ),
    "gradescope": Download(
        "Gradescope",
        {
            "submission_metadata.yml": METADATA,
            "submission_221001/hw/assessment.py": QUICK,
            "submission_221002/report.pdf": "%PDF",
            "submission_221003/report.docx": "",  # not in the metadata
        },
        {
            "007": "Ada Lovelace",
            "zoe.o'neil@uni.edu": "Zoë O'Neil",
            "009": "=1+1",
            "submission_221003": "",
        },
        {"007": QUICK, "zoe.o'neil@uni.edu": QUICK},
        {"009": "it is a PDF document", "submission_221003": "it is a word processor's document"},
    ),
    "brightspace": Download(
        "Brightspace",
        {
            "12345-67890 - Ada Lovelace - 2 May, 2026 1010 AM/assessment.py": QUICK,
            "12345-67890 - Ada Lovelace - 2 May, 2026 105 PM/assessment.py": LATER,
            "12346-67890 - Zoë O'Neil - Smith - May 1, 2026 905 PM - work.rar": "",
            "index.html": "<table>",
        },
        {"12345": "Ada Lovelace", "12346": "Zoë O'Neil - Smith"},
        {"12345": LATER},
        {"12346": "it is an archive (work.rar)"},
        {"12345": ["12345-67890 - Ada Lovelace - 2 May, 2026 1010 AM"]},
    ),
    "blackboard": Download(
        "Blackboard",
        {
            f"{BLACKBOARD}_ada_l_attempt_2026-05-01-10-00-00.txt": "Name: Ada L. (ada_l)\nDate: x",
            f"{BLACKBOARD}_ada_l_attempt_2026-05-01-10-00-00_assessment.py": QUICK,
            f"{BLACKBOARD}_ada_l_attempt_2026-05-02-10-00-00.txt": "Name: Ada L. (ada_l)\n",
            f"{BLACKBOARD}_ada_l_attempt_2026-05-02-10-00-00_assessment.py": LATER,
            f"{BLACKBOARD}_o'neil_attempt_2026-05-01-10-00-00.txt": "Name: Zoë O'Neil (o'neil)\n",
            f"{BLACKBOARD}_bob_attempt_2026-05-01-10-00-00_work.heic": "",
        },
        {"ada_l": "Ada L.", "o'neil": "Zoë O'Neil", "bob": ""},
        {"ada_l": LATER},
        {"o'neil": "it has no file, only text that was typed in", "bob": "it is an image"},
        {"ada_l": [f"{BLACKBOARD}_ada_l_attempt_2026-05-01-10-00-00_assessment.py"]},
    ),
    "nbgrader": Download(
        "nbgrader",
        {
            "ada@uni.edu/ps1/assessment.py": QUICK,
            "ada@uni.edu/ps1/timestamp.txt": "2026-05-01 10:00:00 UTC",
            "ada@uni.edu/ps0/timestamp.txt": "2026-04-01 10:00:00 UTC",
            "o'neil/ps1/lab.ipynb": "{}",
            "o'neil/ps1/timestamp.txt": "2026-05-01 10:00:00 UTC",
        },
        {"ada@uni.edu": "", "o'neil": ""},
        {"ada@uni.edu": QUICK},
        {"o'neil": "it is a notebook (ps1/lab.ipynb)"},
    ),
    "classroom50": Download(
        "Classroom 50",
        {
            "cs-50-hw-1-ada/.git/HEAD": "",
            "cs-50-hw-1-ada/assessment.py": QUICK,
            "cs-50-hw-1-ada/.classroom50.yaml": 'classroom: "cs-50"\nassignment: "hw-1"\n',
            "cs-50-hw-1-bob-1/.git/HEAD": "",
            "cs-50-hw-1-bob-1/result.json": "{}",
            "cs-50-hw-1-1-ada/.git/HEAD": "",  # his login ends like another's
            "cs-50-hw-1-left-early/.git/HEAD": "",  # not in scores.csv
            "scores.csv": "username,first_name,last_name,email,section,score,max_score,submission_tag\n"
            "Ada,Ada,Lovelace,ada@uni.edu,,1,2,submit/1\nAda,Ada,Lovelace,ada@uni.edu,,2,2,submit/2\n"
            "bob-1,'=1+1,,bob@uni.edu,,,,\n1-ada,Zoë,O'Neil,zoe.o'neil@uni.edu,,,,\nnobody,,,,,,,\n",
        },
        {"Ada": "Ada Lovelace", "bob-1": "=1+1", "1-ada": "Zoë O'Neil", "left-early": ""},
        {"Ada": QUICK},
        dict.fromkeys(["bob-1", "1-ada", "left-early"], "its folder holds no .py file"),
        {},
        folder="unpacked",
    ),
    "github": Download(
        "GitHub Classroom",
        {
            "hw-1-ada/.git/HEAD": "",
            "hw-1-ada/src/assessment.py": QUICK,
            "hw-1-ada/README.md": "",
            "hw-1-bob-o/.git/HEAD": "",
            "hw-1-new-login/.git/HEAD": "",
            "classroom_roster.csv": '"identifier","github_username","github_id","name"\n'
            '"ada@uni.edu","ada","1","Ada L."\n"=1+1","bob-o","2",""\n"eve","","",""\n',
        },
        {"ada@uni.edu": "Ada L.", "=1+1": "", "new-login": ""},
        {"ada@uni.edu": QUICK},
        {"=1+1": "its folder holds no .py file", "new-login": "its folder holds no .py file"},
        {"ada@uni.edu": ["README.md"]},
        folder="hw-1-submissions",
    ),
    "plain": Download(
        "a folder or file per student",
        {
            "team 7/Assessment.py": QUICK,
            "=cmd().py": "# later\n",
            "Zoë K.py": '{"cells": []}',
            "dan.zip": "PK",
        },
        {"ada@uni.edu": "", "=1+1": "", "Zoë K": "", "dan": ""},
        {"ada@uni.edu": QUICK},
        {
            "=1+1": "it imports, calls, defines and assigns nothing",
            "Zoë K": "it imports, calls, defines and assigns nothing",
            "dan": "it is a zip archive",
        },
        ids="name,id\nteam 7,ada@uni.edu\n=cmd(),=1+1\n",
    ),
}
