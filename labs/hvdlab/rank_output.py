"""What the ranks of a run print, as mpirun passes it on, and what it says about how they ended.

When one rank fails, the others fail a moment later, with "Horovod has been shut down" or "Connection closed
by peer": what they print about that is a consequence, and would hide the cause.
"""

import re
import sys
import time

TAG = re.compile(r"\[1,(\d+)\]<(stdout|stderr)>: ?")  # of `mpirun --output tag`
RULE = re.compile(r"-{20,}$")  # around a message of mpirun's own
BEGINNINGS = ("Traceback (most recent call last):", "Fatal Python error:")
CONSEQUENCE = re.compile(
    "Horovod has been shut down"
    "|gloo/transport/.*(by peer|Broken pipe)"
    "|remote process exit"  # NCCL
    "|Did the remote server shutdown or crash"  # torch.distributed's store, which rank 0 keeps
)
QUIET_SECONDS = 1.0  # after which a rank has said all about an error
# mpirun's messages about an end
EXITED = re.compile(r"Process name: +\[\S+@\d+,(\d+)\]\s+Exit code: +(\d+)")
SIGNALLED = re.compile(r"process rank (\d+) .*? on node (\S+) exited on\s+signal (\d+) \(([^)]+)\)")
LOST = re.compile(r"lost communication with a remote daemon.*Remote daemon: .* on node (\S+)", re.S)
# Horovod's stall inspector
MISSING = re.compile(r"(\d+)!?: \[(.*)\]")
GIVES_UP = "Will shutdown."


class RankOutput:
    """Prints the lines of `ranks` ranks, each with its rank, and finds out which one failed."""

    def __init__(self, ranks: int):
        self.ranks = ranks
        self._errors = {}  # rank -> the lines of its last error, in the order in which they began
        self._open = {}  # rank -> when it last added to an error that is not shown yet
        self._message = None  # lines of a message of mpirun's that has not ended
        self._end = ""  # mpirun's messages about the end
        self._missing = {}  # rank -> tensors that the others wait for
        self.stalled = set()  # ranks for which Horovod will wait no more

    def line(self, text: str) -> None:
        """Take a line that mpirun printed."""
        words, *tagged = TAG.split(text.rstrip("\n"))
        if words or not tagged:
            self._launcher(words)
        for rank, channel, said in zip(*[iter(tagged)] * 3, strict=True):
            if channel == "stdout":
                self._show(int(rank), said, sys.stdout)
            else:
                self._error_line(int(rank), said)

    def settle(self, everything: bool = False) -> None:
        """Show the errors that are complete, and are no consequence of another."""
        for rank, last in list(self._open.items()):
            lines = self._errors[rank]
            if everything or time.monotonic() - last > QUIET_SECONDS:
                if not _is_consequence(lines):
                    for said in lines:
                        self._show(rank, said, sys.stderr)
                    del self._open[rank]
        if everything and self._message:
            self._launcher_ended()

    def why(self, code: int, stall_seconds: str) -> tuple[str, int]:
        """Why the ranks ended: one sentence, empty if all is well, and the exit code for it.

        Args:
            code: mpirun's exit code.
        """
        if self.stalled:
            return self._stall(stall_seconds), 1
        if lost := LOST.search(self._end):
            # mpirun's own exit code is 0 then.
            return f"lost the connection to {lost[1]}: its ranks are gone, all others were ended", 1
        if not code:
            return "", 0
        consequences = {rank for rank, lines in self._errors.items() if _is_consequence(lines)}
        own = [rank for rank in self._errors if rank not in consequences]
        if found := SIGNALLED.search(self._end):
            rank, node, number, name = found.groups()
            sentence = (
                f"rank {rank} of {self.ranks} was ended by signal {number} ({name}) on {node}"
            )
            return sentence + (": no memory left?" if number == "9" else ""), code
        found = EXITED.search(self._end)
        first = int(found[1]) if found else None
        if first in own or (first is None or first in consequences) and own:
            rank = first if first in own else own[0]
            code = int(found[2]) if first == rank else 1  # Python's, after an error
            return f"rank {rank} of {self.ranks} failed first: {_says(self._errors[rank])}", code
        if first is not None and first not in consequences:
            return f"rank {first} of {self.ranks} ended first, with exit code {found[2]}", code
        early = sorted(set(range(self.ranks)) - consequences)
        if consequences and early:
            return f"{_named(early)} of {self.ranks} ended while the others still exchanged", code
        return f"mpirun ended with exit code {code}", code

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

    def _show(self, rank, said, channel):
        tag = f"[{rank}] " if self.ranks > 1 else ""
        print(f"{tag}{said}", file=channel, flush=True)

    def _error_line(self, rank, said):
        said = said.removeprefix(
            f"[rank{rank}]: "
        )  # torch.distributed's, before each line of an error
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

    def _launcher(self, words):
        if RULE.match(words):
            if self._message is not None:
                self._launcher_ended()
            else:
                self._message = []
        elif self._message is not None:
            self._message.append(words)
        elif words.strip("\0 ") and not words.startswith("Abort is in progress"):
            print(words, file=sys.stderr, flush=True)

    def _launcher_ended(self):
        message, self._message = "\n".join(self._message), None
        if any(kind.search(message) for kind in (EXITED, SIGNALLED, LOST)):
            self._end += message + "\n"
        else:
            print(message.strip(), file=sys.stderr, flush=True)


def _is_consequence(lines):
    return any(CONSEQUENCE.search(said) for said in lines)


def _says(lines):
    """The last line of a traceback, without what a library prints after it."""
    starts = [i for i, said in enumerate(lines) if said.startswith(BEGINNINGS)]
    after = lines[starts[-1] :]
    if not after[0].startswith("Traceback"):
        return after[0]
    return next((said for said in after[1:] if said and not said[0].isspace()), "no more is known")


def _named(ranks):
    names = ", ".join(map(str, ranks))
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"
