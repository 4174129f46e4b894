"""The launcher of docker/k8s/mpijob.yaml starts its ranks, on workers that this machine simulates.

Command, arguments and environment come from the manifest. The operator's hostfile has the workers' names. A
program named ssh records its arguments and runs the command here, with the small environment that ssh gives.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SPEC = yaml.safe_load((ROOT / "docker/k8s/mpijob.yaml").read_text())["spec"]
BIN = Path(sys.executable).parent
SSH = """\
#!/bin/sh
echo "$*" >> {folder}/asked
while :; do
  case "$1" in
    -x) shift;;
    -*) shift 2;;
    *) break;;
  esac
done
shift
exec env -i HOME="$HOME" PATH=/usr/bin:/bin sh -c "$*"
"""
# A rank reports its number and its environment. It does not communicate, because Open MPI treats the two
# workers as two machines and may connect to the wrong one. (For two hosts:
# tests/hvdlab/launch/test_two_hosts.py.)
RANK = """\
import os
rank, size, here = (os.environ["OMPI_COMM_WORLD_" + of] for of in ("RANK", "SIZE", "LOCAL_RANK"))
own = {{name: os.environ.get(name) for name in {names!r}}}
open("{folder}/rank-" + rank, "w").write(here + " " + size + " " + str(own))
"""


@pytest.mark.mpi
@pytest.mark.skipif(not (BIN / "mpirun").exists(), reason="needs mpirun: run `make setup`")
def test_the_launcher_starts_its_ranks_on_every_worker(tmp_path):
    (launcher,) = SPEC["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    slots, workers = SPEC["slotsPerWorker"], SPEC["mpiReplicaSpecs"]["Worker"]["replicas"]
    hosts = [f"hvdlab-worker-{number}" for number in range(workers)]
    (tmp_path / "hostfile").write_text("".join(f"{host} slots={slots}\n" for host in hosts))
    (tmp_path / "ssh").write_text(SSH.format(folder=tmp_path))
    (tmp_path / "ssh").chmod(0o755)
    given = {each["name"]: each["value"] for each in launcher["env"]}
    passed_on = {name: value for name, value in given.items() if not name.startswith("PRTE_")}
    (tmp_path / "rank.py").write_text(RANK.format(folder=tmp_path, names=list(passed_on)))

    command = [*launcher["command"], *launcher["args"]]
    assert Path(launcher["args"][1].replace("/opt/hvdlab", str(ROOT))).is_file()
    line = " ".join(command).replace("/opt/hvdlab/.venv/bin", str(BIN))
    line = line.replace("/etc/mpi/hostfile", str(tmp_path / "hostfile"))
    line = line.replace(" ".join(launcher["args"]), f"python {tmp_path}/rank.py")
    done = subprocess.run(
        line.split(),
        env={
            **os.environ,
            "PATH": f"{tmp_path}:{BIN}:{os.environ['PATH']}",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            **given,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr

    asked = (tmp_path / "asked").read_text().splitlines()
    assert sorted(host for host in hosts for line in asked if f" {host} " in line) == hosts
    assert all(given["PRTE_MCA_plm_ssh_args"] in line for line in asked)
    ranks = sorted(path.read_text() for path in tmp_path.glob("rank-*"))
    wanted = f"{slots * workers} {passed_on}"
    assert ranks == sorted(f"{rank % slots} {wanted}" for rank in range(slots * workers))
