"""The box of a check: its text is escaped, and its links name the lines of the learner's script."""

import html.parser

import pytest
from IPython.core.interactiveshell import InteractiveShell

from hvdlab.course import check_box, experiment


class Reader(html.parser.HTMLParser):
    """Collect the text and the links of a page."""

    def __init__(self, page):
        super().__init__()
        self.text, self.links, self.tags = "", [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "a":
            self.links.append(dict(attributes)["href"])

    def handle_data(self, data):
        self.text += data


def test_the_text_is_shown_as_it_is_and_code_is_marked():
    page = Reader(check_box.box("Not yet", "`a < b` is <b>wrong</b> & more.", None))
    assert page.text == "Not yet: a < b is <b>wrong</b> & more."
    assert page.tags == ["div", "b", "code"] and page.links == []


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("See line 12, line 3, line 12.", ["my%20script.py#line=11", "my%20script.py#line=2"]),
        ("All right.", ["my%20script.py"]),
    ],
)  # fmt: skip
def test_links_name_the_lines_from_zero(text, links, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = Reader(check_box.box("Right", text, tmp_path / "my script.py"))
    assert page.links == links
    assert "my script.py" in page.text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("case_1.py, line 3: the weights differ.", "case_1.py"),
        ("case_2.py is unchanged.", "assessment.py"),  # there is no such file
        ("../secret.py, line 3", "assessment.py"),  # not in the folder of the notebook
        ("The weights differ.", "assessment.py"),
    ],
)
def test_the_script_that_a_text_names_comes_before_that_of_the_notebook(
    text, found, tmp_path, monkeypatch
):
    work = tmp_path / "work"
    work.mkdir()
    for path in (work / "case_1.py", work / "assessment.py", tmp_path / "secret.py"):
        path.touch()
    monkeypatch.chdir(work)
    shell = InteractiveShell()
    shell.user_ns["SCRIPT"] = work / "assessment.py"
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    assert check_box._script(text) == work / found


def test_elsewhere_than_in_a_notebook_it_is_a_line(monkeypatch, capsys):
    monkeypatch.setattr(experiment, "NOTEBOOK", False)
    assert check_box.show("Right", "it doubles.") == "Right: it doubles."
    assert capsys.readouterr().out == ""
