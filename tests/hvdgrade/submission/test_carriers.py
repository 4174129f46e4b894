"""Data in comments, names, strings, numbers or spaces get a flag, in any alphabet; honest scripts do not."""

import random
import string
from pathlib import Path

import pytest

from hvdgrade.submission.carriers import MOST, carriers, compressed_bytes
from hvdgrade.submission.flags import flags
from hvdlab.faults import faults
from hvdlab.script_analysis.script import Script
from tests.helpers.submissions import NAMES, source

ROOT = Path(__file__).parents[3]
FILES = [
    *(ROOT / "assessment").glob("**/assessment.py"),
    *(ROOT / "tests/fixtures/correct_scripts").glob("*.py"),
    *(ROOT / "tests/fixtures/similar").glob("*.py"),
    *(ROOT / "labs").glob("[a-z]*.py"),
]
# Two carry data, two are no Python, and two have no script.
OTHERS = {"pretrained", "too_large", "not_python", "null_bytes", "no_script", "folder_as_script"}
HONEST = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in FILES}
HONEST |= {name: source(name) for name in NAMES if name not in OTHERS}
HONEST |= {name: fault.text for name, fault in faults().items()}


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


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_script_has_half_of_the_limit_at_most(name):
    source = HONEST[name].encode()
    found = carriers(Script(source), source)
    sizes = {kind: compressed_bytes(places) for kind, places in found.items()}
    assert max(sizes.values()) <= MOST / 2, sizes
    assert carried(HONEST[name]) == []


def test_an_integer_of_many_digits_is_a_number():
    source = f"w = 0x{random.Random(3).randbytes(5000).hex()}\n"
    assert any("its numbers, which hold" in text for text in carried(source))


def test_what_is_repeated_counts_once():
    assert carried("# a long line that separates two parts of a program\n" * 500) == []
