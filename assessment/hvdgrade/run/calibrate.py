"""Measure how fast a single process trains on this machine now, for the budget of a calibrated profile.

The measurement is a small training run of the profile's network. It starts through the same jail and the same
`mpirun -np N` as a submission, as N processes that do not communicate. Each of them works like a serial
script. Therefore any other load on the machine slows the measurement and the submission in the same way.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hvdgrade.profiles import Profile
from hvdgrade.run.monitor import observe
from hvdgrade.run.sandboxed_run import Jail
from hvdlab.assessment_networks import VARIABLE

SCRIPTS = Path(__file__).parent / "calibration"  # torch.py and keras.py


class CalibrationFailed(Exception):
    """The grader could not measure this machine; the submission is not at fault."""


@dataclass(frozen=True)
class Calibration:
    """The seconds from launch to the first finished step, and the training images/s of each process."""

    framework: str
    startup_seconds: float
    images_per_second: list[float]

    @property
    def serial_rate(self) -> float:
        """Return the images/s of one of the N processes.

        It is the mean of all processes, because what slows one of them may slow another one next time.
        """
        return sum(self.images_per_second) / len(self.images_per_second)

    def budget(self, examples: int, epochs: float) -> float:
        """Return the seconds that a single process needs for `epochs` passes over `examples` examples."""
        return self.startup_seconds + epochs * examples / self.serial_rate


def calibrate(
    framework: str,
    ranks: int,
    data: Path,
    rules: Profile,
    tier: str,
    tell=lambda text, **facts: None,
) -> Calibration:
    """Measure the training speed of `framework` on `ranks` processes with the network of `rules`.

    Args:
        framework: "torch" or "keras".
        ranks: number of processes.
        data: folder with the data sets.
        rules: the profile, with the network, the batch size and the seconds of the calibration.
        tier: one of `sandbox.TIERS`.
        tell: progress callback. Default: does nothing.

    Raises:
        CalibrationFailed: not every process reported its speed.
    """
    source, seconds = (SCRIPTS / f"{framework}.py").read_bytes(), rules.calibration_seconds
    arguments = (str(seconds), str(rules.batch_size))
    variables = {VARIABLE: rules.network}
    jail = Jail(
        source, ranks, data, arguments, variables=variables, tier=tier, gpus=rules.uses_gpus
    )
    with TemporaryDirectory() as evidence, jail:
        seen = observe(jail, Path(evidence), limit=seconds + 120, stall=60, tell=tell)
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
    return Calibration(framework, ready - seen.started, rates)
