"""Data in comments, names, strings, numbers or spaces get a flag, in any alphabet; honest scripts do not."""

import random
import string
from pathlib import Path

import pytest

from hvdgrade.submission.carriers import MOST, carriers, compressed_bytes
from hvdgrade.submission.flags import flags
from hvdlab.script_analysis.script import Script

ROOT = Path(__file__).parents[3]
SUBMISSIONS = ROOT / "tests/fixtures/submissions"
PATHS = [
    *SUBMISSIONS.glob("*/assessment.py"),
    *(ROOT / "assessment").glob("**/assessment.py"),
    *(ROOT / "tests/fixtures/correct_scripts").glob("*.py"),
    *(ROOT / "tests/fixtures/similar").glob("*.py"),
    *(ROOT / "tests/fixtures/hint_base").glob("*.py"),
    *(ROOT / "labs/faults").glob("*.py"),
    *(ROOT / "labs").glob("[a-z]*.py"),
]
# Two carry data, and two are no Python.
CARRY = {"pretrained", "too_large", "not_python", "null_bytes"}
HONEST = [path for path in PATHS if path.parent.name not in CARRY and path.is_file()]


def words(count: int, kinds: int) -> list[str]:
    """Words of letters from a list of `kinds` made-up words; each word carries log2(kinds) bits."""
    drawn = random.Random(1)
    made_up = [
        "".join(drawn.choices(string.ascii_lowercase, k=drawn.randint(3, 9))) for _ in range(kinds)
    ]
    return drawn.choices(made_up, k=count)


def lines(found: list[str], count: int = 12) -> list[str]:
    return [" ".join(found[i : i + count]) for i in range(0, len(found), count)]


LETTERS = lines(words(3200, 256))  # 22 kB, of which 3.2 kB are data
SPACES = random.Random(2)


def carried(source: str) -> list[str]:
    return [flag["text"] for flag in flags(source.encode()) if "after compression" in flag["text"]]


@pytest.mark.parametrize(
    "source, kind",
    [
        ("x = 1\n" + "".join(f"# {line}\n" for line in LETTERS), "comments"),
        ("".join(f"x = 1  # {line}\n" for line in LETTERS), "comments"),
        ("".join(f'"""{line}"""\n' for line in LETTERS), "docstrings"),
        ("".join(f"x = '{line}'\n" for line in LETTERS), "strings"),
        ("".join(f"x = b'{line}'\n" for line in LETTERS), "strings"),
        ("".join(f"x = f'{{x}}{line}'\n" for line in LETTERS), "strings"),
        ("".join(f"{a}{b} = 1\n" for a, b in zip(words(2500, 256), words(2500, 4096), strict=True)), "names"),
        ("".join(f"f({n}, {n % 977})\n" for n in SPACES.choices(range(10**9), k=1500)), "numbers"),
        ("".join(f"x = 1{' ' * n}\n" for n in SPACES.choices(range(64), k=9000)), "spaces"),
    ],
)  # fmt: skip
def test_data_in_any_place_are_flagged(source, kind):
    assert any(f"its {kind}, which hold" in text for text in carried(source)), carried(source)


def test_data_that_are_spread_over_all_places_are_flagged():
    part = LETTERS[: len(LETTERS) // 3]
    each = ["# {}", '"""{}"""', "x = '{}'"]
    (text,) = carried("\n".join(form.format(line) for form in each for line in part))
    assert text.startswith("Line 1 begins a script whose comments, names")


@pytest.mark.parametrize("path", HONEST, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_honest_script_has_half_of_the_limit_at_most(path):
    source = path.read_bytes()
    found = carriers(Script(source), source)
    sizes = {kind: compressed_bytes(places) for kind, places in found.items()}
    assert max(sizes.values()) <= MOST / 2, sizes
    assert carried(source.decode(errors="replace")) == []


def test_an_integer_of_many_digits_is_a_number():
    source = f"w = 0x{random.Random(3).randbytes(5000).hex()}\n"
    assert any("its numbers, which hold" in text for text in carried(source))


def test_what_is_repeated_counts_once():
    assert carried("# a long line that separates two parts of a program\n" * 500) == []
