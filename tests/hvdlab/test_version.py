"""The version number is the same in every file that states it, and the changelog has a section about it."""

import json
import re
import tomllib
from pathlib import Path

import yaml

import hvdgrade
import hvdlab

ROOT = Path(__file__).parents[2]


def test_every_file_states_the_same_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    button = json.loads(
        (ROOT / "assessment/hvdgrade/jupyter/labextension/package.json").read_text("utf-8")
    )
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    section = re.search(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert {
        "pyproject.toml": project["version"],
        "hvdgrade": hvdgrade.__version__,
        "package.json": button["version"],
        "CITATION.cff": citation["version"],
        "CHANGELOG.md": section[1],
    } == dict.fromkeys(
        ("pyproject.toml", "hvdgrade", "package.json", "CITATION.cff", "CHANGELOG.md"),
        hvdlab.__version__,
    )


def test_the_citation_has_what_the_format_requires_and_the_licence_of_the_project():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # by version 1.2.0
    assert citation["license"] == project["license"]
    assert all("name" in author or "family-names" in author for author in citation["authors"])


def test_links_of_the_pages_about_the_project_lead_to_files_and_headings():
    for name in ("CHANGELOG.md", "SECURITY.md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / name).read_text("utf-8")):
            path, _, anchor = target.partition("#")
            heads = re.findall(r"^#+ (.+)$", (ROOT / path).read_text("utf-8"), re.MULTILINE)
            slugs = {head.lower().replace(" ", "-") for head in heads}
            assert not anchor or anchor in slugs, f"{name}: {target}"
