"""Each likely mistake is named at its line, and what is right in its own way is left alone."""

import random
import tomllib
from pathlib import Path

import pytest

from hvdgrade.judge.measured_flags import unequal_work
from hvdgrade.submission.flags import flags
from hvdgrade.submission.review import review
from hvdlab.hints import hints, read
from hvdlab.script_analysis.legacy_keras import failing_callback
from hvdlab.script_analysis.script import Script, Unreadable

ASSESSMENT = Path(__file__).parents[3] / "assessment"
FIXTURES = Path(__file__).parents[2] / "fixtures"
SCRIPTS = {name: (FIXTURES / "hint_base" / f"{name}.py").read_text() for name in ("keras", "torch")}
KERAS, TORCH = "keras", "torch"
STYLES = tomllib.loads((FIXTURES / "hint_styles.toml").read_text())


def topics(source: str | bytes) -> set[str]:
    source = source if isinstance(source, bytes) else source.encode()
    return {hint["topic"] for hint in hints(source)}


def changed(framework: str, old: str, new: str) -> tuple[str, int | None]:
    """A right script with one mistake, and the line where the change begins."""
    before = SCRIPTS[framework]
    assert before.count(old) == 1
    return before.replace(old, new), before[: before.index(old)].count("\n") + 1


@pytest.mark.parametrize("framework", SCRIPTS)
def test_the_solutions_get_no_hint_and_no_flag(framework):
    solution = (ASSESSMENT / "solutions" / framework / "assessment.py").read_bytes()
    for source in (solution, SCRIPTS[framework].encode()):
        assert hints(source) == []
        assert flags(source) == []


@pytest.mark.parametrize("name", ["original", "independent"])
def test_other_right_ways_get_no_hint(name):
    assert hints((FIXTURES / "similar" / f"{name}.py").read_bytes()) == []


def styled(style: dict) -> Script:
    """A right script, written in another style."""
    source = SCRIPTS[style["framework"]]
    if style.get("untuned"):
        source = source.replace("default=0.175", "default=0.25")
    for old, new in style["edits"]:
        assert old in source
        source = source.replace(old, new)
    compile(source, style["name"], "exec")
    return Script(source.encode())


@pytest.mark.parametrize("style", STYLES["right"], ids=lambda style: style["name"])
def test_a_right_script_in_another_style_gets_no_hint(style):
    assert read(styled(style)) == []


@pytest.mark.parametrize("style", STYLES["wrong"], ids=lambda style: style["name"])
def test_a_wrong_script_gets_a_hint(style):
    assert style["topic"] in {hint["topic"] for hint in read(styled(style))}


@pytest.mark.parametrize("framework", SCRIPTS)
def test_a_serial_script_hears_what_to_do_first(framework):
    source = (ASSESSMENT / framework / "assessment.py").read_bytes()
    found = hints(source)
    assert found[0]["topic"] == "Horovod" and found[0]["line"] is None
    assert {"data", "optimizer", "learning rate", "output"} <= {hint["topic"] for hint in found}
    lines = source.decode().splitlines()
    where = {hint["topic"]: lines[hint["line"] - 1] for hint in found if hint["line"]}
    assert "Batches(" in where["data"]
    assert "optim" in where["optimizer"] and "SGD(" in where["optimizer"]
    assert ("print(" in where["output"]) if framework == TORCH else ("fit(" in where["output"])


INIT = "    args = parse_args()\n    hvd.init()"
CLOCK = "        seconds = time"  # after each epoch
STEP = "            optimizer.zero_grad()"
RECORDS = "        recorder.epoch_end"
ALONE = "if hvd.rank() == 0:\n            "
LOG = "            print(f"  # on rank 0 only
SAVE = "torch.save(model.state_dict(), 'x.pt')"
BROADCAST = "hvd.callbacks.BroadcastGlobalVariablesCallback(0),"
AVERAGE = "hvd.callbacks.MetricAverageCallback(),"
LEGACY = "x['TF_USE_LEGACY_KERAS'] = '1'\nimport horovod.tensorflow.keras as hvd"
BINDING = "import hvdlab.keras.horovod as hvd"
WRAP = "hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())"


