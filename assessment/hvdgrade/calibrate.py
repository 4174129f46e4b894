"""How fast is one process alone, here and now? The budget of a calibrated profile follows from it.

The measurement is a small training run of the profile's network, started through the same jail and
the same `mpirun -np N` as a submission, as N processes that share nothing: each does what a serial
script would do. So whatever else the machine is busy with slows both alike.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hvdgrade.jail import Jail
from hvdgrade.observe import observe
from hvdgrade.profile import Profile
from hvdlab.assessment_networks import VARIABLE

SCRIPTS = Path(__file__).parent / "calibration"  # torch.py and keras.py


class CalibrationFailed(Exception):
    """The grader could not measure this machine: its own fault, never the submission's."""


@dataclass(frozen=True)
class Calibration:
    """Seconds from launch to the first finished step, and training images/s of each process."""

    framework: str
    startup_seconds: float
    images_per_second: list[float]

    @property
    def serial_rate(self) -> float:
        """Images/s that one of N processes has: their mean, as what slows one may slow the next."""
        return sum(self.images_per_second) / len(self.images_per_second)

    def budget(self, examples: int, epochs: float) -> float:
        """Seconds that one process alone needs for `epochs` passes over `examples` examples."""
        return self.startup_seconds + epochs * examples / self.serial_rate


def calibrate(
    framework: str,
    ranks: int,
    data: Path,
    rules: Profile,
    tier: str,
    tell=lambda text, **facts: None,
) -> Calibration:
    """Measure `framework` ("torch" or "keras") on `ranks` processes with the network of `rules`."""
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
