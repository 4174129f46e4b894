"""Measure how fast a single process trains on this machine now, for the budget of a calibrated profile.

The measurement is a small training run of the profile's network. It starts through the same jail and the same
`mpirun -np N` as a submission, as N processes that do not communicate. Each of them works like a serial
script.

Other programs slow the measurement and the submission differently. The processes of the measurement share
nothing, while ranks wait for each other, and a script that sleeps is not slowed at all. The other programs
may also have ended when the submission starts. So the measurement counts what they took (see `other_work`),
and the budget follows from the speed without them.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hvdgrade import HvdgradeError
from hvdgrade.evidence.observation import Calibration
from hvdgrade.record_limits import ASSESSMENT_LIMITS
from hvdgrade.run.job import Job
from hvdgrade.run.monitor import observe

SCRIPTS = Path(__file__).parent / "calibration"  # torch.py and keras.py


class CalibrationFailed(HvdgradeError):
    """The grader could not measure this machine; the submission is not at fault."""


def framework(imports: frozenset[str]) -> str:
    """Return "torch" or "keras": the framework that the time budget of a script is calibrated with.

    If the imports do not decide, the function returns "torch", the faster one.
    """
    roots = {name.split(".")[0] for name in imports}
    keras = roots & {"keras", "tensorflow", "tf_keras"} or any("hvdlab.keras" in m for m in imports)
    return "keras" if keras and "torch" not in roots else "torch"


def calibrate(framework: str, job: Job, shown: Path) -> Calibration:
    """Measure the training speed of `framework` on the ranks of a job with the network of its profile.

    Args:
        framework: "torch" or "keras".
        shown: folder with the data sets.

    Raises:
        CalibrationFailed: not every process reported its speed.
    """
    seconds, ranks = job.rules.calibration_seconds, job.ranks
    program = replace(job, source=(SCRIPTS / f"{framework}.py").read_bytes())
    # The limits of the records do not matter: it records nothing.
    jail = program.sandboxed(
        shown, (str(seconds), str(job.rules.batch_size)), records=ASSESSMENT_LIMITS
    )
    with TemporaryDirectory() as evidence, jail:
        seen = observe(jail, Path(evidence), limit=seconds + 120, stall=60, tell=job.tell)
    lines = re.findall(r"<stdout>: ?(\{.*\})$", seen.output, re.MULTILINE)
    try:
        results = [json.loads(line) for line in lines]
        rates = [float(result["images_per_second"]) for result in results]
        ready = max(float(result["ready"]) for result in results)
        if len(rates) != ranks or min(rates) <= 0:
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise CalibrationFailed(
            f"the calibration with {framework} on {ranks} ranks did not finish "
            f"({seen.stop_cause}, exit code {seen.exit_code}): {seen.output.strip()[-400:]}"
        ) from None
    return Calibration(framework, ready - seen.started, rates, seen.other_work)
