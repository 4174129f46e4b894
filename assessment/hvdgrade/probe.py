"""Short runs of a submission that show whether its ranks train as one process would.

`hvdlab.probe` says what they have in common and in which single thing they differ. What their weights
say is computed by `hvdgrade.evaluate` and judged in `hvdgrade.parallel`:

    flow        each rank with labels of its own: what does it learn of the others'?
    apart       the same in a few steps, to be compared with
    together    every rank with the batches of all ranks
"""

from dataclasses import dataclass, field
from pathlib import Path

from hvdgrade.jail import Jail
from hvdgrade.observe import Observation, observe
from hvdgrade.profile import Profile

VARIABLE = "HVDLAB_PROBE"
FLOW_STEPS, FLOW_EPOCHS = 12, 2
# Few: rounding, as to float16 gradients, grows from step to step, and averaging too rarely shows at once.
# A second epoch says how far the weights go.
STEPS, EPOCHS = 4, 2


@dataclass
class Probe:
    """The files to compare: of each run a list of epochs, of each epoch a file from every rank."""

    runs: dict[str, list[list[str]]] = field(default_factory=dict)
    failed: Observation | None = None  # the run that did not come through
    views_enforced: bool = True  # a rank could not read what another was given


def probe(
    source: bytes,
    ranks: int,
    views: tuple[list[Path], Path],
    evidence: Path,
    rules: Profile,
    tier: str | None,
    tell=lambda text, **facts: None,
) -> Probe:
    """Run `source` on the folders that `views.for_probe` made; copies of weights go to `evidence`."""
    per_rank, together = views
    result = Probe()
    for name, data, copies, steps, epochs in (
        ("flow", per_rank, 1, FLOW_STEPS, FLOW_EPOCHS),
        ("apart", per_rank, 1, STEPS, 1),
        ("together", together, ranks, STEPS, EPOCHS),
    ):
        number = len(result.runs) + 1
        tell(f"probing how {ranks} ranks work together ({number} of 3) ...", stage="probing")
        (evidence / name).mkdir()
        variables = {VARIABLE: f"{copies}x{steps}"}
        with Jail(source, ranks, data, variables=variables, tier=tier) as jail:
            limits = rules.probe_seconds, rules.stall_seconds
            seen = observe(jail, evidence / name, *limits, until=epochs)
            if name == "flow":
                result.views_enforced = jail.views_enforced
        complete = sorted(set.intersection(*(set(seen.of(rank)) for rank in range(ranks))))
        if len(complete) < epochs:
            result.failed = seen
            break
        result.runs[name] = [
            [str(seen.of(rank)[epoch].path) for rank in range(ranks)] for epoch in complete
        ]
    return result
