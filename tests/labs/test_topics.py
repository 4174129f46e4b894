"""Every topic of the course is taught where `labs/topics.toml` says."""

import re
import tomllib
from pathlib import Path

import lab_counts
import pytest

LABS = Path(__file__).parents[2] / "labs"
TOPICS = tomllib.loads((LABS / "topics.toml").read_text(encoding="utf-8"))
LEAST_WORDS = 80
HEADING = re.compile(r"^(?:# )?(#+) (.+?)\s*$")


def section(path: Path, heading: str) -> str | None:
    """Return the text below a heading, up to the next heading of the same or a higher level."""
    found, level, fenced, markdown = None, 0, False, path.suffix == ".md"
    for line in path.read_text(encoding="utf-8").splitlines():
        if path.suffix == ".py":
            if line.startswith("# %%"):
                markdown = "[markdown]" in line
                continue
            if not markdown:
                continue
            line = line.removeprefix("#").removeprefix(" ")
        fenced ^= line.startswith("```")
        title = None if fenced else re.match(r"(#+) (.+?)\s*$", line)
        if found is not None and title and len(title[1]) <= level:
            break
        if found is not None:
            found.append(line)
        elif title and title[2] == heading:
            found, level = [], len(title[1])
    return None if found is None else "\n".join(found)


@pytest.mark.parametrize("topic", TOPICS["topic"], ids=lambda topic: f"{topic['number']:02d}")
def test_a_topic_has_a_section_that_explains_it(topic):
    text = section(LABS / topic["file"], topic["heading"])
    assert text is not None, f"{topic['file']} has no heading {topic['heading']!r}"
    assert lab_counts.words(text) >= LEAST_WORDS, topic["name"]


def test_the_list_has_every_topic_once():
    numbers = [topic["number"] for topic in TOPICS["topic"]]
    assert len(numbers) == len(set(numbers))
    if TOPICS["complete"]:
        assert sorted(numbers) == list(range(1, 58))


def test_a_section_ends_at_the_next_heading_of_its_level(tmp_path):
    path = tmp_path / "01_title.py"
    path.write_text(
        "# %% [markdown]\n# # Lab\n#\n# ## One\n# first\n\n# %%\n# code\n\n# %% [markdown]\n# ### Part\n"
        "# second\n#\n# ## Two\n# third\n"
    )
    assert section(path, "One").split() == ["first", "###", "Part", "second"]
    assert section(path, "Part").split() == ["second"]
    assert section(path, "Two").split() == ["third"]
    assert section(path, "Three") is None