@pytest.mark.parametrize(
    ("framework", "old", "new", "topic", "said", "where"),
    [
        (KERAS, "    hvd.init()", "    # hvd.init()", "init", "never called", None),
        (TORCH, "    hvd.init()", "    'hvd.init()'", "init", "never called", None),
        (
            TORCH,
            INIT,
            f"    r = hvd.rank()\n{INIT}",
            "init",
            "before `hvd.init()` in line",
            "r = hvd.rank()",
        ),
        (
            KERAS,
            "hvdlab.keras.horovod as",
            "horovod.tensorflow.keras as",
            "Horovod",
            "averages nothing",
            "import horovod",
        ),
        (
            KERAS,
            BINDING,
            "from horovod import keras as hvd",
            "Horovod",
            "averages nothing",
            "import keras as hvd",
        ),
        (KERAS, "hvd.local_rank()", "0", "device", "`hvdlab.keras.device`", None),
        (TORCH, "hvd.local_rank()", "0", "device", "`hvdlab.torch.device`", "torch.device("),
        (TORCH, "rank=hvd.rank(),", "", "data", "whole data set on every rank", "Batches("),
        (KERAS, "size=hvd.size(),", "size=2,", "data", "fixed rank or size", "Batches("),
        (TORCH, "rank=hvd.rank(),", "rank=hvd.size(),", "data", "exchanged", "Batches("),
        (TORCH, "rank=hvd.rank(),", "rank=hvd.local_rank(),", "data", "two machines", "Batches("),
        (
            TORCH,
            "seed=args.seed,",
            "seed=args.seed + hvd.rank(),",
            "data",
            "seed of `Batches` differs",
            "Batches(",
        ),
        (TORCH, "lr=args.lr * hvd.size()", "lr=0.25", "learning rate", "does not depend", "SGD("),
        (KERAS, "args.lr * hvd.size()", "0.25", "learning rate", "does not depend", "SGD("),
        (TORCH, f"optimizer = {WRAP}", WRAP, "optimizer", "drops the result", "Distr"),
        (
            TORCH,
            f"optimizer = {WRAP}",
            f"wrapped = {WRAP}",
            "optimizer",
            "plain optimizer",
            "optimizer.step()",
        ),
        (TORCH, f"optimizer = {WRAP}", "", "optimizer", "never wrapped", "SGD("),
        (
            KERAS,
            "optimizer = hvd.Distr",
            "wrapped = hvd.Distr",
            "optimizer",
            "plain optimizer",
            "model.compile(",
        ),
        (
            TORCH,
            "hvd.broadcast_parameters(",
            "dict(",
            "broadcast",
            "all ranks the same weights",
            None,
        ),
        (KERAS, BROADCAST, "", "broadcast", "Only the seed gives", None),
        (
            TORCH,
            RECORDS,
            f"        if hvd.rank() == 0: {RECORDS.strip()}",
            "recorder",
            "some ranks",
            "recorder.epoch_end(",
        ),
        (
            KERAS,
            "Recorder(batches)",
            "Recorder(batches) if hvd.rank() == 0 else None",
            "recorder",
            "some",
            "Recorder(",
        ),
        (TORCH, CLOCK, f"        {SAVE}\n{CLOCK}", "files", "Every rank writes", "torch.save("),
        (
            TORCH,
            CLOCK,
            f"        open('log', 'a').write('x')\n{CLOCK}",
            "files",
            "Every rank writes",
            "open(",
        ),
        (
            KERAS,
            AVERAGE,
            f"{AVERAGE} keras.callbacks.ModelCheckpoint('x.keras'),",
            "files",
            "Every rank",
            "ModelCheckpoint(",
        ),
        (KERAS, AVERAGE, "keras.callbacks.EarlyStopping(),", "metrics", "alone", "EarlyStopping("),
        (
            TORCH,
            "        if hvd.rank() == 0:",
            "        if True:",
            "output",
            "prints on every rank",
            "print(",
        ),
        (
            TORCH,
            "        if hvd.rank() == 0:",
            "        if accuracy > 0.1:",
            "output",
            "every rank",
            "print(",
        ),
        (KERAS, "2 if hvd.rank() == 0 else 0", "2", "output", "every rank", "model.fit("),
        (
            TORCH,
            "loss = average(",
            f"{ALONE}loss = average(",
            "hang",
            "wait",
            "if hvd.rank() == 0:",
        ),
        (
            TORCH,
            "hvd.broadcast_par",
            f"{ALONE}hvd.broadcast_par",
            "hang",
            "wait",
            "hvd.broadcast_parameters(",
        ),
        (
            TORCH,
            "hvd.broadcast_opt",
            f"{ALONE}hvd.broadcast_opt",
            "hang",
            "wait",
            "hvd.broadcast_optimizer_state(",
        ),
    ],
)
def test_a_mistake_is_named_and_nothing_else(framework, old, new, topic, said, where):
    """`where`: of the line that the hint names; None for what is nowhere."""
    source = changed(framework, old, new)[0]
    found = hints(source.encode())
    assert {hint["topic"] for hint in found} == {topic}, found
    assert said in found[0]["text"]
    line = found[0]["line"]
    assert (line and source.splitlines()[line - 1].count(where or "")) == (where and 1)


