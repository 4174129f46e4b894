"""The box of a check: its text is escaped, and its links name the lines of the learner's script."""

import html.parser

import pytest

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


def test_elsewhere_than_in_a_notebook_it_is_a_line(monkeypatch, capsys):
    monkeypatch.setattr(experiment, "NOTEBOOK", False)
    assert check_box.show("Right", "it doubles.") == "Right: it doubles."
    assert capsys.readouterr().out == ""
