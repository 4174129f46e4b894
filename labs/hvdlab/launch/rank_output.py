"""Show what the ranks of a run print, and find out which rank failed first.

When one rank fails, the other ranks fail a moment later, with "Horovod has been shut down" or "Connection
closed by peer". What they print about that is a consequence. It is not shown, because it would hide the
cause.
"""

import re
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable

from hvdlab.launch.launchers.launcher import End, Line, OutputReader
from hvdlab.system import open_mpi, tensorflow_log

ERROR_STARTS = ("Traceback (most recent call last):", "Fatal Python error:")
CONSEQUENCE = re.compile(
    "Horovod has been shut down"
    "|gloo/transport/.*(by peer|Broken pipe)"
    "|remote process exit"  # NCCL
    "|Did the remote server shutdown or crash"  # torch.distributed's store, which rank 0 keeps
)
ABORTED, KILLED = 128 + 6, 128 + 9  # exit codes
LAST_LINES = 200  # of a rank, in which its reason is searched
QUIET_SECONDS = 1.0  # if a rank prints nothing for so long, its error is complete
# Horovod's stall inspector
MISSING = re.compile(r"(\d+)!?: \[(.*)\]")
GIVES_UP = "Will shutdown."


class RankOutput:
    """Take the output of a launcher, show the lines of its ranks, and find out which rank failed first.

    Attributes:
        ranks: number of ranks.
        stalled: ranks for which Horovod stopped waiting, because they did not take part in a collective.

    Args:
        ranks: number of ranks.
        reader: a `Reader` of the module of the launcher.
        show: is called with each line to show. Default: print it, after the number of its rank.
        log_level: the value of TF_CPP_MIN_LOG_LEVEL for the ranks. Log lines of TensorFlow that it excludes
            are left out. Default "2", which excludes information and warnings.
    """

    def __init__(
        self,
        ranks: int,
        reader: OutputReader,
        show: Callable[[Line], None] | None = None,
        log_level: str = "2",
    ) -> None:
        self.ranks = ranks
        self.stalled: set[int] = set()
        self._reader = reader
        self._show = show or self._print
        self._log_level = log_level
        # rank -> the lines of its last error, in the order in which the errors began
        self._errors: dict[int, list[str]] = {}
        # rank -> when it last printed a line of an error that is not shown yet
        self._open: dict[int, float] = {}
        self._last = defaultdict(
            lambda: deque(maxlen=LAST_LINES)
        )  # rank -> its last lines on stderr
        self._missing: dict[int, str] = {}  # rank -> tensors that the other ranks wait for

    def line(self, text: str, channel: str) -> None:
        """Take a line that the launcher printed.

        Args:
            text: the line. It may end with a newline.
            channel: on which the launcher printed it, "stdout" or "stderr".
        """
        self._take(self._reader.read(text, channel))

    def settle(self, everything: bool = False) -> None:
        """Show the errors that are complete and are not the consequence of another error.

        Args:
            everything: the launcher has ended, so every error is complete.
        """
        if everything:
            self._take(self._reader.rest())
            if len(self._open) == self.ranks and all(map(_is_consequence, self._errors.values())):
                # No rank printed a cause, for example because the network failed. Show one of the errors.
                self._show_error(next(iter(self._open)))
        for rank, last in list(self._open.items()):
            lines = self._errors[rank]
            if everything or time.monotonic() - last > QUIET_SECONDS:
                if not _is_consequence(lines):
                    self._show_error(rank)

    def why(self, code: int, launcher: str, stall_seconds: str) -> tuple[str, int]:
        """Return why the ranks ended, and the exit code for it.

        Args:
            code: exit code of the launcher.
            launcher: its name, such as "mpirun".
            stall_seconds: seconds that Horovod waited for a rank, as a text.

        Returns:
            One sentence without its full stop, "" if all ranks ended well; and the exit code.
        """
        first, lost = self._reader.first, self._reader.lost
        if self.stalled:
            return self._stall(stall_seconds), 1
        if lost:
            return f"lost the connection to {lost}: its ranks are gone, all others were ended", 1
        if not code:
            return "", 0
        consequences = {rank for rank, lines in self._errors.items() if _is_consequence(lines)}
        causes = [rank for rank in self._errors if rank not in consequences]
        if first and first.signal and not self._threw_before_abort(first):
            sentence = f"rank {first.rank} of {self.ranks} was ended by {first.signal}"
            return sentence + (" (no memory left?)" if first.code == KILLED else ""), first.code
        if causes and (first is None or first.rank in {*causes, *consequences}):
            rank = first.rank if first and first.rank in causes else causes[0]
            exited = first and first.rank == rank and not first.signal
            code = first.code if exited else 1  # Python's exit code after an error
            message = _message(self._errors[rank])
            return f"rank {rank} of {self.ranks} failed first: {message}", code
        if first and first.rank not in consequences:
            return (
                f"rank {first.rank} of {self.ranks} ended first, with exit code {first.code}",
                first.code,
            )
        early = sorted(set(range(self.ranks)) - consequences)
        if consequences and early:
            return f"{_named(early)} of {self.ranks} ended while the others still exchanged", code
        # A rank's own MPI prints a message before it aborts. What mpirun prints about that is a consequence.
        messages = [open_mpi.first_message("\n".join(lines)) for lines in self._last.values()]
        sentence = next(filter(None, map(open_mpi.first_sentence, messages)), self._reader.said)
        return f"{launcher} ended with exit code {code}{f': {sentence}' * bool(sentence)}", code

    def _threw_before_abort(self, first: End) -> bool:
        """Return whether a Python error ended a rank: if threads of Gloo are left, it aborts afterwards."""
        lines = self._errors.get(first.rank, [])
        return first.code == ABORTED and bool(lines) and _last(lines)[0].startswith("Traceback")

    def _stall(self, seconds: str) -> str:
        if (
            len(self._missing) == self.ranks
        ):  # each rank makes a call that another one does not make
            calls = "; ".join(
                f"rank {rank} did not call {self._missing[rank]}" for rank in self._missing
            )
            return f"the ranks made different calls and waited {seconds} s for each other: {calls}"
        tensors = ", ".join(dict.fromkeys(", ".join(self._missing.values()).split(", ")))
        verb = "is" if len(self._missing) == 1 else "are"
        return (
            f"{_named(sorted(self._missing))} of {self.ranks} {verb} missing: the others waited {seconds} s "
            f"for {tensors}"
        )

    def where(self, script: str) -> str:
        """Return which line of the script each rank was executing when a signal made it print its stack.

        Args:
            script: file name of the script.

        Returns:
            Such as "; rank 0 was in line 12; rank 1 was in line 14"; "" if no rank printed its stack.
        """
        at = re.compile(rf'File ".*\b{re.escape(script)}", line (\d+)')
        places = ""
        for rank, lines in sorted(self._errors.items()):
            stack = "\n".join(lines).partition("Current thread")[2]
            if match := at.search(stack):
                places += f"; rank {rank} was in line {match[1]}"
        return places

    # --- lines that arrive --------------------------------------------------------------------------

    def _take(self, lines: list[Line]) -> None:
        for line in lines:
            if line.rank is None or line.channel == "stdout":
                self._show(line)
            else:
                self._error_line(line)

    def _show_error(self, rank: int) -> None:
        for text in self._errors[rank]:
            self._show(Line(rank, "stderr", text))
        del self._open[rank]

    def _print(self, line: Line) -> None:
        tag = "" if line.rank is None or self.ranks == 1 else f"[{line.rank}] "
        channel = sys.stdout if line.channel == "stdout" else sys.stderr
        print(f"{tag}{line.text}", file=channel, flush=True)

    def _error_line(self, line: Line) -> None:
        # torch.distributed puts a tag of its own before each line of an error.
        rank, text = line.rank, line.text.removeprefix(f"[rank{line.rank}]: ")
        if not CONSEQUENCE.search(text):
            kept = tensorflow_log.without_log(text, self._log_level)
            if text and not kept:
                return
            text = kept
        self._last[rank].append(text)
        starts = text.startswith(ERROR_STARTS) or CONSEQUENCE.search(text)
        if starts and rank not in self._open:
            self._errors.pop(rank, None)  # an older error, which did not end the rank
            self._errors[rank] = []
        if starts or rank in self._open:
            self._errors[rank].append(text)
            self._open[rank] = time.monotonic()
            return
        self._show(Line(rank, "stderr", text))
        if text.startswith("Missing ranks:"):
            self._missing = {}
        elif found := MISSING.match(text):
            self._missing[int(found[1])] = found[2]
        elif GIVES_UP in text:
            self.stalled = set(self._missing)


def _is_consequence(lines: list[str]) -> bool:
    return any(CONSEQUENCE.search(text) for text in lines)


def _message(lines: list[str]) -> str:
    """Return the last line of a traceback, without what a library prints after it."""
    error = _last(lines)
    if not error[0].startswith("Traceback"):
        return error[0]
    return next((text for text in error[1:] if text and not text[0].isspace()), "no more is known")


def _last(lines: list[str]) -> list[str]:
    """Return the lines of an error without those of the error during which it happened."""
    starts = [i for i, text in enumerate(lines) if text.startswith(ERROR_STARTS)]
    return lines[starts[-1] :] if starts else lines


def _named(ranks: list[int]) -> str:
    names = ", ".join(map(str, ranks))
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"
