"""The function of a script that a lab shows."""

import pytest

from hvdlab.course.excerpt import ExcerptError, excerpt


def test_shows_a_nested_function_with_its_decorator_and_without_indentation(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(
        "def main():\n    before = 1\n\n    @wrapped\n    def step():\n        return before\n\n    step()\n"
    )
    excerpt(script, "step")
    assert capsys.readouterr().out == (
        "From labs/script.py:\n\n@wrapped\ndef step():\n    return before\n"
    )


def test_names_a_function_that_is_missing(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("def main(): pass\n")
    with pytest.raises(ExcerptError, match="script.py has no function named step"):
        excerpt(script, "step")
