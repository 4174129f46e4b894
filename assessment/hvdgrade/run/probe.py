"""Run a submission briefly to find out whether its ranks train like a single process.

`hvdlab.probe_mode` describes what the two runs have in common and how they differ.
`hvdgrade.evidence.evaluate` compares their weights, and `hvdgrade.judge.parallel_checks` judges the
comparison:

    apart       each rank gets labels of its own: what does it learn of the other ranks' labels?
    together    every rank gets the batches of all ranks: does it reach the same weights as in "apart"?
"""

from collections.abc import Callable
from pathlib import Path

from hvdgrade.evidence.observation import Probe
from hvdgrade.profiles import Profile
from hvdgrade.run.monitor import observe
from hvdgrade.run.sandboxed_run import SandboxedRun
from hvdlab import assessment_networks
from hvdlab.system.hardware import usable_cores

VARIABLE = "HVDLAB_PROBE"
# The first epochs are compared, the bytes sent are counted from the first to the last epoch, and the last
# epoch of "apart" shows what was learned.
EPOCHS = {"apart": 6, "together": 3}
LEAST_EPOCHS = 2  # if the script ends by itself


def probe(
    source: bytes,
    ranks: int,
    views: tuple[list[Path], Path],
    batch_size: int,
    evidence: Path,
    rules: Profile,
    tier: str | None,
    tell: Callable[..., None] = lambda text, **facts: None,
    bits: int = 64,
    in_turns_of: Probe | None = None,
    graded_seconds: float = 0.0,
) -> Probe:
    """Run `source` on the folders that `views.for_probe` made for `batch_size`.

    The weights are copied to `evidence`. `bits` is the precision of the lab's networks (float64 or
    float32). `in_turns_of` is an earlier probe: its first run is kept, and the second run is repeated
    with the copies of a batch in turns, see `hvdlab.probe_mode`. `graded_seconds` is the duration of the
    graded run. Each run of the probe may take as long, because on a slow machine it needs more time, too.
    """
    per_rank, together = views
    result, in_turns = Probe(batch_size), in_turns_of is not None
    for name, data, copies in (("apart", per_rank, 1), ("together", together, ranks)):
        if in_turns and name == "apart":  # a batch has no copies in this run
            result.runs[name], result.seen[name] = in_turns_of.runs[name], in_turns_of.seen[name]
            result.views_enforced = in_turns_of.views_enforced
            continue
        number = len(result.runs) + 1
        how = f", in float{bits}" * (bits != 64) + ", in another order" * in_turns
        tell(f"probing how {ranks} ranks work together ({number} of 2{how}) ...", stage="probing")
        copied = evidence / f"{name}-{bits}-{in_turns:d}"
        copied.mkdir()
        variables = {
            VARIABLE: f"{copies}x{ranks}x{in_turns:d}x{bits}",
            assessment_networks.VARIABLE: rules.network,
            "NVIDIA_TF32_OVERRIDE": "0",  # its rounding errors are larger than what the probe measures
        }
        given = {"gpus": rules.uses_gpus, "records": rules.records}
        with SandboxedRun(source, ranks, data, variables=variables, tier=tier, **given) as jail:
            # Ranks that share cores need proportionally more time.
            limit = rules.probe_seconds * max(1.0, ranks / usable_cores())
            limit = max(limit, graded_seconds)
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
