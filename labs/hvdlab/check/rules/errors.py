"""Errors that have one cause: what they say, and the mistake that it shows."""

import re
from collections.abc import Iterator

from hvdlab.check.run_events import Run
from hvdlab.check.static import Facts
from hvdlab.mistakes import Finding, finding
from hvdlab.trace import records

# (text of the error, mistake, where it is). The place "error" is the line that raised it, "made" the one that
# created the object that failed, "wrap" the line that wrapped the model. The texts are those of Horovod
# 0.28.1, PyTorch 2 and Keras 3.
ERRORS = (
    (r"Tensor is required to be contiguous|Tensor type \S+ is not supported", "tensor-not-accepted", "error"),
    (r"Expected to have finished reduction in the prior iteration", "unused-parameters", "wrap"),
    (r"sampler option is mutually exclusive with shuffle", "sampler-and-shuffle", "error"),
    (r"Gradients were computed more than backward_passes_per_step times before call to step\(\)",
     "unfinished-accumulation", "error"),
    (r"Mismatched \w+ (tensor shapes|data types)[^[]*", "mismatched-tensors", "error"),
    (r"module 'keras.backend' has no|'float' object has no attribute 'dtype'", "legacy-callback", "made"),
)  # fmt: skip


def known_errors(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield the mistakes that the errors of the ranks show."""
    for rank in run.ranks:
        for event in run.of(rank, records.End):
            for pattern, mistake, where in ERRORS:
                text = re.search(pattern, event.error or "")
                line = {"error": event.line, "made": event.made, "wrap": run.line(records.Wrap)}[
                    where
                ]
                if text and (line or where != "made"):
                    said = text[0].strip().rstrip(".:,")
                    at = f" in line {event.line}" if where != "error" else ""
                    seen = f'Rank {rank} ended{at} with the error "{said}".{_more(mistake, run)}'
                    yield finding(mistake, line, seen)
                    return


def _more(mistake: str, run: Run) -> str:
    """Return what the run shows besides the error, as a sentence after a space, or nothing."""
    if mistake == "unused-parameters":
        unused = next((e.unused for e in run.rank0(records.Step) if e.unused), None)
        return f" In step 1 {unused} got no gradient." if unused else ""
    if mistake == "unfinished-accumulation":
        return " Batches before it have left gradients without a step."
    return ""


RULES = (known_errors,)