def lines_of(source: str, topic: str) -> list[str]:
    """The lines of a script that hints on this topic speak of."""
    lines = source.splitlines()
    return [lines[h["line"] - 1].strip() for h in hints(source.encode()) if h["topic"] == topic]


def test_the_line_is_that_of_the_mistake():
    assert lines_of(changed(TORCH, "rank=hvd.rank(),", "")[0], "data") == ["batches = Batches("]
    late = changed(TORCH, f"    optimizer = {WRAP}\n", "")[0]
    loads = "    optimizer.load_state_dict(state)\n"  # else the scheduler sets the rate of both
    late = late.replace("    recorder = Rec", f"    optimizer = {WRAP}\n{loads}    recorder = Rec")
    assert lines_of(late, "optimizer") == [
        "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate)"
    ]
    wrapped = changed(KERAS, "optimizer = hvd.Distr", "wrapped = hvd.Distr")[0]
    assert lines_of(wrapped, "optimizer") == ["model.compile("]


def test_the_state_of_an_optimizer_matters_where_one_is_loaded():
    source = changed(TORCH, "hvd.broadcast_optimizer_state(optimizer, root_rank=0)", "pass")[0]
    assert hints(source.encode()) == []
    loads = "    optimizer.load_state_dict(torch.load('x.pt'))\n"
    (hint,) = hints(source.replace("    recorder = Rec", f"{loads}    recorder = Rec").encode())
    assert hint["topic"] == "broadcast" and "state is not broadcast" in hint["text"]


def test_a_pattern_that_is_compiled_is_no_optimizer():
    serial = (ASSESSMENT / TORCH / "assessment.py").read_text()
    source = serial.replace(
        "def parse_args", "import re\n\nPATTERN = re.compile('epoch')\n\ndef parse_args"
    )
    for topic in ("optimizer", "learning rate"):
        assert lines_of(source, topic) == lines_of(serial, topic) != []


def test_keras_on_pytorch_hears_of_callbacks():
    source = changed(KERAS, BROADCAST, "")[0].replace(
        "import argparse", "import argparse\nimport torch"
    )
    (hint,) = hints(source.encode())
    assert "BroadcastGlobalVariablesCallback(0)" in hint["text"]


def test_a_function_that_meets_is_named_where_some_ranks_call_it():
    """`average` itself has no test of the rank in it."""
    source = changed(TORCH, "loss = average(total", "total = (total")[0].replace(
        'batches.examples_read(epoch)), "loss")', "batches.examples_read(epoch)))"
    )
    a, b = source.index("        accuracy = average("), source.index("        recorder.epoch_end")
    source = source[:a] + source[b:]
    source = source.replace("loss=loss, accuracy=accuracy", "").replace(
        'print(f"epoch {epoch}  loss {loss:.3f}  held-out {accuracy:.3f}  {seconds:.1f} s")',
        "print(average(total, 'loss'), seconds)",
    )
    assert lines_of(source, "hang") == ["if hvd.rank() == 0:  # Horovod: one process speaks"]


CONSTANT_RATE = """
import horovod.torch as hvd
import torch
hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(
    model.parameters(),
    lr=0.25 * hvd.size(),
)
optimizer = hvd.DistributedOptimizer(optimizer)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
"""


def test_a_scaled_rate_wants_a_warm_up():
    (hint,) = hints(CONSTANT_RATE.encode())
    assert (hint["topic"], hint["line"]) == ("learning rate", 8)
    assert "full value from the first step" in hint["text"] and "warmup" in hint["text"]
    for rising in (
        "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, f)",
        "optimizer.param_groups[0]['lr'] = 0.01",
        "warmup_steps = 100",
    ):
        assert hints((CONSTANT_RATE + rising).encode()) == []
    alone = CONSTANT_RATE.replace("0.25 * hvd.size()", "0.25")
    assert hints(alone.encode())[0]["line"] == 6
    assert hints(alone.replace("0.25", "0.37").encode()) == []  # somebody has tuned it
    assert hints(alone.replace("(optimizer)", "(optimizer, op=hvd.Adasum)").encode()) == []


def test_a_rate_may_be_scaled_anywhere():
    untuned = SCRIPTS[TORCH].replace("default=0.175", "default=0.25")
    plain = untuned.replace("args.lr * hvd.size()", "args.lr")
    assert topics(untuned) == set() and topics(plain) == {"learning rate"}
    init = "    hvd.init()  # Horovod: find the other processes\n"
    assert plain.count(init) == 1
    assert topics(plain.replace(init, f"{init}    args.lr *= hvd.size()\n")) == set()
    variable = plain.replace(init, f"{init}    rate = args.lr * hvd.size()\n")
    assert topics(variable.replace("lr=args.lr", "lr=rate")) == set()


