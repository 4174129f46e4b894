"""Start CUDA inside the sandbox, as a rank does: device files alone do not prove that it works there.

If CUDA does not start, PyTorch and TensorFlow train on the processor, and a correct script misses its target.
"""

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from hvdgrade.sandbox import gpu_access, mounts
from hvdgrade.sandbox.sandbox import Sandbox, SandboxUnavailable
from hvdgrade.sandbox.tiers import tier
from hvdlab.system.hardware import visible_gpus

TRIAL_SECONDS = 60
RANK = {"OMPI_COMM_WORLD_RANK": "0"}
OPERATING_SYSTEM = 304  # CUDA_ERROR_OPERATING_SYSTEM
START = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
gpus, words = ctypes.c_int(), ctypes.c_char_p()
code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(gpus))
cuda.cuGetErrorString(code, ctypes.byref(words))
print(json.dumps([code, (words.value or b"").decode(), gpus.value]))
"""


@functools.cache
def why_no_cuda(name: str) -> str:
    """Return why a submission cannot compute on the GPUs of this machine; "" if it can, or if there are none.

    The result is cached in this process.
    """
    if not visible_gpus():
        return ""
    with tempfile.TemporaryDirectory(prefix="hvdgrade-") as place:
        Path(place).chmod(0o755)
        try:
            with Sandbox(tier(name), 1, [Path(place)], gpus=True) as box:
                root_may_not_write = name == "landlock" and box.runs_as_root
                answer = subprocess.run(
                    box.command([*box.entry(), sys.executable, "-BESsc", START]),
                    env={
                        **mounts.libraries(),
                        **box.environment(),
                        **gpu_access.variables(True),
                        **RANK,
                    },
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=TRIAL_SECONDS,
                )
        except (OSError, SandboxUnavailable) as error:
            return str(error)
        except subprocess.TimeoutExpired:
            return _sentence(name, f"it did not answer within {TRIAL_SECONDS} s")
    try:
        code, words, gpus = json.loads(answer.stdout)
    except ValueError:
        said = answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"]
        return _sentence(name, said[-1][:300])
    if code:
        needs_user = root_may_not_write and code == OPERATING_SYSTEM
        return _sentence(name, f"error {code}: {words}", needs_user)
    return "" if gpus else _sentence(name, "it sees no GPU")


def _sentence(name: str, what: str, needs_user: bool = False) -> str:
    advice = (
        "Without GPUs grade the profile cpu, or the profile dli with an empty CUDA_VISIBLE_DEVICES"
    )
    if needs_user:
        advice = (
            "The start of CUDA writes to /proc, where a submission that runs as root may not write. "
            "`hvdgrade doctor` says at the sandbox user why it has no user of its own"
        )
    return f"CUDA does not start in the sandbox {name} ({what}). {advice}"
