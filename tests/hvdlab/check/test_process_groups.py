"""What is said of scripts of torch.distributed, on events written by hand, and which launcher starts them."""

import pytest
from check_events import as_run, judge, named, plus, run, without

from hvdlab.check import command
from hvdlab.check.static import read
from hvdlab.mistakes import CATALOGUE

SCRIPT = """\
import torch.distributed as dist
dist.init_process_group("gloo")
optimizer = SGD(model.parameters(), lr=0.1 * dist.get_world_size())
parallel = DistributedDataParallel(model)
load(model)
for batch in loader:
    optimizer.step()
"""
UNUSED = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."
CLOSED = (
    "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:40992"
)


@pytest.fixture
def facts(tmp_path):
    """Return a function (*(old, new)) -> Facts of SCRIPT with changes."""

    def of(*changes):
        text = SCRIPT
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "script.py").write_text(text)
        return read(tmp_path / "script.py")

    return of


def ddp(**changes):
    """Return the events of a correct DDP run, with changes of its steps."""
    events = run(**{"forward": lambda r, s: 6, **changes})
    for of_rank in events.values():
        for event in of_rank:
            if event["kind"] == "init":
                event["library"] = "torch.distributed"
            elif event["kind"] in ("wrap", "broadcast"):
                event |= {"what": "DistributedDataParallel", "line": 4}
                event |= {"optimizer": None} if event["kind"] == "wrap" else {}
    return events


def apart(rank, step):
    return [1.0 + step + rank, 2.0]


def plain(rank, step):
    return False


def own(rank, step):
    """The sketches of a rank whose optimizer uses its own gradient."""
    local = [float(place // 8 == rank) for place in range(16)]
    return {"used": local, "local": local}


def end(events, error, line=6):
    for of_rank in events.values():
        of_rank[-1] |= {"error": error, "line": line}
    return events


def test_a_good_run_has_no_finding(facts):
    assert named(ddp(), facts()) == []


def test_a_model_without_a_wrapper(facts):
    events = ddp(wrapped=plain, weights=apart)
    events = without(without(events, "wrap"), "broadcast")
    assert named(events, facts()) == [("model-not-wrapped", 3)]
    by_hand = without(without(ddp(wrapped=plain), "wrap"), "broadcast")
    for rank in by_hand:
        plus(by_hand, rank, kind="collective", op="dist.all_reduce", line=6)
    assert named(by_hand, facts()) == []


def test_a_wrapper_that_is_not_called(facts):
    found = judge(ddp(wrapped=plain, weights=apart, gradient=own), facts())
    assert [(one.id, one.line) for one in found] == [("wrapper-not-called", 6)]
    assert "After step 1 the weights of the ranks differ" in found[0].seen
    assert "optimizer-not-wrapped" not in [one.id for one in found]


def test_an_optimizer_of_another_model(facts):
    events = ddp(
        weights=lambda r, s: [1.0 + r], gradient=lambda r, s: {"used": None, "local": None}
    )
    assert named(events, facts()) == [("optimizer-of-other-weights", 3)]


def test_weights_that_one_rank_loads_after_the_wrapper(facts):
    events = ddp(weights=apart)
    assert named(events, facts()) == [("replicas-diverged", 7)]
    load = {"kind": "load", "line": 5, "wrapped": True}
    assert named(plus(events, 0, **load), facts()) == [("loaded-on-some-ranks", 5)]
    assert named(plus(ddp(), 0, **load), facts()) == []  # the same weights
    other = plus(ddp(weights=apart), 0, **load | {"wrapped": False})  # those of another model
    assert named(other, facts()) == [("replicas-diverged", 7)]


def test_errors_of_pytorch(facts):
    # The gradients of a step that does not end are not averaged.
    events = ddp(unused=lambda rank, step: "auxiliary.bias", weights=apart)
    found = judge(end(events, UNUSED), facts())
    assert [(one.id, one.line) for one in found] == [("unused-parameters", 4)]
    assert "auxiliary.bias got no gradient" in found[0].seen
    both = "ValueError: sampler option is mutually exclusive with shuffle"
    assert named(end(ddp(), both, 5), facts()) == [("sampler-and-shuffle", 5)]


def test_the_end_of_another_rank_is_no_crash(facts):
    events = end(ddp(), CLOSED)
    plus(events, 0, kind="collective", op="dist.all_reduce", line=5)
    assert named(events, facts()) == [("collective-on-some-ranks", 5)]


def test_a_missing_process_group(facts):
    error = (
        "ValueError: Default process group has not been initialized, please make sure to call ..."
    )
    events = end(without(ddp(), "init"), error, 4)
    assert named(events, facts(('dist.init_process_group("gloo")\n', ""))) == [
        ("process-group-missing", 4)
    ]


def test_the_advice_is_that_of_torch_distributed(facts):
    events = ddp(batch=lambda rank, step: f"{step}")
    (found,) = judge(events, facts())
    assert found.id == "identical-batches" and "hvd." not in found.fix
    (found,) = judge(ddp(), facts(), run(ranks=1))
    assert found.id == "rate-unscaled" and "dist.get_world_size()" in found.seen + found.fix
    for mistake in CATALOGUE.values():
        if mistake.fix_in_ddp:
            assert "hvd." not in mistake.advice("ddp") and mistake.advice("torch") == mistake.fix


@pytest.mark.parametrize(
    ("source", "launcher"),
    [
        ("import torch.distributed as dist\n", "torchrun"),
        ("from hvdlab.torch.process_group import rendezvous\n", "torchrun"),
        ("import horovod.torch as hvd\nimport torch.distributed as dist\n", "mpirun"),
        ("import torch\n", "mpirun"),
    ],
)
def test_the_launcher_fits_the_script(source, launcher, tmp_path, monkeypatch):
    script, seen = tmp_path / "script.py", []

    def launched(*arguments, launcher, **options):
        seen.append(launcher)
        raise KeyboardInterrupt

    monkeypatch.setattr(command.launch, "run", launched)
    script.write_text(source)
    with pytest.raises(KeyboardInterrupt):
        command.check(script)
    assert seen == [launcher]


@pytest.mark.parametrize("module", ["torch.distributed.fsdp", "torch.distributed.device_mesh"])
def test_sharded_weights_are_not_checked(module, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"import torch.distributed as dist\nimport {module}\n")
    with pytest.raises(command.CheckError, match=f"trains with {module}, .* it cannot be checked"):
        command.check(script)


def test_a_process_group_that_is_not_destroyed_is_a_note():
    kept = as_run(ddp())
    assert "without dist.destroy_process_group()" in command._note(kept)
    events = ddp()
    assert command._note(as_run(plus(events, 0, kind="destroy", line=8))) is None
    assert command._note(as_run(end(ddp(), CLOSED))) is None
    assert command._note(as_run(run())) is None  # of Horovod
