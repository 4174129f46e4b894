"""What the watch puts into a script changes no result, and it asks what a stop depends on."""

import ast
import contextlib
import types

import pytest

from hvdlab.check import instrument
from hvdlab.script_analysis import decisions


def test_instrumenting_changes_no_result_and_no_line():
    source = """\
best, out = 9, []
for i in range(5):
    value = abs(i - 3)
    best = value if value < best else best
    if best == 0 and i > 2:
        break
    out.append((i, best))
else:
    out.append("else")
while len(out) < 9:
    out.append(0)
if best:
    size = 1
else:
    size = hvd.size
rank = hvd.rank()
own = out[rank::2]
parts = [out[:2], out[2:]]
mine, first = parts[rank], out[:rank]
"""

    class Watch:
        seen = []

        def each(self, line, items):
            self.seen.append(("each", line))
            return items

        @contextlib.contextmanager
        def rounds(self, line):
            self.seen.append(("rounds", line))
            yield self

        def again(self, test):
            return test

        def decide(self, line, text, value):
            self.seen.append((line, text))
            return value

        def whole(self, line, value):
            self.seen.append(("whole", line))
            return value

        def part(self, line, value, *bounds):
            self.seen.append(("part", line, *bounds))
            return value[slice(*bounds)]

    hvd = types.SimpleNamespace(size=2, rank=lambda: 1)
    plain, watched = {"hvd": hvd}, {instrument.WATCH: Watch(), "hvd": hvd}
    _run(compile(source, "script", "exec"), plain)
    _run(compile(instrument.instrument(source, "script"), "script", "exec"), watched)
    assert watched["out"] == plain["out"] and watched["size"] == plain["size"]
    assert all(watched[name] == plain[name] for name in ("own", "mine", "first"))
    assert ("part", 17, 1, None, 2) in Watch.seen and ("whole", 19) in Watch.seen
    assert ("each", 2) in Watch.seen and ("rounds", 10) in Watch.seen
    assert {(5, "best"), (5, "value"), (5, "i")} <= set(Watch.seen)


def test_a_stop_that_rank_0_tells_the_others_is_not_its_own():
    """What is decided under a test of the rank, and then broadcast, is no rank's own decision."""
    source = """\
for epoch in range(9):
    stop = False
    if hvd.rank() == 0:
        stop = loss < 0.1
    stop = hvd.broadcast_object(stop)
    if stop:
        break
    if patience(loss) and best > 1:
        break
"""
    found = decisions.operands(ast.parse(source))
    assert sorted(ast.unparse(part) for part, line in found) == ["best", "loss", "stop"]
    assert dict((ast.unparse(part), line) for part, line in found)["loss"] == 8


def test_what_the_ranks_agreed_on_in_a_function_is_not_their_own():
    source = """\
def agree(wish):
    return hvd.broadcast_object(wish)
for epoch in range(9):
    stop = False
    if loss < 0.1:
        stop = True
    stop = agree(stop)
    if stop:
        break
"""
    assert [ast.unparse(part) for part, _ in decisions.operands(ast.parse(source))] == ["stop"]


@pytest.mark.parametrize(
    ("test", "asked"),
    [
        ("hvd.allreduce(wish)", "hvd.allreduce(wish)"),
        ("float(hvd.allreduce(wish))", "hvd.allreduce(wish)"),
        ("hvd.allreduce(wish).item()", "hvd.allreduce(wish).item()"),
        ("agree(wish)", "agree(wish)"),
        ("stopper(*wishes)", "stopper(*wishes)"),
        ("stopper(value, *more)", "value"),
        ("np.mean(losses) > 0", "np.mean(losses)"),  # the arguments of a call may be no numbers
        ("float(hvd.allreduce(wish)) > 0", "float(hvd.allreduce(wish))"),
    ],
)
def test_a_stop_asks_for_what_a_collective_says_not_for_what_it_is_told(test, asked):
    source = f"""\
def agree(wish):
    return hvd.broadcast_object(wish)
for epoch in range(9):
    if loss < best:
        wish = 1
    if {test} or mine > 3:
        break
"""
    found = [ast.unparse(part) for part, _ in decisions.operands(ast.parse(source))]
    assert found == [asked, "mine"]


