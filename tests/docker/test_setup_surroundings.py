"""`make setup` where something outside of the checkout is in its way: variables, pip settings, file systems.

Each cause is real: a mount, an owner, a variable. Set-up must name it, or do without it.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import checkout_copy
import pytest

ROOT = Path(__file__).parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for mounts and owners")


@pytest.fixture
def checkout(tmp_path) -> Path:
    """Copy the files that set-up reads before it installs packages."""
    extensions = ("assessment/hvdgrade/jupyter", "labs/hvdlab/jupyter")
    files = ("pyproject.toml", "Makefile", "docker", *extensions)
    return checkout_copy.copy(tmp_path / "course", *files)


def setup(checkout: Path, *before: str, **variables) -> subprocess.CompletedProcess:
    """Run set-up, which ends at the missing C++ compiler at the latest unless `variables` name one."""
    return subprocess.run(
        [*before, "make", "setup"],
        cwd=checkout,
        env={
            **os.environ,
            "PYTHON": sys._base_executable,
            "XDG_CACHE_HOME": str(checkout.parent / "cache"),
            "CXX": "no-such-compiler",
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )


def sentence(answer: subprocess.CompletedProcess) -> str:
    """Return the single line that the script itself prints (make adds its own)."""
    assert answer.returncode != 0
    lines = [line for line in answer.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1, answer.stderr
    return lines[0]


def program(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def compiler(tmp_path) -> str:
    """A compiler that set-up accepts, so that it continues with what comes after."""
    return program(tmp_path / "bin" / "c++", "cat > /dev/null")


def test_variables_for_other_pythons_do_not_reach_set_up(checkout, tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "venv.py").write_text("raise ImportError('of another Python')\n")
    said = sentence(setup(checkout, PYTHONPATH=str(tmp_path / "old"), PYTHONHOME="/nowhere"))
    assert "no C++ compiler (no-such-compiler)" in said


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("ModuleNotFoundError: No module named 'ensurepip'", "apt-get install python3.11-venv"),
        (
            "Python path configuration:\nFatal Python error: init_fs_encoding: no codec",
            "does not work: Fatal Python error: init_fs_encoding: no codec",
        ),
    ],
)
def test_a_module_is_missing_only_if_python_says_so(error, says, checkout, tmp_path):
    text = f'[ "$1" = -V ] && echo Python 3.11.9 && exit\necho "{error}" >&2\nexit 1'
    said = sentence(setup(checkout, PYTHON=program(tmp_path / "bin" / "python", text)))
    assert said.endswith((says, f"({says})", f"{says}).")) or says in said
    assert ("python3.11-venv" in said) == ("ensurepip" in error)


def test_a_compiler_that_fails_is_not_called_old(checkout, tmp_path):
    text = '[ "$1" = -dumpversion ] && echo 12 && exit\necho "Cannot create temporary file" >&2\nexit 1'
    said = sentence(setup(checkout, CXX=program(tmp_path / "bin" / "c++", text)))
    assert said.endswith("/c++ does not work: Cannot create temporary file")


# --- pip settings ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """An environment with pip."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys._base_executable, "-m", "venv", folder], check=True, timeout=100)
    return folder


def pip(environment: Path, before: str, command: str, **variables) -> subprocess.CompletedProcess:
    """Run pip in a shell that has evaluated `before`."""
    python = environment / "bin" / "python"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return subprocess.run(
        ["bash", "-euc", f'{before}\n"$0" -m pip {command}', python],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=100,
    )


SETTINGS = f'stop() {{ exit 9; }}; . {ROOT}/docker/shared.sh; use_pip_settings "$0"'
PERSONAL = """\
[global]
user = true
index-url = https://mirror.invalid/simple
proxy = http://proxy.invalid:3128
extra-index-url = https://one.invalid
    https://two.invalid
[install]
require-hashes = true
target = /nowhere
index-url = https://install.invalid/simple
"""


def test_of_the_pip_settings_those_stay_that_say_where_packages_come_from(environment, tmp_path):
    (tmp_path / "pip.conf").write_text(PERSONAL)
    variables = {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "PIP_PREFIX": "/nowhere"}
    variables |= {"PIP_CERT": "/my certificate", "PIP_CACHE_DIR": "/cache", "HOME": str(tmp_path)}
    listed = pip(environment, SETTINGS, "config list", **variables).stdout.splitlines()
    kept = dict(line.partition("=")[::2] for line in listed)
    assert kept[":env:.index-url"] == "'https://install.invalid/simple'"  # as pip itself prefers it
    assert kept[":env:.proxy"] == "'http://proxy.invalid:3128'"
    assert kept[":env:.cert"] == "'/my certificate'" and kept[":env:.cache-dir"] == "'/cache'"
    assert "one.invalid" in kept[":env:.extra-index-url"] and "two.invalid" in str(kept)
    assert not {name.rpartition(".")[2] for name in kept} & {
        *("user", "target", "prefix", "require-hashes"),
    }


@pytest.mark.parametrize(
    "setting", [{"PIP_USER": "1"}, {"PIP_TARGET": "target"}, {"PIP_REQUIRE_HASHES": "1"}, "file"]
)
def test_a_package_is_installed_in_spite_of_personal_settings(setting, environment, tmp_path):
    wheel = tmp_path / "small-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("small.py", "")
        archive.writestr(
            "small-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1\n"
        )
        archive.writestr("small-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("small-1.dist-info/RECORD", "")
    if setting == "file":
        (tmp_path / "pip.conf").write_text("[global]\nuser = true\n")
        setting = {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    setting = {
        name: str(tmp_path / value) if value == "target" else value
        for name, value in setting.items()
    }
    (there,) = environment.glob("lib/python*/site-packages")
    command = f"install --no-index --no-deps --force-reinstall {wheel}"
    pip(environment, "", command, **setting)
    assert not (there / "small.py").exists()  # so the setting is in the way
    answer = pip(environment, SETTINGS, command, **setting)
    assert answer.returncode == 0, answer.stderr
    (there / "small.py").unlink()


# --- the checkout ---------------------------------------------------------------------------------------


def test_git_for_windows_writes_unix_line_ends(tmp_path):
    if not (ROOT / ".git").exists():
        pytest.skip("needs a Git checkout")
    clone = [
        "git",
        "-c",
        "core.autocrlf=true",
        "-c",
        "core.eol=crlf",
        "clone",
        "--quiet",
        "--depth=1",
    ]
    subprocess.run([*clone, f"file://{ROOT}", tmp_path / "clone"], check=True, timeout=100)
    scripts = [*(tmp_path / "clone" / "docker").rglob("*.sh"), tmp_path / "clone" / "Makefile"]
    assert len(scripts) > 4
    assert [path for path in scripts if b"\r" in path.read_bytes()] == []


def test_lost_execute_bits_are_not_needed(checkout):
    for path in checkout.rglob("*.sh"):
        path.chmod(0o644)
    assert "no C++ compiler" in sentence(setup(checkout))


MOUNTED = ["unshare", "--mount", "sh", "-c"]


@needs_root
@pytest.mark.parametrize(
    ("mount", "says"),
    [
        (
            "noexec",
            "no program can be started in {}, because its file system is mounted with noexec",
        ),
        ("ro", "the folder {} cannot be written by you (its file system is read-only): clone"),
    ],
)
def test_a_mount_that_forbids_what_set_up_needs_is_named(mount, says, checkout, compiler):
    here = f'mount --bind . . && mount -o remount,bind,{mount} . && cd "$PWD" && exec "$@"'
    if subprocess.run([*MOUNTED, here, "sh", "true"], cwd=checkout, timeout=60).returncode:
        pytest.skip("needs a mount namespace")
    said = sentence(setup(checkout, *MOUNTED, here, "sh", CXX=compiler))
    assert said.startswith(f"setup: {says.format(checkout)}")


@needs_root
@pytest.mark.parametrize("owned", [".", ".venv", ".setup.lock"])
def test_what_belongs_to_another_user_is_named(owned, checkout, compiler):
    """As after `sudo make setup`. Root without two capabilities is treated like any other user."""
    what = checkout / owned
    if owned == ".setup.lock":
        what.touch()
    what.mkdir(exist_ok=True) if owned != ".setup.lock" else None
    os.chown(what, 1, 1)
    drop = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    said = sentence(setup(checkout, *drop, CXX=compiler))
    kind = "file" if owned == ".setup.lock" else "folder"
    assert said.startswith(
        f"setup: the {kind} {what} cannot be written by you (it belongs to daemon): "
    )
    assert f"sudo chown -R root {checkout}" in said


NO_NETWORK = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:1/simple"}
NO_NETWORK |= {
    "PIP_RETRIES": "0",
    "PIP_EXTRA_INDEX_URL": "",
    "PIP_FIND_LINKS": "",
    "TORCH_INDEX": "",
}


def test_a_file_system_without_locks_gets_a_lock_of_this_machine(checkout, compiler, tmp_path):
    real = "/usr/bin/flock"
    text = f'case $(readlink /proc/self/fd/$2) in {checkout}/*) exit 71;; esac\nexec {real} "$@"'
    program(tmp_path / "bin" / "flock", text)
    (tmp_path / "tmp").mkdir()
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    answer = setup(checkout, PATH=path, CXX=compiler, TMPDIR=str(tmp_path / "tmp"), **NO_NETWORK)
    assert "the package index cannot be reached" in sentence(answer)
    assert (
        f"The file system of {checkout} has no locks: do not do this on two machines"
        in answer.stdout
    )
    assert len(list((tmp_path / "tmp").glob("hvdlab-*.lock"))) == 1
