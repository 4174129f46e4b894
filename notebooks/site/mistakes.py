"""Write a page for each mistake that `hvdlab check` knows, from its catalogue and labs/faults."""

import tomllib
from pathlib import Path

from hvdlab.faults import faults
from hvdlab.mistakes import CHECKED, Mistake

FRAMEWORKS = {"torch": "Horovod and PyTorch", "keras": "Horovod and Keras", "ddp": "DDP"}


def write(folder: Path) -> list[str]:
    """Write the pages and their index, and return their names, in alphabetical order of their titles."""
    folder.mkdir()
    names = sorted(CHECKED, key=lambda name: CHECKED[name].title.lower())
    for name in names:
        (folder / f"{name}.md").write_text(page(CHECKED[name]), encoding="utf-8")
    (folder / "index.md").write_text(index(names), encoding="utf-8")
    return names


def index(names: list[str]) -> str:
    """Return the page that lists the mistakes, by what one sees of them and by their titles."""
    rows = [
        f"| {' '.join(fault.symptom.split())} | []({fault.finding}.md) |"
        for fault in sorted(faults().values(), key=lambda fault: fault.finding)
        if fault.finding in names
    ]
    text = "Each page has scripts with the mistake, as edits of a correct script, and says how to fix it."
    tree = "\n".join(["```{toctree}", ":hidden:", "", *names, "```", ""])
    table = "\n".join(["| what you see | mistake |", "|---|---|", *dict.fromkeys(rows)])
    return f"# Mistakes of distributed training\n\n{text}\n\n{table}\n\n{tree}"


def page(mistake: Mistake) -> str:
    """Return the page of a mistake: what it does, scripts that have it, and how to fix it."""
    lines = [f"# {mistake.title[0].upper()}{mistake.title[1:]}", ""]
    lines += [f"`hvdlab check` calls this mistake `{mistake.id}`.", ""]
    if mistake.explains:
        links = ", ".join(
            f"[{CHECKED[name].title}]({name}.md)" for name in sorted(mistake.explains)
        )
        lines += [f"It can cause other mistakes: {links}. A report then names only this one.", ""]
    lines += ["## Fix", "", mistake.advice(), ""]
    if mistake.fix_in_ddp:
        lines += [f"In a script of torch.distributed: {mistake.fix_in_ddp}", ""]
    for name, fault in faults().items():
        if fault.finding == mistake.id:
            lines += [f"## Example with {FRAMEWORKS[fault.framework]}", "", fault.symptom, ""]
            lines += ["```diff", fault.diff.rstrip("\n"), "```", ""]
            lines += [f"`hvdlab fault {name}` prints the whole script.", ""]
    return "\n".join(lines)


def add_symptoms(source: Path) -> None:
    """Add the words of symptoms.toml to the keywords of the pages, which the search reads."""
    words = {}
    for symptom in tomllib.loads((Path(__file__).with_name("symptoms.toml")).read_text("utf-8"))[
        "symptom"
    ]:
        for page in symptom["pages"]:
            words.setdefault(page, []).extend(symptom["words"].split())
    for page, keywords in words.items():
        path = source / f"{page}.md"
        head = (
            f'---\nmyst:\n  html_meta:\n    keywords: "{", ".join(dict.fromkeys(keywords))}"\n---\n'
        )
        path.write_text(head + path.read_text("utf-8"), encoding="utf-8")