@pytest.mark.parametrize(
    "line",
    [
        "print(args.batch_size * hvd.size())",
        "seen = len(batches) * args.batch_size * hvd.size()",
        "accuracy = hvd.size() * average(1.0)",
        "print(hvd.size() * accuracy)",
    ],
)
def test_a_product_with_the_ranks_is_not_always_a_rate(line):
    """A rate that has been tuned and is not scaled wants no warm-up; that of the serial script is told."""
    tuned = CONSTANT_RATE.replace("0.25 * hvd.size()", "0.12") + "if hvd.rank() == 0:\n    "
    assert hints(f"{tuned}{line}\n".encode()) == []
    found = hints(f"{tuned}{line}\n".replace("0.12", "0.25").encode())
    assert not any("full value from the first step" in hint["text"] for hint in found)
    if "batch" in line:
        assert ["does not depend" in hint["text"] for hint in found] == [True]


@pytest.mark.parametrize(
    "more",
    [
        "OneCycleLR(optimizer, max_lr=0.6, pct_start=0.25)",
        "late = epoch / 3 > 0.25",
        "x = torch.nn.Dropout(0.25), keras.layers.Dropout(rate=0.25)",
        "lr = 0.5 if hvd.size() == 2 else 0.25",
    ],
)
def test_a_quarter_is_not_always_a_rate(more):
    tuned = CONSTANT_RATE.replace("0.25 * hvd.size()", "0.37")
    assert hints(f"{tuned}{more}\n".encode()) == []


@pytest.mark.parametrize(
    "told",
    [
        "lr = 0.25",
        "def train(lr=0.25): pass",
        "add_argument('--lr', default=0.25)",
        "f(max_lr=0.25)",
    ],
)
def test_the_serial_rate_is_known_wherever_it_is_set(told):
    plain = CONSTANT_RATE.replace("0.25 * hvd.size()", "lr")
    assert topics(f"{told}\n{plain}") == {"learning rate"}


@pytest.mark.parametrize(
    "rise",
    [
        "class Ramp(torch.optim.lr_scheduler.LRScheduler):\n    pass",
        "class Ramp(keras.optimizers.schedules.LearningRateSchedule):\n    pass",
        "torch.optim.lr_scheduler.ConstantLR(optimizer, 0.1, 100)",
    ],
)
def test_a_warm_up_of_ones_own_is_one(rise):
    assert hints(f"{CONSTANT_RATE}{rise}\n".encode()) == []


def test_a_scheduler_of_the_plain_optimizer_matters_only_where_its_state_is_loaded():
    plan = "optimizer = hvd.DistributedOptimizer(optimizer)\n"
    early = f"plan = torch.optim.lr_scheduler.LambdaLR(optimizer, f)\n{plan}"
    script = CONSTANT_RATE.replace(plan, early)
    assert hints(f"{script}model.load_state_dict(torch.load(path))\n".encode()) == []
    assert topics(f"{script}optimizer.load_state_dict(torch.load(path))\n") == {"optimizer"}


def test_what_is_saved_is_not_taken_for_the_name_of_a_file():
    script = CONSTANT_RATE + "warmup = 1\ntorch.save({'model': 1}, {})\n"
    assert topics(script.replace("{})", "buffer)")) == set()
    assert topics(script.replace("{})", "'a.pt')")) == {"files"}
    assert topics(script.replace("{})", "f='a.pt')")) == {"files"}


def test_a_function_that_rank_0_alone_calls_may_print():
    says = changed(TORCH, LOG, LOG.replace("print(", "say("))[0]
    say = "\n\ndef say(text):\n    print(text)\n"
    assert topics(says + say) == set()
    everybody = says.replace("        if hvd.rank() == 0:", "        if True:")
    assert topics(everybody + say) == {"output"}


def test_who_leaves_before_a_collective_lets_the_others_wait():
    leaves = "        if hvd.rank() != 0:\n            continue\n        loss = average("
    found = hints(changed(TORCH, "        loss = average(", leaves)[0].encode())
    assert "hang" in {hint["topic"] for hint in found}


