"""The report of a failed check has its section of the guide, whose links lead to the site if there is one."""

import re
from pathlib import Path

import pytest

from hvdgrade.judge import verdict  # noqa: F401 - fills the registry of checks
from hvdgrade.judge.check import CHECKS, where_explained
from hvdgrade.report import explanations
from hvdgrade.report.explanations import WHERE, explanation, page_of_mistake

ROOT = Path(__file__).parents[3]
SITE = "https://example.org/course"
TITLES = [definition.title for definition in CHECKS.values()]


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setattr(explanations, "course_site", lambda: SITE)


def slug(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("title", TITLES)
def test_each_check_is_explained_without_links_where_there_is_no_site(title):
    found = explanation(title)
    assert found.labs.startswith("<p>Taught in lab") and "<li>" in found.section
    assert "href" not in found.labs + found.section and "Taught in" not in found.section


@pytest.mark.parametrize("title", TITLES)
def test_each_link_leads_to_a_page_and_to_a_heading_of_it(site, title):
    links = re.findall(r'<a href="([^"]+)">', "".join(explanation(title)))
    assert any("/notebooks/" in link for link in links)
    for link in links:
        page, _, anchor = link.removeprefix(f"{SITE}/").partition("#")
        name = page.removesuffix(".html")
        sources = [ROOT / f"{name}.md", ROOT / f"{name.replace('notebooks', 'labs')}.py"]
        (source,) = (path for path in sources if path.exists())
        heads = re.findall(r"^(?:# )?#+ (.+)$", source.read_text("utf-8"), re.MULTILINE)
        assert not anchor or anchor in map(slug, heads), link


def test_the_guide_is_the_one_of_the_assessment():
    assert explanations.GUIDE.read_bytes() == (ROOT / "assessment/failed_checks.md").read_bytes()


def test_an_unknown_or_hostile_title_has_no_explanation(site):
    for title in (None, 7, [], "", "<b>", "../README"):
        assert explanation(title) == ("", "")
    for id in (None, [], "../x", "recorder-on-some-ranks"):  # the last has no page on the site
        assert page_of_mistake(id) == ""
    assert page_of_mistake("no-broadcast") == f"{SITE}/mistakes/no-broadcast.html"


@pytest.mark.parametrize(
    "urls, address",
    [
        ([], ""),
        (["Repository, https://example.org/r", f"Documentation, {SITE}/"], SITE),
        (["Documentation, javascript:alert(1)"], ""),
    ],
)
def test_the_site_is_the_documentation_of_the_package(monkeypatch, urls, address):
    metadata = type("Metadata", (), {"get_all": lambda self, name: urls or None})()
    monkeypatch.setattr(explanations, "metadata", lambda package: metadata)
    assert explanations.course_site.__wrapped__() == address


@pytest.mark.parametrize("title", TITLES)
def test_the_page_does_not_name_the_file_of_the_guide(title):
    assert WHERE.sub("", f"Likely cause: x. {where_explained(title)}") == "Likely cause: x."
