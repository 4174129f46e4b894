"""Write the pages of the site as Sphinx reads them: the labs with their outputs, guides, commands and API.

The folders are those of the repository, so the links between its files hold on the site as well.
"""

import copy
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import frames
import gallery
import lab_cards
import mistakes
import nbformat
from print_slides import browser

from hvdgrade.cli import COMMANDS as GRADER_COMMANDS
from hvdlab.cli import COMMANDS as LAB_COMMANDS
from hvdlab.course import workbook
from hvdlab.course.figures import DESCRIPTION
from hvdlab.course.workbook import Question

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", "labextension", "solutions")
NO_PAGES = shutil.ignore_patterns(
    "__pycache__", "*.py", "*.toml", "*.yaml", "*.js", "README.md", "large_scale.md", "_templates"
)
GUIDES = "assessment/instructor/guides"
# A link whose text is the name of a file. Without a text MyST writes the title of the page.
FILE_NAME = re.compile(r"\[`?(?:[\w./-]+\.(?:md|ipynb)|(?:[\w/]+/)?README)`?\]\((?!\w+:)")
CLONE = re.compile(r"(?<=\n) *git clone ADDRESS (.*?) +# ADDRESS.*")
# Folders of the machine that builds the site, as outputs name them.
OWN, TEMPORARY = (re.escape(f"{folder}/") for folder in (ROOT, tempfile.gettempdir()))
OWN_FOLDERS = re.compile(rf"(?:(?:{OWN})?runs/|{TEMPORARY})(?:tmp\w+/)+|{OWN}|{TEMPORARY}")
CALLS_QUESTION = re.compile(r"workbook\.question\((\d+)")
TEXTS = "text/plain", "text/html"  # kinds of outputs
DESCRIBED = re.compile(rf'<p class="{DESCRIPTION}"[^>]*>(.*?)</p>')  # of a rotatable figure
API = {
    "hvdlab.data": "CIFAR-10 and Fashion-MNIST as arrays",
    "hvdlab.launch": "Start scripts and functions on several ranks",
    "hvdlab.record": "Record a training run for the grader",
    "hvdlab.schedules": "Learning-rate and batch-size schedules",
    "hvdlab.noise_scale": "The gradient noise scale",
    "hvdlab.scaling": "A cost model of all-reduce and of a training step",
    "hvdlab.reference": "Every formula of the package in NumPy",
    "hvdlab.torch": "Optimizers and ghost batch norm for PyTorch",
    "hvdlab.torch.noise": "Gradient noise and loss weights for PyTorch",
    "hvdlab.torch.schedules": "Schedules for PyTorch",
    "hvdlab.keras": "Optimizers and ghost batch norm for Keras",
    "hvdlab.keras.noise": "Gradient noise and loss weights for Keras",
    "hvdlab.keras.schedules": "Schedules for Keras",
    "hvdlab.keras.horovod": "Horovod for Keras 3",
    "hvdgrade.export": "Results of the grader for other programs",
}


def write(source: Path, solved: dict[str, nbformat.NotebookNode], learner_versions: dict) -> None:
    """Write all pages.

    Args:
        source: the folder to write to, which does not exist.
        solved: name of a lab -> its notebook with solutions and outputs. Each cell has the metadata
            "number", its number in the source of the lab.
        learner_versions: name of a lab -> the learner's notebook, with the same metadata.
    """
    shutil.copytree(HERE, source, ignore=NO_PAGES)
    for folder in ("labs", "assessment", "docker"):
        shutil.copytree(ROOT / folder, source / folder, ignore=IGNORED)
    (source / "assessment/hvdgrade/failed_checks.md").unlink()  # a link to a page
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "SECURITY.md"):
        shutil.copy(ROOT / name, source)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    readme = _with_address((ROOT / "README.md").read_text("utf-8"), project["urls"], source)
    (source / "README.md").write_text(readme, encoding="utf-8")
    # README.md shows pictures of this folder.
    shutil.copytree(HERE / "_static", source / "notebooks/site/_static")
    shutil.copy(HERE / "README.md", source / "notebooks/site")
    (source / "cards.md").write_text(lab_cards.cards("###"), encoding="utf-8")
    frames.write(source / "try")
    gallery.write(source / "results")
    (source / "notebooks/solutions").mkdir(parents=True)
    for name, notebook in learner_versions.items():
        _write_lab(source / f"notebooks/{name}.ipynb", notebook, solved.get(name))
    for name, notebook in solved.items():
        _write_lab(source / f"notebooks/solutions/{name}.ipynb", notebook, notebook)
    _write_labs(source / "labs.md", learner_versions)
    solutions = _contents(solved)
    (source / "notebooks/solutions/index.md").write_text(
        f"---\nnosearch: true\n---\n# Labs with solutions\n\n{solutions}", encoding="utf-8"
    )
    guides = _contents(sorted(path.stem for path in (source / GUIDES).glob("[0-9]*.md")))
    (source / GUIDES / "index.md").write_text(f"# Guides to the labs\n\n{guides}", encoding="utf-8")
    (source / "slides.md").write_text(_slides(), encoding="utf-8")
    _write_commands(source / "commands")
    mistakes.write(source / "mistakes")
    _write_api(source / "api")
    for page in source.rglob("*.md"):
        page.write_text(_titled(page.read_text("utf-8")), encoding="utf-8")
    mistakes.add_symptoms(source)