@pytest.mark.parametrize(
    ("framework", "old", "new"),
    [
        (TORCH, "import horovod.torch as hvd", "from horovod import torch as hvd"),
        (KERAS, BINDING, "from hvdlab.keras import horovod as hvd"),
        (KERAS, "hvd.callbacks.Broadcast", "hvdlab.keras.callbacks.Broadcast"),
        (TORCH, "    hvd.init()", "    hvd.init()\n    rank, size = hvd.rank(), hvd.size()"),
        (TORCH, "if hvd.rank() == 0:  #", "first = hvd.rank() == 0\n        if first:  #"),
        (TORCH, "if hvd.rank() == 0:  #", "if hvd.rank() != 0:\n            continue\n        if True:  #"),
        (TORCH, "if hvd.rank() == 0:  #", "rank: int = hvd.rank()\n        if not rank:  #"),
        (TORCH, "if hvd.rank() == 0:  #", "if (me := hvd.rank()) == 0:  #"),
        (TORCH, LOG, f"            log = print\n{LOG}"),
        (TORCH, "lr=args.lr * hvd.size()", "lr=linear_scaling(args.lr, hvd.size())"),
        (TORCH, "lr=args.lr * hvd.size()", "lr=args.lr * hvd.size() ** 0.5"),
        (KERAS, BINDING, f"{LEGACY}\nhvd.callbacks.K = tf.keras.backend"),
        (TORCH, CLOCK, f"        torch.save(model, f'{{hvd.rank()}}.pt')\n{CLOCK}"),
        (TORCH, LOG, f"            {SAVE}\n{LOG}"),
        (TORCH, STEP, f"            if loss.isnan(): break\n{STEP}"),
        (TORCH, WRAP, f"{WRAP[:-1]}, compression=hvd.Compression.fp16, backward_passes_per_step=2)"),
    ],
)  # fmt: skip
def test_the_same_thing_said_differently_is_understood(framework, old, new):
    assert hints(changed(framework, old, new)[0].encode()) == []


@pytest.mark.parametrize("test", ["first()", "self.first", "is_main_process()"])
def test_a_rank_test_of_ones_own_is_understood(test):
    """A function, an attribute, and something that the script does not define."""
    tells = "def first():\n    return hvd.rank() == 0\n\nself.first = not hvd.rank()\n"
    writes = f"path = f'{{hvd.rank()}}.pt'\ntorch.save(1, path)\nif {test}:\n    print({SAVE})\n"
    assert topics(CONSTANT_RATE + "warmup = 1\n" + tells + writes) == set()


def test_calls_are_followed_through_functions():
    """A rank test around the only call of a function stands around what the function does, too."""
    kept = "\ndef keep(epoch):\n    {}\n\nif hvd.rank() == 0:\n    keep(0)\n"
    scaled = CONSTANT_RATE + "warmup = 1\n"
    assert hints(scaled.encode()) == []
    assert topics(scaled + kept.format("recorder.epoch_end(epoch)")) == {"recorder"}
    assert topics(scaled + kept.format("hvd.allreduce(epoch)")) == {"hang"}
    assert topics(scaled + kept.format("print(epoch)")) == set()
    assert topics(scaled + kept.format("print(epoch)") + "keep(1)\n") == {"output"}
    assert topics(scaled + "def say():\n    print(1)\n" + kept.format("say()")) == set()


def test_lines_are_compared_within_a_function_only():
    """`train` stands above the line that wraps, and is called below it."""
    train = "\ndef train():\n    optimizer.step()\n"
    head, tail = CONSTANT_RATE.split("hvd.init()")
    assert hints(f"{head}{train}hvd.init(){tail}warmup = 1\ntrain()\n".encode()) == []


def test_the_size_of_a_tensor_is_no_number_of_processes():
    alone = CONSTANT_RATE.replace("0.25 * hvd.size()", "0.25")
    (hint,) = hints((alone + "total = 0.5 * images.size(0)\n").encode())
    assert "does not depend" in hint["text"]


def test_assignments_to_names_are_followed():
    source = CONSTANT_RATE.replace(
        "import horovod.torch as hvd", "import horovod.torch\nhvd = horovod.torch"
    )
    assert topics(source + "warmup = 1\n") == set()
    source = source.replace("optimizer = hvd.Dist", "wrap = hvd.Dist").replace(
        "DistributedOptimizer(optimizer)", "DistributedOptimizer\nwrap(optimizer)"
    )
    assert topics(source + "warmup = 1\n") == {"optimizer"}