def test_a_stop_depends_on_nothing_around_its_loop_or_in_a_function_in_it():
    source = """\
if mode > 1:
    for epoch in range(9):
        best = loss
        def near(value):
            if value > 3:
                return 1
        if best < 1:
            break
"""
    assert [ast.unparse(part) for part, _ in decisions.operands(ast.parse(source))] == ["best"]


def test_what_cannot_be_wrapped_is_left_as_it_is():
    source = """\
for i in trange(3):
    pass
for part in iter(read, b""):
    pass
for node in tree.iter("a"):
    pass
def cycle(loader):
    while True:
        for batch in loader:
            yield batch
"""
    text = ast.unparse(instrument.instrument(source, "script"))
    for iterable in ("trange(3)", "iter(read, b'')", "tree.iter('a')"):
        assert f", {iterable}):" in text
    assert "while True:" in text and "in loader:" in text


def test_an_error_code_ends_all_ranks_and_is_no_stop():
    source = "for x in data:\n    if isnan(loss):\n        sys.exit({})\n"
    assert [line for _, line in decisions.operands(ast.parse(source.format(0)))] == [2]
    assert decisions.operands(ast.parse(source.format(1))) == []
    assert decisions.operands(ast.parse(source.format("'loss is nan'"))) == []


def test_a_generator_decides_nothing():
    source = "def rows():\n    while len(found) < 9:\n        yield found\n"
    assert decisions.operands(ast.parse(source)) == []


def _run(code, names):
    types.FunctionType(code, names)()


@pytest.mark.parametrize(
    "body, asked",
    [
        ("if loss > 9: continue\n    optimizer.step()", ["loss"]),
        ("optimizer.step()\n    if loss > 9: continue", []),
        ("if loss > 9: continue\n    print(loss)", []),
        ("if hvd.rank() > 0: continue\n    optimizer.step()", []),
        ("if loss < 9: optimizer.step()", ["loss"]),
        ("if loss < 9: optimizer.step()\n    else: fast.step()", []),
        ("if loss < 9:\n        hvd.allreduce(loss)", ["loss"]),
        ("if scaler is not None: optimizer.step()", ["scaler is not None"]),
        ("if isinstance(loss, Tensor): optimizer.step()", ["isinstance(loss, Tensor)"]),
        ("if loss < 9: print(loss)", []),
        ("if loss > 9: continue\n    train(batch)\ndef train(x): optimizer.step()", ["loss"]),
        ("if loss > 9: continue\n    show(batch)\ndef show(x): print(x)", []),
        ("if loss < 9: self.best = loss\n    if self.plan: optimizer.step()", ["self.plan"]),
        ("if loss < 9: self.plan = 1\n    if self.plan: optimizer.step()", ["self.plan", "loss"]),
    ],
)
def test_what_makes_a_step_or_leaves_a_round_before_it_is_a_decision(body, asked):
    found = decisions.operands(ast.parse(f"for batch in data:\n    {body}"))
    assert [ast.unparse(part) for part, line in found] == asked


def test_the_text_for_autograph_has_the_decisions_in_the_same_lines():
    source = """\
def train(data):
    for größe in data:
        if (größe + loss(größe) >
                best["größe"]) and 3 < best["ß"]: optimizer.step()
"""
    lines = instrument.with_decisions(source.encode())
    assert [line.count("__hvdlab__.decide(3") for line in lines] == [0, 0, 1, 2]
    asked = []
    watched = types.SimpleNamespace(decide=lambda line, text, value: asked.append(text) or value)
    steps = []
    names = {
        "__hvdlab__": watched,
        "loss": lambda x: 2 * x,
        "best": {"größe": 4, "ß": 5},
        "optimizer": types.SimpleNamespace(step=lambda: steps.append(1)),
    }
    exec("".join(lines), names)
    names["train"]([1, 2])
    first = ["größe + loss(größe)", "best['größe']"]
    assert asked == [*first, *first, "best['ß']"] and steps == [1]
