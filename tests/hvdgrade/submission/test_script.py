"""Reading an untrusted script takes little memory and time, whatever the script contains."""

import resource

import pytest

from hvdgrade.submission import script
from hvdgrade.submission.script import NotGradable, mistake_in, read_script


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
    line, text = mistake_in(source)
    assert (line or None) == said[0] and text.startswith(said[1])


def test_a_machine_that_cannot_compile_is_no_fault_of_the_script(tmp_path, monkeypatch):
    (tmp_path / "assessment.py").write_text("import torch")
    # As the kernel does without memory.
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    monkeypatch.setattr(script, "COMPILE", killed)
    with pytest.raises(OSError, match="no memory left to compile"):
        read_script(tmp_path)
    monkeypatch.setattr(script, "COMPILE", "import time; time.sleep(9)")
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