def test_names_from_horovod_itself_are_followed():
    source = SCRIPTS[TORCH].replace(
        "import horovod.torch as hvd",
        "from horovod.torch import *\nfrom horovod.torch import DistributedOptimizer as Wrapped",
    )
    source = source.replace("hvd.DistributedOptimizer", "Wrapped").replace("hvd.", "")
    assert hints(source.encode()) == []
    dropped = source.replace("optimizer = Wrapped", "Wrapped")
    assert topics(dropped) == {"optimizer"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("identical_batches", {"data"}),
        ("undivided_work", {"data"}),
        ("no_averaging", {"optimizer"}),
        ("own_part_of_the_data", {"data"}),
        ("no_broadcast", {"broadcast", "data"}),
        ("official_keras_module", {"Horovod", "device", "broadcast"}),
        ("one_batch_ahead", set()),
        ("not_python", set()),
    ],
)
def test_the_broken_submissions_get_hints_that_fit(name, expected):
    source = (FIXTURES / "submissions" / name / "assessment.py").read_bytes()
    assert topics(source) == expected


# --- for the instructor -----------------------------------------------------------------------------


def test_what_honest_scripts_often_have_is_not_flagged():
    assert flags(b"from types import SimpleNamespace\nprint(vars(args))\n") == []
    assert [flag["kind"] for flag in flags(b"import types\n")] == ["interpreter"]


@pytest.mark.parametrize(
    ("source", "kind", "said"),
    [
        ("import base64, zlib\n", "packed data", "Line 1 imports base64."),
        ("x = 1\nfrom ctypes import CDLL\n", "native code", "Line 2 imports ctypes.CDLL."),
        ("import socket\n", "network", "imports socket"),
        ("import os\nos._exit(0)\n", "other processes", "Line 2 calls os._exit."),
        ("import os as o\no.fork()\n", "other processes", "calls os.fork"),
        ("from os import system as s\ns('true')\n", "other processes", "calls os.system"),
        ("import psutil\n", "other processes", "imports psutil"),
        ("import subprocess as s\n", "other processes", "imports subprocess"),
        ("\n\nexec('1')\n", "computed code", "Line 3 calls exec."),
        ("eval('1')\n", "computed code", "calls eval"),
        ("import time\ntime.time = lambda: 0\n", "patch", "assigns to time.time"),
        ("import sys\nsys.modules['x'] = 1\n", "patch", "assigns to sys.modules"),
        ("path = 'hvdgrade/evidence'\n", "grader", "names hvdgrade"),
        ("import os\nos.environ['HVDLAB_RUN_DIR']\n", "grader", "names HVDLAB_RUN_DIR"),
        (f"w = '{'A' * 2100}'\n", "literal", "is 2,107 bytes long"),
        (f"w = (\n    '{'A' * 1500}'\n    '{'B' * 1500}'\n)\n", "literal", "Line 2 holds a literal of 3,009"),
        (f"w = b'''{'A' * 2100}'''\n", "literal", "bytes"),
        ("w = [\n" + "    0.12345, -1.5,\n" * 200 + "]\n", "literal", "Line 1 holds a literal of"),
        ("w = {\n" + "".join(f" {i}: (1, 2),\n" for i in range(250)) + "}\n", "literal", "holds a"),
        ("w = 0x" + "f" * 3000 + "\n", "literal", "3,002"),
        ("# " + "A" * 3000 + "\n", "literal", "is 3,003 bytes long"),
    ],
)  # fmt: skip
def test_what_an_instructor_may_want_to_see_is_flagged(source, kind, said):
    found = flags(source.encode())
    assert kind in {flag["kind"] for flag in found}
    assert any(said in flag["text"] for flag in found), found


def test_an_ordinary_script_with_long_text_is_not_flagged():
    assert flags(f"# {'-' * 76}\n# {'=' * 76}\nx = 1\n".encode() * 20) == []
    prose = '    """' + "Words that\n    explain. " * 80 + '"""\n'
    assert len(prose) < 2000
    assert flags("".join(f"def f{i}():\n{prose}" for i in range(20)).encode()) == []
    table = "rates = [\n" + "    0.1,\n" * 30 + "]\nnames = ['a', 'b']\n"
    assert flags(table.encode()) == []


def test_a_rank_that_did_little():
    """0.4 of the most is as much as is let pass; one that was never seen did nothing."""
    assert unequal_work({0: 40.0, 1: 16.1}, 2) == unequal_work({0: 9.0}, 1) == ""
    assert unequal_work({}, 2) == ""  # over before anybody looked
    for seconds, least in (({0: 40.0, 1: 15.9}, 1), ({0: 3.0, 1: 40.0, 2: 41.0}, 0), ({0: 5.0}, 1)):
        text = unequal_work(seconds, max(2, len(seconds)))
        assert text.startswith(f"Rank {least} computed for ")


# --- whatever is handed in --------------------------------------------------------------------------

