"""Short runs of a submission that show whether its ranks train as one process would.

`hvdlab.probe` says what they have in common and in which single thing they differ. What their weights
say is computed by `hvdgrade.evaluate` and judged in `hvdgrade.parallel`:

    apart       each rank with labels of its own: what does it learn of the others'?
    together    every rank with the batches of all ranks: does it go where the ranks went apart?
"""

from dataclasses import dataclass, field
from pathlib import Path

from hvdgrade.jail import Jail
from hvdgrade.observe import Observation, observe
from hvdgrade.profile import Profile
from hvdlab import assessment_networks
from hvdlab.system.hardware import usable_cores

VARIABLE = "HVDLAB_PROBE"
# The first ones are compared, what is sent is counted from the first to the last, and the last of those
# apart says what was learned.
EPOCHS = {"apart": 6, "together": 3}
LEAST_EPOCHS = 2  # where a script ends by itself


@dataclass
class Probe:
    """The files to compare: of each run a list of epochs, of each epoch a file from every rank.

    `batch_size`: of a rank, in the run that counts; the data set is as large as it wants.
    """

    batch_size: int = 0
    runs: dict[str, list[list[str]]] = field(default_factory=dict)
    seen: dict[str, Observation] = field(default_factory=dict)
    failed: Observation | None = None  # the run that did not come through
    views_enforced: bool = True  # a rank could not read what another was given


def probe(
    source: bytes,
    ranks: int,
    views: tuple[list[Path], Path],
    batch_size: int,
    evidence: Path,
    rules: Profile,
    tier: str | None,
    tell=lambda text, **facts: None,
    bits: int = 64,
    in_turns_of: Probe | None = None,
) -> Probe:
    """Run `source` on the folders that `views.for_probe` made for `batch_size`; weights go to `evidence`.

    `bits`: of the numbers that the lab's networks compute with; `in_turns_of`: a probe of which the first run
    is kept, and the second made anew with the copies of a batch in turns, see `hvdlab.probe`.
    """
    per_rank, together = views
    result, in_turns = Probe(batch_size), in_turns_of is not None
    for name, data, dealt in (("apart", per_rank, 1), ("together", together, ranks)):
        if in_turns and name == "apart":  # where a batch has no copies
            result.runs[name], result.seen[name] = in_turns_of.runs[name], in_turns_of.seen[name]
            result.views_enforced = in_turns_of.views_enforced
            continue
        number = len(result.runs) + 1
        how = f", in float{bits}" * (bits != 64) + ", in another order" * in_turns
        tell(f"probing how {ranks} ranks work together ({number} of 2{how}) ...", stage="probing")
        copied = evidence / f"{name}-{bits}-{in_turns:d}"
        copied.mkdir()
        variables = {
            VARIABLE: f"{dealt}x{ranks}x{in_turns:d}x{bits}",
            assessment_networks.VARIABLE: rules.network,
            "NVIDIA_TF32_OVERRIDE": "0",  # its rounding would be larger than what the probe looks for
        }
        given = {"gpus": rules.uses_gpus, "records": rules.records}
        with Jail(source, ranks, data, variables=variables, tier=tier, **given) as jail:
            # Where ranks share cores each of them needs as much more.
            limit = rules.probe_seconds * max(1.0, ranks / usable_cores())
            seen = observe(jail, copied, limit, rules.stall_seconds, until=EPOCHS[name])
            result.seen[name] = seen
            if name == "apart":
                result.views_enforced = jail.views_enforced
        complete = sorted(set.intersection(*(set(seen.of(rank)) for rank in range(ranks))))
        least = LEAST_EPOCHS if seen.stop_cause == "ended" else EPOCHS[name]
        if len(complete) < min(least, EPOCHS[name]):
            result.failed = seen
            break
        result.runs[name] = [
            [str(seen.of(rank)[epoch].path) for rank in range(ranks)]
            for epoch in complete[: EPOCHS[name]]
        ]
    return result
