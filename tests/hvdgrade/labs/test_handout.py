"""The hand-out of the course has no solution and all that a lab needs, or is refused with one sentence."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from hvdgrade import cli
from hvdgrade.labs import handout
from hvdlab.course import lab_source
from hvdlab.course.stubs import BEGIN, END, IS_SOLUTION

ROOT = Path(__file__).parents[3]
SOURCES = [path for lab in lab_source.labs() for path in (lab.path, *lab.optional)]


def solutions() -> dict[str, list[str]]:
    """Return the solutions of the labs of at least three lines: place -> lines without indent."""
    found = {}
    for path in [*SOURCES, ROOT / "labs/00_test_and_bridge.py"]:
        block = None
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if BEGIN.match(line):
                block = []
            elif END.match(line):
                if len(block) >= 3:
                    found[f"{path.name}:{number}"] = block
                block = None
            elif block is not None and line.strip():
                block.append(line.strip())
    return found


def squeezed(text: str) -> str:
    """Return the lines of a text, or of the cells of a notebook, without indent."""
    text = re.sub(r'^\s*"(.*?)(?:\\n)?",?$', lambda m: m[1].replace('\\"', '"'), text, flags=re.M)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout")
    out = tmp_path_factory.mktemp("handout") / "course"
    assert cli.main(["labs", "handout", str(out)]) == 0
    return out


@pytest.mark.slow
def test_no_solution_is_left_in_any_text(written):
    wanted = {place: "\n".join(lines) for place, lines in solutions().items()}
    assert len(wanted) > 100
    found, read = set(), 0
    for path in written.rglob("*.*"):
        if path.suffix in (".py", ".ipynb", ".md", ".toml", ".txt", ".html", ".js"):
            text = squeezed(path.read_text("utf-8"))
            read += 1
            name = str(path.relative_to(written))
            found |= {(place, name) for place, lines in wanted.items() if lines in text}
    # The formula of the public module `hvdlab.noise_scale`.
    assert {name for _, name in found} <= {"labs/hvdlab/noise_scale.py"} and read > 500
    # The same search finds the solutions where they are.
    for name in ("notebooks/solutions/05_horovod.ipynb", "labs/05_horovod.py"):
        original = squeezed((ROOT / name).read_text("utf-8"))
        own = [lines for place, lines in wanted.items() if place.startswith("05_horovod.py")]
        assert own and all(lines in original for lines in own)


@pytest.mark.slow
def test_has_no_file_for_instructors_and_no_link_to_one(written):
    for name in handout.LEFT_OUT:
        left = {path.parent for path in (written / name).rglob("*.*") if path.is_file()}
        assert left <= {written / handout.PICTURES} and not (written / name).is_file(), name
    assert "SUBMISSION ?= assessment/torch/assessment.py" in (written / "Makefile").read_text()
    for path in written.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)[^)\s]*\)", path.read_text("utf-8")):
            if (
                not target.startswith(("http", "mailto"))
                and (ROOT / path.relative_to(written).parent / target).exists()
            ):
                assert (path.parent / target).exists(), f"{path}: {target}"


@pytest.mark.slow
def test_the_labs_have_the_same_exercises_predictions_and_questions(written):
    for here, there in zip(lab_source.labs(), lab_source.labs(written / "labs"), strict=True):
        assert (here.title, here.exercises, here.levels) == (
            there.title,
            there.exercises,
            there.levels,
        )
        assert (here.predictions, here.questions) == (there.predictions, there.questions)


@pytest.mark.slow
def test_a_learner_works_in_the_hand_out(written):
    work = (
        "from hvdlab.course.answers_file import PATH, AnswersFile, SolvedExercise, now\n"
        "from hvdlab.course.workbook import Workbook\n"
        "file = AnswersFile(PATH)\n"
        "file.add(SolvedExercise(2, 'lab02.gradient', now()))\n"
        "Workbook(5, file).question(1, 'a')\n"
        "from hvdlab.exercises import lab02_gradient_descent as exercises\n"
        "try:\n"
        "    exercises.check_gradient(lambda *arguments: None)\n"
        "except exercises.NotYet as error:\n"
        "    print(error)\n"
        "from hvdlab.cli import main\n"
        "main(['progress'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", work],
        cwd=written / "labs",
        env={"PYTHONPATH": str(written / "labs"), "PATH": "/usr/bin:/bin", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert (written / "notebooks/work/answers.json").exists()
    assert "1 of " in done.stdout and "is `return` missing?" in done.stdout


@pytest.fixture
def small(tmp_path):
    """Return a checkout with one lab."""
    root = tmp_path / "small"
    (root / "labs").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "Makefile").write_text("\n".join(handout.IN_MAKEFILE))
    (root / "README.md").write_text("[gone](tests/test_x.py), ![a](b.png), [there](labs/), f[0](x)")
    (root / "tests/test_x.py").write_text("answer = 42\n")
    (root / "labs/02_a.py").write_text(
        '# %%\ndef f():\n    # BEGIN SOLUTION: return "it"\n    return 42\n    # END SOLUTION\n\n\n'
        '# %% tags=["solution"]\nprint(42)\n\n# %% [markdown]\n# SOLUTION is a word.\n'
    )
    (root / "labs/link.py").symlink_to("02_a.py")
    subprocess.run(["git", "init", "-q", root], check=True, timeout=60)
    subprocess.run(["git", "-C", root, "add", "."], check=True, timeout=60)
    (root / "labs/untracked.txt").write_text("42")
    return root


@pytest.mark.parametrize("ending", ["", ".zip", ".tar.gz"])
def test_writes_a_folder_or_an_archive(small, tmp_path, ending):
    out = tmp_path / f"course{ending}"
    assert handout.write(out, small) == 4
    if ending == ".zip":
        zipfile.ZipFile(out).extractall(tmp_path)
    elif ending:
        tarfile.open(out).extractall(tmp_path, filter="data")
    assert (tmp_path / "course/labs/02_a.py").read_text() == (
        "# %%\ndef f():\n    raise NotImplementedError(\"Lab 2, exercise 1: return 'it'\")\n\n\n"
        "# %% [markdown]\n# SOLUTION is a word.\n"
    )
    assert (
        tmp_path / "course/README.md"
    ).read_text() == "gone, ![a](b.png), [there](labs/), f[0](x)"
    assert not (tmp_path / "course/tests").exists()
    assert not (tmp_path / "course/labs/untracked.txt").exists()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def refused(out: Path, root: Path) -> str:
    with pytest.raises(handout.CannotHandOut) as error:
        handout.write(out, root)
    return str(error.value)


def test_refuses_with_one_sentence(small, tmp_path):
    assert "exists already" in refused(small, small)
    assert "cannot be written: No such file" in refused(tmp_path / "no/course", small)
    (small / "labs/02_a.py").write_text("# %%\n# BEGIN SOLUTION: x\n")
    assert refused(tmp_path / "new", small) == "02_a.py, cell 1: # END SOLUTION is missing in"
    shutil.rmtree(small / ".git")
    assert "is not a git checkout" in refused(tmp_path / "new", small)
    assert not (tmp_path / "new").exists()


def test_knows_cells_that_are_solutions():
    assert IS_SOLUTION.match('# %% tags=["folded", "solution"]\n')
    assert not IS_SOLUTION.match('# %% tags=["folded"]\nprint("solution")\n')
