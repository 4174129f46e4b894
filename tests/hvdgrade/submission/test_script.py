"""What counts as a training script, and that the check takes little memory and time for any content."""

import ast
import json
import resource
import subprocess
import sys

import pytest

from hvdgrade.submission import script
from hvdgrade.submission.find_script import read_script
from hvdgrade.submission.script import NotGradable, Script, inspect, require_gradable


@pytest.mark.parametrize(
    "source, said",
    [
        (b"x = 1\ndef 7", (2, "invalid syntax")),
        (b"\nreturn 3", (2, "'return' outside function")),  # what only the compiler finds
        (b"a\0", (None, "source code string cannot contain null bytes")),
        (b"# coding: nonsense\n", (None, "unknown encoding: nonsense")),
        (b"1" + b"+1" * 30_000, (None, "maximum recursion depth exceeded")),
    ],
)
def test_what_is_no_python_is_told_as_python_does(source, said):
    found = inspect(source)
    assert (found.line or None) == said[0] and found.mistake.startswith(said[1])


def reason(tmp_path, source: bytes, left_out=()) -> str:
    """Return why a script cannot be graded, or "" if it can."""
    try:
        require_gradable(Script(tmp_path / "assessment.py", "assessment.py", source, left_out))
    except NotGradable as error:
        return str(error)
    return ""


NOTHING = "it imports, calls, defines and assigns nothing"


@pytest.mark.parametrize(
    "source, words",
    [
        (b"", "assessment.py is empty"),
        (b" \n\t\r\n", "assessment.py is empty"),
        (b"# TODO\n# write it", NOTHING),
        (b'"""My solution."""', NOTHING),
        (json.dumps({"cells": [{"source": ["import torch"]}], "n": 4}).encode(), NOTHING),
        (b"[1, -2.5e3, null, true]", NOTHING),
        (b"done", NOTHING),
        (b"see - notes\n", NOTHING),
        (b"while x: pass\ndel x\nraise x\n", NOTHING),
        (b"#" * 64_001, "larger than 64000 bytes"),
    ],
)
def test_text_that_cannot_act_is_no_training_script(tmp_path, source, words):
    if source.strip():
        ast.parse(source)  # Python accepts it
    assert words in reason(tmp_path, source)


@pytest.mark.parametrize(
    "source",
    ["import torch", "from a import b", "f()", "def f(): 0", "class A: 0", "x = 1", "x += 1"]
    + [
        "async def f(): 0",
        "x: int = 1",
        "(x := 1)",
        "if a:\n    b.c()",
        "#!/usr/bin/python\nx = 1",
    ],
)
def test_one_statement_that_can_act_makes_a_script(tmp_path, source):
    assert reason(tmp_path, source.encode()) == ""


TEXT = "# Zoë's solution\nimport torch\n"


@pytest.mark.parametrize(
    "source, words",
    [
        (TEXT.encode(), ""),
        (TEXT.encode("utf-8-sig"), ""),
        (("# coding: latin-1\n" + TEXT).encode("latin-1"), ""),
        (("#!/usr/bin/python\n# -*- coding: cp1252 -*-\n" + TEXT).encode("cp1252"), ""),
        (TEXT.encode("utf-16"), "is saved as UTF-16: save it as UTF-8."),
        (TEXT.encode("utf-16-le"), "is saved as UTF-16: save it as UTF-8."),
        (TEXT.encode("utf-16-be"), "is saved as UTF-16: save it as UTF-8."),
        (TEXT.encode("latin-1"), "is saved as Latin-1 or in another encoding: save it as UTF-8."),
        # Not the encoding is wrong here.
        (TEXT.encode() + b"x = ", "is not valid Python, line 3: invalid syntax"),
        (b"import torch\nx = '\0'", "null bytes"),
        (("# coding: ascii\n" + TEXT).encode(), "is not valid Python"),
        (("# coding: utf-8\n" + TEXT).encode("latin-1"), ""),  # a surprise, but Python runs it
        (("x = 1\n# coding: latin-1\n" + TEXT).encode("latin-1"), "is saved as Latin-1"),
    ],
)
def test_an_encoding_that_python_accepts_is_accepted_and_another_is_named(tmp_path, source, words):
    said = reason(tmp_path, source)
    assert words in said and bool(said) == bool(words)
    (tmp_path / "assessment.py").write_bytes(source.replace(b"import torch", b"import os"))
    python = [sys.executable, "-ISW", "error", tmp_path / "assessment.py"]
    accepted = subprocess.run(python, capture_output=True, timeout=60).returncode == 0
    assert accepted == (not words)


@pytest.mark.parametrize(
    "source, left_out, missing",
    [
        ("import helpers", ["helpers.py"], "helpers"),
        ("import helpers.deep as h", ["helpers/__init__.py", "helpers/deep.py"], "helpers"),
        ("from mine.net import Net", ["mine/net.py"], "mine"),
        ("if x:\n    import b\nimport a", ["a.py", "b.py", "c.py"], "a, b"),
        ("import helpers", ["helpers.txt"], ""),
        ("import helpers", [], ""),
        ("import os", ["helpers.py"], ""),
        ("from .helpers import net", ["helpers.py"], ""),  # fails for the student, too
        # The grader has these, so the copies are not needed.
        ("import os, numpy", ["os.py", "numpy.py"], ""),
        ("from hvdlab.torch import models", ["hvdlab/torch/models.py"], ""),
    ],
)
def test_a_script_that_needs_another_file_is_not_graded(tmp_path, source, left_out, missing):
    said = reason(tmp_path, source.encode(), tuple(left_out))
    assert said == (
        f"assessment.py imports {missing}, which was handed in next to it, but only one file is graded: "
        "put everything into one file."
    ) * bool(missing)


def test_a_module_next_to_the_script_is_not_installed(tmp_path, monkeypatch):
    """`python -m hvdgrade.cli` in the folder of the script imports from there."""
    (tmp_path / "helpers.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert "imports helpers" in reason(tmp_path, b"import helpers", ("helpers.py",))


def test_a_machine_that_cannot_compile_is_no_fault_of_the_script(tmp_path, monkeypatch):
    (tmp_path / "assessment.py").write_text("import torch")
    program = tmp_path / "program"
    monkeypatch.setattr(script, "INSPECT", program)
    # As the kernel does without memory.
    program.write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(OSError, match="no memory left to compile"):
        read_script(tmp_path)
    program.write_text("import time; time.sleep(9)")
    monkeypatch.setattr(script, "COMPILE_SECONDS", 0.02)
    with pytest.raises(OSError, match="too busy to compile"):
        read_script(tmp_path)


@pytest.mark.slow
def test_a_script_whose_code_has_no_end_is_not_graded(tmp_path):
    """Python copies what stands in a `finally` for each way into it: 2^20 copies here."""
    depth = 20
    lines = [" " * i + text for i in range(depth) for text in ("try: pass", "finally:")]
    lines.append(" " * depth + "a;" * 20_000)
    (tmp_path / "assessment.py").write_text("\n".join(lines))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(NotGradable, match="to compile it takes more than 10 s or 1 GB"):
        read_script(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB
