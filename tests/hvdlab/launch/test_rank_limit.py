"""How many ranks a machine starts, and every place where a user can ask for more."""

import pytest

from hvdlab import cli, launch
from hvdlab.bench import ranks as bench_ranks
from hvdlab.check.command import CheckError, check
from hvdlab.launch import preflight
from hvdlab.launch.hosts import Host
from hvdlab.launch.plan import Plan
from hvdlab.system import rank_limit

GIB = 1 << 30
TOO_MANY = 10**6


@pytest.mark.parametrize(
    "cores, memory, most",
    [(2, 24 * GIB, 16), (1, 24 * GIB, 8), (64, 512 * GIB, 512), (8, 2 * GIB, 8), (4, 0, 2)],
)
def test_cores_and_memory_limit_the_ranks(cores, memory, most, monkeypatch):
    monkeypatch.setattr(rank_limit, "usable_cores", lambda: cores)
    monkeypatch.setattr(rank_limit, "available_memory", lambda: memory)
    assert rank_limit.most_ranks() == most
    assert rank_limit.too_many_ranks(most) == ""
    sentence = rank_limit.too_many_ranks(most + 1)
    assert sentence.startswith(f"-np {most + 1}: this machine has {cores} usable core")
    assert f"{memory / GIB:.1f} GiB" in sentence
    assert sentence.endswith(f": choose at most {most}, or add --force.")


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A script that must not start, because nothing answers for it."""
    for module, name in ((launch.local, "started"), (bench_ranks, "start")):
        monkeypatch.setattr(module, name, lambda *of, **them: pytest.fail("started"))
    path = tmp_path / "train.py"
    path.write_text("import horovod.torch\n")
    return path


@pytest.mark.parametrize(
    "words, option",
    [
        (["run", "-np"], "-np"),
        (["run", "--launcher", "torchrun", "-np"], "-np"),
        (["run", "-H", f"localhost:{TOO_MANY}", "-np"], "-np"),
        (["check", "-np"], "-np"),
        (["bench", "allreduce", "--ranks"], "--ranks"),
        (["bench", "scaling", "--ranks"], "--ranks"),
    ],
)
def test_a_command_refuses_too_many_ranks_in_one_sentence(words, option, script, capsys):
    named = [] if words[0] == "bench" else [str(script)]
    assert cli.main([*words, str(TOO_MANY), *named]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1
    assert f": {option} {TOO_MANY}: this machine has " in told.err
    assert told.err.endswith(", or add --force.\n")


def test_a_function_refuses_too_many_ranks(script):
    for start in (launch.run, lambda script, ranks: launch.call(rank_of, ranks=ranks)):
        with pytest.raises(launch.LaunchError, match=f"ranks {TOO_MANY}: .* or add force=True"):
            start(script, ranks=TOO_MANY)
    with pytest.raises(CheckError, match=f"-np {TOO_MANY}: this machine has"):
        check(script, ranks=TOO_MANY)


def rank_of(comm):
    return comm.rank


def test_force_starts_them(script, monkeypatch):
    monkeypatch.setattr(rank_limit, "most_ranks", lambda: 2)
    with pytest.raises(pytest.fail.Exception, match="started"):
        launch.run(script, ranks=3, force=True)
    with pytest.raises(pytest.fail.Exception, match="started"):
        check(script, ranks=3, force=True)


@pytest.mark.parametrize(
    "launcher, hosts, in_slurm, here",
    [
        ("mpirun", "", False, 300),
        ("mpirun", "", True, 0),  # Slurm says how many ranks fit
        ("srun", "", True, 0),
        ("torchrun", "", True, 300),
        ("mpirun", "far:200,localhost:100", False, 100),
        ("mpirun", "far:300", False, 0),
    ],
)
def test_only_the_ranks_of_this_machine_count(launcher, hosts, in_slurm, here, monkeypatch):
    monkeypatch.setattr(preflight.slurm_job, "nodes", lambda: ["n1", "n2"] * in_slurm)
    named = [
        Host(name, int(slots))
        for name, _, slots in (h.partition(":") for h in hosts.split(",") if h)
    ]
    assert preflight.ranks_here(Plan(launcher, 300, [], {}, named)) == here
