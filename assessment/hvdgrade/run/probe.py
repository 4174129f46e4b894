"""Run a submission briefly to find out whether its ranks train like a single process.

`hvdlab.probe_mode` describes what the two runs have in common and how they differ.
`hvdgrade.evidence.evaluate` compares their weights, and `hvdgrade.judge.parallel_checks` judges the
comparison:

    apart       each rank gets labels of its own: are the weights of all ranks equal after every step, and
                what does a rank learn of the other ranks' labels?
    together    every rank gets the batches of all ranks: does it reach the same weights as in "apart"?
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

from hvdgrade.evidence.observation import Observation, Probe, ProbeForm
from hvdgrade.run.job import Job
from hvdgrade.run.monitor import observe
from hvdlab.probe_mode import FIRST, LAST, MOST_IN_FLOAT64, SECOND, SHORT_EPOCH, batch_size
from hvdlab.system.hardware import usable_cores

VARIABLE = "HVDLAB_PROBE"
# The last snapshot of each run. The first two are compared. "apart" continues, to show what was learned.
UNTIL = {"apart": LAST, "together": SECOND}
UNTIL_OF_SHORT_EPOCHS = {"apart": 6 * SHORT_EPOCH, "together": 3 * SHORT_EPOCH}


def probe(
    job: Job,
    views: Callable[[Path, int], tuple[list[Path], Path]],
    folder: Path,
    batch: int,
    evidence: Path,
    form: ProbeForm,
    graded_seconds: float = 0.0,
) -> Probe:
    """Run the script of a job on the data of the probe, see `hidden_data.for_probe`.

    Args:
        views: writes the data of the probe into a folder, for so many steps of an epoch.
        folder: where to write them; what an earlier probe left there is used again.
        batch: batch size per rank in the graded run.
        evidence: folder to which the weights are copied.
        form: of the probe.
        graded_seconds: duration of the graded run. Each run of the probe may take as long, because on a slow
            machine it needs more time, too.
    """
    rules, ranks, steps, bits = job.rules, job.ranks, form.steps, form.bits
    if bits is None:
        in_a_step = ranks * batch_size(batch, batch, ranks)
        bits = 64 if in_a_step <= MOST_IN_FLOAT64 else 32
    per_rank, together = views(folder / f"probe-{steps}", steps)
    result, earlier = Probe(batch, steps, bits), form.in_turns_of
    for name, data, copies in (("apart", per_rank, 1), ("together", together, ranks)):
        if earlier and name == "apart":  # a batch has no copies in this run
            result.runs[name], result.seen[name] = earlier.runs[name], earlier.seen[name]
            result.views_enforced = earlier.views_enforced
            continue
        number = len(result.runs) + 1
        how = f", in float{bits}" * (bits != 64) + ", in another order" * bool(earlier)
        job.tell(
            f"probing how {ranks} ranks work together ({number} of 2{how}) ...", stage="probing"
        )
        copied = Path(mkdtemp(prefix=f"{name}-", dir=evidence))
        variables = {
            VARIABLE: f"{copies}x{ranks}x{bool(earlier):d}x{bits}x{steps}",
            "NVIDIA_TF32_OVERRIDE": "0",  # its rounding errors are larger than what the probe measures
        }
        records = replace(rules, max_epochs=LAST + 1).records
        until = (UNTIL_OF_SHORT_EPOCHS if steps else UNTIL)[name]
        with job.sandboxed(data, variables=variables, records=records) as jail:
            # Ranks that share cores need proportionally more time.
            limit = rules.probe_seconds * max(1.0, ranks / usable_cores())
            limit = max(limit, graded_seconds)
            last = until // steps - 1 if steps else until
            seen = observe(jail, copied, limit, rules.stall_seconds, until=last)
            result.seen[name] = seen
            if name == "apart":
                result.views_enforced = jail.views_enforced
        done = snapshots(seen, steps)
        # A script that ends by itself may make fewer steps than the grader waits for.
        enough = SECOND if seen.stop_cause == "ended" else until
        if not {FIRST, enough} <= set(done):
            result.failed = seen
            break
        result.runs[name] = done
    return result


def snapshots(seen: Observation, steps: int) -> dict[int, list[str]]:
    """Return the files that every rank recorded in a run of the probe: number of steps -> one per rank.

    Args:
        seen: the run. Its records are numbered by steps, or with short epochs by epochs.
        steps: steps of a short epoch, or 0.
    """
    recorded = [seen.of(rank) for rank in range(seen.ranks)]
    common = sorted(set.intersection(*map(set, recorded)))
    return {
        (number + 1) * steps if steps else number: [str(rank[number].path) for rank in recorded]
        for number in common
    }