def _titled(text: str) -> str:
    """Return a text whose links show titles, and which leads to the pages of the calculators on the site."""
    text = re.sub(r"\[[^\]]+\.html\]\((\w+)\.html\)", r"[](../../try/\1.md)", text)
    return FILE_NAME.sub("[](", text)


def _with_address(readme: str, urls: dict[str, str], source: Path) -> str:
    """Return the README with a way to get the course in place of `git clone ADDRESS`.

    It is the public address, if pyproject.toml has one, else an archive of the last commit on the site.
    """
    readme = re.sub(r"`labs/calculators/(\w+)\.html`", r"[](try/\1.md)", readme)
    if "Repository" in urls:
        return CLONE.sub(rf"    git clone {urls['Repository']} \1", readme)
    archive = ["git", "archive", "--prefix=course/", f"--output={source}/course.tar.gz", "HEAD"]
    if subprocess.run(archive, cwd=ROOT, capture_output=True, timeout=60).returncode:
        return readme  # this copy of the course is none of git
    download = "Download {download}`the course <course.tar.gz>`, then:"
    return CLONE.sub(f"{download}\n\n    tar xzf course.tar.gz && cd course", readme)


def _write_lab(path, notebook, solved):
    """Write one version of a lab, with the outputs of the run."""
    name, is_solution = path.stem, path.parent.name == "solutions"
    number = int(name[:2])
    questions = workbook.questions(number) if solved else []
    outputs = {cell.metadata.get("number"): cell for cell in solved.cells} if solved else {}
    cells, asked = [], set()
    for cell in copy.deepcopy(notebook.cells):
        if cell.metadata.get("number") is None:  # sets the folder of the version with solutions
            continue
        question = CALLS_QUESTION.search(cell.source)
        if question and cell.cell_type == "code":
            if question[1] not in asked:
                asked.add(question[1])
                text = _quiz(int(question[1]), questions[int(question[1]) - 1])
                cells.append(nbformat.v4.new_markdown_cell(text))
            continue
        if cell.cell_type == "markdown":
            cell.source = _titled(_links(cell.source, is_solution))
        else:
            done = outputs.get(cell.metadata["number"])
            cell.outputs = _shown(copy.deepcopy(done.outputs)) if done else []
            if "folded" in cell.metadata.get("tags", []):
                cell.metadata["tags"] = ["hide-input"]
        cells.append(cell)
    if solved:
        _head(cells, name, is_solution)
    page = nbformat.v4.new_notebook(cells=cells)
    page.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3"},
        "language_info": {"name": "python"},
    }
    if is_solution:
        page.metadata["nosearch"] = True  # the search would list each lab twice
    for count, cell in enumerate(page.cells):
        cell.id = f"cell-{count:03d}"
    nbformat.write(page, path)


def _head(cells, name, is_solution):
    """Say below the title which version this is, and where the other one is."""
    title, _, rest = cells[0].source.partition("\n")
    said = (
        "```{note}\nThis version has the solutions of all exercises. "
        f"[Without the solutions](../{name}.ipynb)\n```"
        if is_solution
        else f"```{{note}}\nEach exercise is a cell to complete in the notebook `notebooks/{name}.ipynb`. "
        "The outputs are those of the solutions, and experiments show the shipped results.\n```\n\n"
        + _opens(
            "Solutions of this lab",
            "Try an exercise before you read its solution: its check says what is wrong, and `hint()` opens "
            f"hints one after the other.\n\n[The lab with its solutions](solutions/{name}.ipynb)",
        )
    )
    cells[0].source = f"{title}\n\n{said}\n{rest}"


def _links(text, is_solution):
    """Return a text whose pictures and links hold at its place on the site."""
    if is_solution:  # one folder deeper than the learner's version
        text = text.replace("](../", "](../../").replace("](00_start_here", "](../00_start_here")
    up = "../../" if is_solution else "../"
    text = text.replace("](pictures/", f"]({up}labs/pictures/")
    text = re.sub(r"\]\((glossary|survey)\.(?:ipynb|md)", rf"]({up}labs/\1.md", text)
    return re.sub(r"`labs/calculators/(\w+)\.html`", rf"[]({up}try/\1.md)", text)