NESTED = [
    "(" * 150 + ")" * 150,
    "[" * 90 + "1" + "]" * 90,
    "x = " + "-" * 5000 + "1",
    "x = " + "not " * 5000 + "1",
    "x = " + "a." * 5000 + "b",
    "x = " + "a" + "()" * 5000,
    "x = " + "1+" * 5000 + "1",
    "x = " + "hvd.size() * " * 3000 + "1",
    "".join(f"{' ' * i}if x:\n" for i in range(90)) + " " * 90 + "pass",
    "lambda: " * 2000 + "1",
    "x = 0x" + "f" * 190_000,
    "import horovod.torch as hvd\nhvd.init()\nx = 0x" + "f" * 9000,
    "x = " + "1" * 6000,
    "x = '" + "a" * 190_000 + "'",
    "x = [" + "1," * 20_000 + "]",
    "print()\n" * 5_000,
    "import horovod.torch as hvd\nif hvd.rank() != 0:\n    exit()\n" + "print()\n" * 20_000,
    "def f():\n    print()\nf()\n" * 2_000,
    "f'" + "{x}" * 5000 + "'",
    "x = f'{f\"{1}\"}'",
    "\ufeffimport torch",
    "# -*- coding: latin-1 -*-\nx = '\xe9'",
    "from . import x\nimport a.b.c\nimport a as b, c as d",
    "match x:\n    case {'a': [1, *_]}: print()\n    case _: pass",
    "async def f():\n    async with a as b: print(await c)\n",
    "class A(B, metaclass=C):\n    x: int = 1\n    def f(self, /, a, *b, c=1, **d): print(*a, **d)\n",
    "(yield)",
    "x = hvd.rank\n(a, *b), c[0], d.e = 1, 2, 3\nBatches(*a, **b)\nopen(*a)\nprint(*a)\nopen('x', mode)\n",
    "import torch\nfrom horovod.torch import *\nfor i in x:\n  if val: break\nelse:\n  y\n",
    "\x00",
    "x = \udce4".encode("utf-8", "surrogateescape"),
    b"\xff\xfe\x00",
    "",
]


@pytest.mark.slow
@pytest.mark.parametrize("source", NESTED, ids=range(len(NESTED)))
def test_no_source_makes_it_fail(source, monkeypatch):
    """With the safety net taken away: every exception but those of the parser would come through."""
    from hvdgrade.submission import flags as of_flags
    from hvdlab import hints as of_hints
    from hvdlab.script_analysis.script import Script

    source = source if isinstance(source, bytes) else source.encode()
    for found in (hints(source), flags(source)):
        assert len(found) <= 20
    try:
        script = Script(source)
    except Unreadable:
        return
    of_hints.read(script)
    of_flags.read(script, source)


def test_a_source_that_is_slow_to_look_at_gets_what_was_found_and_a_flag():
    """Of a chain of assignments of many values each name may stand for each of them."""
    chain = " = ".join(f"b{i}" for i in range(6000)) + " = " + ", ".join(["hvd.rank()"] * 1500)
    source = f"import socket\nimport horovod.torch as hvd\nhvd.init()\n{chain}\n".encode()
    found = review(source[:64_000].rpartition(b",")[0], seconds=1)
    assert found.hints == [] and [flag["kind"] for flag in found.flags] == [
        "network", "literal", "literal", "unreadable",  # a long line, and thousands of names
    ]  # fmt: skip
    assert "more than 1 s" in found.flags[-1]["text"]
    usual = (ASSESSMENT / "torch" / "assessment.py").read_bytes()
    found = review(usual)
    assert (found.hints, found.flags) == (hints(usual), []) and found.hints
    assert "hvdlab.data.Batches" in found.facts.imports


@pytest.mark.slow
def test_scripts_with_random_lines_missing_or_doubled_do_not_make_it_fail():
    from hvdgrade.submission import flags as of_flags
    from hvdlab import hints as of_hints
    from hvdlab.script_analysis.script import Script

    chance, readable = random.Random(0), 0
    whole = [text.splitlines() for text in SCRIPTS.values()]
    whole += [p.read_text().splitlines() for p in (FIXTURES / "similar").glob("*.py")]
    for _ in range(300):
        lines = list(chance.choice(whole))
        for _ in range(chance.randrange(6)):
            at = chance.randrange(len(lines))
            lines[at : at + 1] = chance.choice([[], [lines[at]] * 2, [chance.choice(lines)]])
        source = "\n".join(lines).encode()
        try:
            script = Script(source)
        except Unreadable:
            continue
        readable += 1
        for hint in of_hints.read(script):
            assert hint["line"] is None or 1 <= hint["line"] <= len(lines)
        of_flags.read(script, source)
    assert readable > 50


