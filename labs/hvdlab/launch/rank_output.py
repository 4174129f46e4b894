"""What the ranks of a run print, as their launcher passes it on, and who of them failed first.

When one rank fails, the others fail a moment later, with "Horovod has been shut down" or "Connection closed
by peer": what they print about that is a consequence, and would hide the cause.
"""

import re
import sys
import time

BEGINNINGS = ("Traceback (most recent call last):", "Fatal Python error:")
CONSEQUENCE = re.compile(
    "Horovod has been shut down"
    "|gloo/transport/.*(by peer|Broken pipe)"
    "|remote process exit"  # NCCL
    "|Did the remote server shutdown or crash"  # torch.distributed's store, which rank 0 keeps
)
ABORTED, KILLED = 128 + 6, 128 + 9
QUIET_SECONDS = 1.0  # after which a rank has said all about an error
# Horovod's stall inspector
MISSING = re.compile(r"(\d+)!?: \[(.*)\]")
GIVES_UP = "Will shutdown."


class RankOutput:
    """Prints the lines of `ranks` ranks, each with its rank, and finds out which one failed.

    Args:
        reader: of the launcher, takes apart what it prints.
    """

    def __init__(self, ranks: int, reader):
        self.ranks = ranks
        self._reader = reader
        self._errors = {}  # rank -> the lines of its last error, in the order in which they began
        self._open = {}  # rank -> when it last added to an error that is not shown yet
        self._missing = {}  # rank -> tensors that the others wait for
        self.stalled = set()  # ranks for which Horovod will wait no more

    def line(self, text: str, channel: str) -> None:
        """Take a line that the launcher printed."""
        self._take(self._reader.read(text, channel))

    def settle(self, everything: bool = False) -> None:
        """Show the errors that are complete, and are no consequence of another.

        Args:
            everything: the launcher prints no more.
        """
        if everything:
            self._take(self._reader.rest())
            if len(self._open) == self.ranks and all(map(_is_consequence, self._errors.values())):
                # Nobody has a cause to show, such as when the network failed: better one than none.
                self._show_error(next(iter(self._open)))
        for rank, last in list(self._open.items()):
            lines = self._errors[rank]
            if everything or time.monotonic() - last > QUIET_SECONDS:
                if not _is_consequence(lines):
                    self._show_error(rank)

    def why(self, code: int, launcher: str, stall_seconds: str) -> tuple[str, int]:
        """Why the ranks ended: one sentence, empty if all is well, and the exit code for it.

        Args:
            code: the launcher's exit code.
        """
        first, lost = self._reader.first, self._reader.lost
        if self.stalled:
            return self._stall(stall_seconds), 1
        if lost:
            return f"lost the connection to {lost}: its ranks are gone, all others were ended", 1
        if not code:
            return "", 0
        consequences = {rank for rank, lines in self._errors.items() if _is_consequence(lines)}
        own = [rank for rank in self._errors if rank not in consequences]
        if first and first.signal and not self._threw_before_abort(first):
            sentence = f"rank {first.rank} of {self.ranks} was ended by {first.signal}"
            return sentence + (" (no memory left?)" if first.code == KILLED else ""), first.code
        if own and (first is None or first.rank in {*own, *consequences}):
            rank = first.rank if first and first.rank in own else own[0]
            exited = first and first.rank == rank and not first.signal
            code = first.code if exited else 1  # Python's, after an error
            return f"rank {rank} of {self.ranks} failed first: {_says(self._errors[rank])}", code
        if first and first.rank not in consequences:
            return (
                f"rank {first.rank} of {self.ranks} ended first, with exit code {first.code}",
                first.code,
            )
        early = sorted(set(range(self.ranks)) - consequences)
        if consequences and early:
            return f"{_named(early)} of {self.ranks} ended while the others still exchanged", code
        return f"{launcher} ended with exit code {code}", code

    def _threw_before_abort(self, first):
        """Whether an error of Python's ended a rank: with threads of gloo's left it aborts after it."""
        lines = self._errors.get(first.rank, [])
        return first.code == ABORTED and bool(lines) and _last(lines)[0].startswith("Traceback")

    def _stall(self, seconds):
        tensors = ", ".join(dict.fromkeys(", ".join(self._missing.values()).split(", ")))
        verb = "is" if len(self._missing) == 1 else "are"
        return (
            f"{_named(sorted(self._missing))} of {self.ranks} {verb} missing: the others waited {seconds} s "
            f"for {tensors}"
        )

    def where(self, script: str) -> str:
        """In which line of the script the ranks were that a signal made tell it."""
        at = re.compile(rf'File ".*\b{re.escape(script)}", line (\d+)')
        told = ""
        for rank, lines in sorted(self._errors.items()):
            stack = "\n".join(lines).partition("Current thread")[2]
            if match := at.search(stack):
                told += f"; rank {rank} was in line {match[1]}"
        return told

    # --- what comes in ------------------------------------------------------------------------------

    def _take(self, lines):
        for rank, channel, said in lines:
            if rank is None:
                print(said, file=sys.stderr, flush=True)
            elif channel == "stdout":
                self._show(rank, said, sys.stdout)
            else:
                self._error_line(rank, said)

    def _show_error(self, rank):
        for said in self._errors[rank]:
            self._show(rank, said, sys.stderr)
        del self._open[rank]

    def _show(self, rank, said, channel):
        tag = f"[{rank}] " if self.ranks > 1 else ""
        print(f"{tag}{said}", file=channel, flush=True)

    def _error_line(self, rank, said):
        # torch.distributed puts a tag of its own before each line of an error.
        said = said.removeprefix(f"[rank{rank}]: ")
        begins = said.startswith(BEGINNINGS) or CONSEQUENCE.search(said)
        if begins and rank not in self._open:
            self._errors.pop(rank, None)  # an older one, which did not end the rank
            self._errors[rank] = []
        if begins or rank in self._open:
            self._errors[rank].append(said)
            self._open[rank] = time.monotonic()
            return
        self._show(rank, said, sys.stderr)
        if said.startswith("Missing ranks:"):
            self._missing = {}
        elif found := MISSING.match(said):
            self._missing[int(found[1])] = found[2]
        elif GIVES_UP in said:
            self.stalled = set(self._missing)


def _is_consequence(lines):
    return any(CONSEQUENCE.search(said) for said in lines)


def _says(lines):
    """The last line of a traceback, without what a library prints after it."""
    after = _last(lines)
    if not after[0].startswith("Traceback"):
        return after[0]
    return next((said for said in after[1:] if said and not said[0].isspace()), "no more is known")


def _last(lines):
    """An error without the one that led to it."""
    starts = [i for i, said in enumerate(lines) if said.startswith(BEGINNINGS)]
    return lines[starts[-1] :] if starts else lines


def _named(ranks):
    names = ", ".join(map(str, ranks))
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"
