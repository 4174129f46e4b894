"""Leave out what TensorFlow logs when it starts. Errors stay.

TF_CPP_MIN_LOG_LEVEL is meant for that, but TensorFlow 2.21 obeys it only after its log is initialized. Until
then it logs about six lines per process, which would hide what the script prints. So the lines that the
variable excludes are removed where somebody else reads the stderr of a process.
"""

import functools
import os
import re
import select
import shutil
import sys
import threading

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# The lowest severity is I (information), then W (warning), E (error) and F (fatal). E and F always stay.
REMOVED = {"0": "", "1": "I"}  # by level; every other level removes I and W
# A line of absl, which TensorFlow and XLA use, or of an older TensorFlow. Both name a C++ file. A script that
# logs with Python's absl names a Python file.
HEADER = (
    r"(?:[{0}]\d{{4}} \d\d:\d\d:\d+\.\d+ +\d+|\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [{0}])"
    r" [\w./+-]+\.(?:cc|cpp|cu|h|inc)(?:\.\w+)?:\d+\]"
)
UNINITIALIZED = r"WARNING: All log messages before absl::InitializeLog\(\)"
LINE = r"(?:^|(?<=\r))(?:{0}|{1})[^\r\n]*\n?"  # a progress bar goes back to the start of its line with \r
READ_BYTES = 1 << 16  # as many as a pipe of Linux holds, so that no line is read in two parts


def level() -> str:
    """Return the value of TF_CPP_MIN_LOG_LEVEL for a new process: the user's, else errors only.

    On a machine without an NVIDIA driver it excludes errors too, because TensorFlow logs the missing driver
    as an error. Errors that TensorFlow logs before its log is initialized stay even then.
    """
    return os.environ.get(LEVEL) or ("2" if shutil.which("nvidia-smi") else "3")


def without_log(text: str, level: str) -> str:
    """Return a text without TensorFlow's log lines.

    Args:
        level: the value of TF_CPP_MIN_LOG_LEVEL in the process that printed them. "0" removes nothing, "1"
            removes information, and every other value removes information and warnings.
    """
    severities = REMOVED.get(level, "IW")
    return _lines(severities).sub("", text) if severities else text


@functools.cache
def _lines(severities: str) -> re.Pattern[str]:
    return re.compile(LINE.format(HEADER.format(severities), UNINITIALIZED), re.MULTILINE)


@functools.cache  # once per process
def quiet_notebook() -> None:
    """Remove TensorFlow's log lines from what a notebook shows. Call it before TensorFlow is imported.

    The kernel of a notebook reads its own file descriptor 2 and sends what it reads to the notebook. This
    function reads the descriptor first. In a process that is no kernel it only sets TF_CPP_MIN_LOG_LEVEL.
    """
    os.environ[LEVEL] = level()
    if not hasattr(sys.stderr, "watch_fd_thread"):  # of ipykernel
        return
    notebook, reading = sys.stderr, threading.Lock()
    read_end, write_end = os.pipe()
    os.dup2(write_end, 2)
    os.close(write_end)

    def pass_on() -> None:
        with reading:
            while select.select([read_end], [], [], 0)[0]:
                text = os.read(read_end, READ_BYTES).decode(errors="replace")
                if kept := without_log(text, os.environ[LEVEL]):
                    notebook.write(kept)

    def watch() -> None:
        while select.select([read_end], [], []):
            pass_on()

    threading.Thread(target=watch, daemon=True).start()
    # A notebook drops what arrives after the end of a cell.
    ipython = sys.modules["IPython"].get_ipython()  # the kernel has imported it
    ipython.events.register("post_run_cell", lambda _: pass_on())