def test_the_work_grows_with_the_length_of_a_script(monkeypatch):
    """A product of a thousand factors, whose first is an index of a thousand levels."""
    looked, one = [], Script.is_one
    monkeypatch.setattr(Script, "is_one", lambda *args: looked.append(1) or one(*args))

    def work(lines):
        looked.clear()
        line = "x = a" + "[0]" * 500 + " * a" * 500 + "\n"
        hints(f"import horovod.torch as hvd, torch\ntorch.optim.SGD()\n{line * lines}".encode())
        return len(looked)

    assert work(8) < 8.5 * work(1) < 8.5 * 50 * 2000


DEVICES = {  # (line with the mistake, lines): what a script does after hvd.init()
    "torch": (4, "torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())"),
    "torch, a variable": (5, "n = torch.cuda.device_count()\nmodel.to(hvd.local_rank() % n)"),
    "TensorFlow": (
        5,
        "gpus = tf.config.list_physical_devices('GPU')\n"
        "tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], 'GPU')",
    ),
    "rank_device": (None, "from hvdlab.torch.device import rank_device\nmine = rank_device(hvd)"),
    "by all ranks": (None, "torch.cuda.set_device(hvd.rank() % torch.cuda.device_count())"),
    "by hosts": (
        None,
        "torch.cuda.set_device(hvd.local_rank())\nx = hvd.local_rank() % len(hosts)",
    ),
    "local rank": (None, "torch.cuda.set_device(hvd.local_rank())"),
}


@pytest.mark.parametrize(("line", "text"), DEVICES.values(), ids=DEVICES)
def test_a_remainder_by_the_number_of_gpus_gets_a_hint(line, text):
    source = f"import torch\nimport horovod.torch as hvd\nhvd.init()\n{text}\nmodel.cuda()\n"
    found = [hint for hint in hints(source.encode()) if hint["topic"] == "device"]
    assert [hint["line"] for hint in found] == ([line] if line else [])
    assert all("Duplicate GPU" in hint["text"] and "rank_device" in hint["text"] for hint in found)


SERVER = """\
import horovod.torch as hvd
import torch
hvd.init()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x in loader:
    hvd.allreduce_(model.weight.grad)
    if hvd.rank() == 0:
        optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
"""
WRAP_SERVER = "optimizer = hvd.DistributedOptimizer(optimizer)\nfor x"
SEND = "    hvd.broadcast_parameters(model.state_dict(), root_rank=0)\n"


@pytest.mark.parametrize(
    "old, new, hangs",
    [
        ("", "", False),
        ("for x", WRAP_SERVER, True),  # every rank waits in the step of such an optimizer
        (SEND, SEND.strip() + "\n", True),  # once, below the loop
    ],
)
def test_a_parameter_server_may_step_on_one_rank(old, new, hangs):
    assert ("hang" in topics(SERVER.replace(old, new) if old else SERVER)) == hangs


CALLBACKS = """\
import os
os.environ["TF_USE_LEGACY_KERAS"] = "1"
import horovod.tensorflow.keras as hvd
import tensorflow as tf
hvd.callbacks.K = tf.keras.backend
warmup = hvd.callbacks.LearningRateWarmupCallback(0.1, momentum_correction=False)
optimizer = tf.keras.optimizers.SGD(0.1)
"""


@pytest.mark.parametrize(
    "old, new, line",
    [
        ("", "", None),
        ("hvd.callbacks.K = tf.keras.backend", "pass", 6),
        (", momentum_correction=False", "", 6),
        (
            ", momentum_correction=False)\noptimizer = tf.keras.optimizers",
            ")\noptimizer = legacy",
            None,
        ),
        (
            ", momentum_correction=False)\noptimizer = tf.keras.optimizers.SGD",
            ")\noptimizer = tf.keras.optimizers.RMSprop",
            6,
        ),
        (
            ", momentum_correction=False)\noptimizer = tf.keras.optimizers.SGD",
            ")\noptimizer = tf.keras.optimizers.Adam",
            None,
        ),
        ('os.environ["TF_USE_LEGACY_KERAS"] = "1"', "", None),
    ],
)
def test_a_callback_that_fails_under_legacy_keras_is_named(old, new, line):
    found = failing_callback(Script(CALLBACKS.replace(old, new, 1).encode()))
    assert (found and found[0]) == line


@pytest.mark.parametrize(
    "loop, text",
    [("fit", "BroadcastGlobal"), ("GradientTape", "broadcast_variables(model.variables")],
)
def test_the_advice_is_for_fit_or_for_a_tape(loop, text):
    source = (
        f"import hvdlab.keras.horovod as hvd\nimport keras\nkeras.optimizers.SGD(0.1)\nx.{loop}()\n"
    )
    assert text in next(h["text"] for h in hints(source.encode()) if h["topic"] == "broadcast")
