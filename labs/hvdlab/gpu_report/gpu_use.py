"""Sample the use of the GPU while a part runs: nvidia-smi reports it twice per second."""

import contextlib
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from hvdlab.gpu_report.results import GpuUse
from hvdlab.launch import local

FIELDS = "utilization.gpu,clocks.sm,power.draw,temperature.gpu,memory.used"
COMMAND = ["nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits", "-lms", "500"]


class Sampler:
    """Collects lines of nvidia-smi: one line per GPU and sample."""

    def __init__(self) -> None:
        """Start without samples."""
        self._samples: list[tuple[float, list[float]]] = []

    def _read(self, stream: Iterable[str]) -> None:
        with contextlib.suppress(ValueError):  # the stream is closed when the run ends
            for line in stream:
                with contextlib.suppress(ValueError):  # "[N/A]", or a message
                    values = [float(word) for word in line.split(",")]
                    if len(values) == len(FIELDS.split(",")):
                        self._samples.append((time.monotonic(), values))

    def since(self, began: float) -> GpuUse | None:
        """Return the use of the GPU from `began` until now; None if there is no sample.

        Args:
            began: a reading of time.monotonic(), in seconds.
        """
        seen = [values for when, values in list(self._samples) if when >= began]
        if not seen:
            return None
        utilisation, clock, power, temperature, memory = zip(*seen, strict=True)
        return GpuUse(
            samples=len(seen),
            utilisation_percent=statistics.median(utilisation),
            clock_mhz=statistics.median(clock),
            power_watts_max=max(power),
            temperature_celsius_max=max(temperature),
            memory_mib_max=max(memory),
        )


@contextmanager
def sampling() -> Iterator[Sampler]:
    """Yield a Sampler that collects during the block; it stays empty where there is no nvidia-smi."""
    sampler = Sampler()
    if not shutil.which("nvidia-smi"):
        yield sampler
        return
    with local.started(COMMAND, {}, stderr=subprocess.DEVNULL) as process:
        reader = threading.Thread(target=sampler._read, args=[process.stdout], daemon=True)
        reader.start()
        yield sampler