def _shown(outputs):
    """Return the outputs of a cell without what needs a kernel and without folders of this machine."""
    shown = []
    for output in outputs:
        for texts, kind in [(output, "text"), *((output.get("data", {}), k) for k in TEXTS)]:
            if kind in texts:
                texts[kind] = OWN_FOLDERS.sub("", "".join(texts[kind]))
        data = output.get("data", {})
        described = DESCRIBED.search(data.get("text/html", ""))
        if described:
            data = shown[-1]["data"]  # the figure above
            picture = "".join(data["image/png"].split())
            data["text/html"] = f'<img alt="{described[1]}" src="data:image/png;base64,{picture}">'
            del data["image/png"]
        else:
            data.pop("application/vnd.jupyter.widget-view+json", None)
            shown.append(output)
    return shown


def _quiz(number: int, question: Question) -> str:
    """Return a question as a text whose answers open on a click."""
    lines = [f"**Question {number}.** {question.text}", ""]
    if not question.choices:
        lines += [_opens("Answer", f"{question.answer:g}. {question.explanation}")]
        return "\n".join(lines)
    for letter, choice in zip(question.letters, question.choices, strict=False):
        right = letter == question.answer
        said = f"Right. {question.explanation}" if right else f"No. {question.feedback[letter]}"
        lines.append(_opens(f"{letter}) {choice}", said))
    return "\n".join(lines)


def _opens(title, text):
    return f":::{{dropdown}} {title}\n{text}\n:::\n"


def _slides() -> str:
    """Return a page with links to the decks, which Sphinx makes apart from the other pages."""
    lines = ["# Slides", "", "One deck for each lab. Press S for the speaker notes.", ""]
    for path in sorted((ROOT / "labs/slides").glob("[0-9]*.md")):
        title = path.read_text("utf-8").splitlines()[0].removeprefix("# ")
        pdf = f' (<a href="slides/{path.stem}.pdf">PDF</a>)' if browser() else ""
        lines.append(f'{int(path.stem[:2])}. <a href="slides/{path.stem}.html">{title}</a>{pdf}')
    return "\n".join(lines) + "\n"


def _write_commands(folder):
    """Write a page with the help text of each command."""
    folder.mkdir()
    names = []
    for program, commands in (("hvdlab", LAB_COMMANDS), ("hvdgrade", ["run", *GRADER_COMMANDS])):
        for name in commands:
            done = subprocess.run(
                [sys.executable, "-c", f"from {program}.cli import main; main()", name, "--help"],
                capture_output=True,
                text=True,
                timeout=120,
                check=True,
                env={"PATH": "/usr/bin:/bin", "COLUMNS": "88"},
            )
            text = f"# {program} {name}\n\n```text\n{done.stdout.rstrip()}\n```\n"
            names.append(f"{program}_{name}")
            (folder / f"{names[-1]}.md").write_text(text, encoding="utf-8")
    text = f"# Commands\n\nEach page is what `--help` prints.\n\n{_contents(names)}"
    (folder / "index.md").write_text(text, encoding="utf-8")


def _write_api(folder):
    """Write a page for each public package, which autodoc fills from the docstrings."""
    folder.mkdir()
    for name, subject in API.items():
        lines = [f"# {name}", "", f"{subject}.", "", "```{eval-rst}", f".. automodule:: {name}"]
        lines += ["   :members:", "   :imported-members:" * bool(_declares_names(name)), "```", ""]
        (folder / f"{name}.md").write_text("\n".join(lines), encoding="utf-8")
    names = "\n".join(API)
    table = "\n".join(f"| [{name}]({name}.md) | {subject} |" for name, subject in API.items())
    text = f"# Python packages\n\n| package | content |\n|---|---|\n{table}\n\n"
    text += f"```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    (folder / "index.md").write_text(text, encoding="utf-8")


def _declares_names(name):
    path = ROOT / ("labs" if name.startswith("hvdlab") else "assessment") / name.replace(".", "/")
    return "__all__" in (path / "__init__.py").read_text("utf-8") if path.is_dir() else False


def _write_labs(path, names):
    """Write the page that lists the labs as cards, and the paths through them of the start page."""
    start = (ROOT / "labs/00_start_here.py").read_text("utf-8")
    section = re.search(r"^# (## Paths through the course\n.*?)\n\n", start, re.M | re.S)[1]
    paths = re.sub(r"^# ?", "", section, flags=re.M)
    contents = _contents([f"notebooks/{name}" for name in names], hidden=True)
    text = f"# Labs\n\n{lab_cards.cards('##')}\n\n{paths}\n\n{contents}"
    path.write_text(text, encoding="utf-8")


def _contents(names, hidden=False):
    """Return a table of contents of pages."""
    options = ":hidden:" if hidden else ":maxdepth: 1"
    return "\n".join(["```{toctree}", options, "", *names, "```", ""])
