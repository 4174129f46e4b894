"""The explanation of a failed check: its section of assessment/failed_checks.md, for the HTML report.

A report lies where nothing else of the course is: in a mail, or in a learning platform. So it contains the
section. The links of the section, for example to the lab that teaches the subject, lead to the site of the
course if pyproject.toml has its address, as `Documentation` in [project.urls]. Otherwise only their text is
shown.
"""

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urljoin

from markdown_it import MarkdownIt

from hvdlab.mistakes import CHECKED

GUIDE = Path(__file__).parents[1] / "failed_checks.md"  # a link to ../failed_checks.md
# The last sentence of a check's help. On the page the section itself takes its place.
WHERE = re.compile(r' ?More: assessment/failed_checks\.md, section "[^"]*"\.$')
LINK = ("link_open", "link_close")


@cache
def course_site() -> str:
    """Return the address of the course's site, without a slash at its end; "" if the package names none."""
    try:
        urls = metadata("hvdlab").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    address = dict(url.split(", ", 1) for url in urls).get("Documentation", "")
    return address.rstrip("/") if re.match(r"https?://", address) else ""


class Explanation(NamedTuple):
    """The section about a check, and the sentence at its end that names the labs: both as HTML."""

    section: str = ""
    labs: str = ""


def explanation(title: object) -> Explanation:
    """Return what the guide says about a check; nothing if it has no section with this title."""
    section, labs, names = _sections().get(str(title).casefold(), "").partition("Taught in ")
    return Explanation(_html(section), _html(labs + names))


def _html(text: str) -> str:
    """Return a text as HTML, with links only if there is a site."""
    markdown, site = MarkdownIt("commonmark", {"html": False}), course_site()
    tokens = markdown.parse(text)
    for token in tokens:
        children = token.children or []
        if not site:
            token.children = [child for child in children if child.type not in LINK]
        for child in children:
            if child.type == LINK[0]:
                page = re.sub(r"\.(md|ipynb)(?=#|$)", ".html", child.attrs["href"])
                child.attrs["href"] = urljoin(f"{site}/assessment/failed_checks.html", page)
    return markdown.renderer.render(tokens, markdown.options, {})


def page_of_mistake(id: object) -> str:
    """Return the address of the site's page about a mistake; "" if there is no site or no such page."""
    site = course_site()
    return f"{site}/mistakes/{id}.html" if site and isinstance(id, str) and id in CHECKED else ""


@cache
def _sections() -> dict[str, str]:
    """Return the sections of the guide: heading, in lower case -> Markdown."""
    _, *parts = re.split(r"^## (.+)\n", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {title.casefold(): text for title, text in zip(parts[::2], parts[1::2], strict=True)}
