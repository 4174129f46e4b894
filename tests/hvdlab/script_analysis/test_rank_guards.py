"""Which lines of a script only some ranks reach, read from its source."""

import pytest

from hvdlab.script_analysis.rank_guards import Guards
from hvdlab.script_analysis.script import Script

BEGIN = "import torch\nimport horovod.torch as hvd\nhvd.init()\n"


def guarded(text, **kind):
    """For each call of mark() in a script: whether it stands under a test of the rank."""
    sites = kind.pop("sites", all)
    script = Script((BEGIN + text).encode())
    guards = Guards(script, **kind)
    return [guards.test(call, sites) is not None for call in script.named("mark")]


SOME = {
    "test": "if hvd.rank() == 0:\n    mark()",
    "else": "if hvd.rank() == 0:\n    pass\nelse:\n    mark()",
    "expression": "x = mark() if hvd.rank() == 0 else None",
    "and": "hvd.rank() == 0 and mark()",
    "loop": "while hvd.local_rank() == 0:\n    mark()",
    "variable": "first = hvd.rank() == 0\nverbose = 1 if first else 0\nif verbose:\n    mark()",
    "unpacked": "rank, size = hvd.rank(), hvd.size()\nif not rank:\n    mark()",
    "list": "[rank, size] = [hvd.rank(), hvd.size()]\nif not rank:\n    mark()",
    "environment": "import os\nif os.environ['RANK'] == '0':\n    mark()",
    "attribute": "class A:\n    def __init__(self, r):\n        self.r = r\n"
    "    def f(self):\n        if self.r == 0:\n            mark()\nA(hvd.rank()).f()",
    "argument": "def main(r):\n    if r == 0:\n        mark()\nmain(hvd.rank())",
    "named argument": "def main(*, r):\n    if r == 0:\n        mark()\nmain(r=hvd.rank())",
    "inner function": "def main(r):\n"
    "    def f():\n        if r:\n            mark()\n    f()\nmain(hvd.rank())",
    "result": "def zero():\n    return hvd.rank() == 0\nfirst = zero()\nif first:\n    mark()",
    "method's result": "class A:\n    def zero(self):\n        return hvd.rank() == 0\n"
    "    def f(self):\n        if self.zero():\n            mark()\nA().f()",
    "return": "def f():\n    if hvd.rank() != 0:\n        return\n    mark()\nf()",
    "return in an else": "def f():\n    if hvd.size() == 1:\n        pass\n    else:\n"
    "        if hvd.rank() != 0:\n            return\n        mark()\nf()",
    "continue": "for i in range(9):\n    if hvd.rank() != 0:\n        continue\n    mark()",
    "is true": "first = hvd.rank() == 0\nif first is True:\n    mark()",
    "in a list": "if 0 in [hvd.rank()]:\n    mark()",
    "function": "def f():\n    mark()\nif hvd.rank() == 0:\n    f()",
    "function of a known name": "def save():\n    mark()\ntorch.save(1)\nif hvd.rank() == 0:\n    save()",
    "function of a function": "def g():\n    mark()\ndef f():\n    g()\nif hvd.rank() == 0:\n    f()",
    "method": "class A:\n    def save(self):\n        mark()\n"
    "a = A()\ntorch.save(1)\nif hvd.rank() == 0:\n    a.save()",
    "class": "class A:\n    def on_epoch_end(self):\n        mark()\nif hvd.rank() == 0:\n    A()",
    "a field": "from types import SimpleNamespace\nc = SimpleNamespace(main=hvd.rank() == 0)\n"
    "if c.main:\n    mark()",
    "a field by its place": "class C(NamedTuple):\n    size: int\n    main: bool\n"
    "c = C(hvd.size(), hvd.rank() == 0)\nif c.main:\n    mark()",
    "an item": "c = {'main': hvd.rank() == 0}\nif c['main']:\n    mark()",
    "an item later": "c = {}\nc['main'] = hvd.rank() == 0\nif c['main']:\n    mark()",
    "constants": "if hvd.rank() == 0:\n    loud = True\nelse:\n    loud = False\nif loud:\n    mark()",
    "a constant": "loud = 0\nif hvd.rank() == 0:\n    loud = 1\nif loud:\n    mark()",
    "constant results": "def loud():\n    if hvd.rank():\n        return False\n    return True\n"
    "if loud():\n    mark()",
    "text": "name = f'rank {hvd.rank()}'\nif name == 'rank 0':\n    mark()",
}  # fmt: skip


@pytest.mark.parametrize("text", SOME.values(), ids=SOME)
def test_what_only_some_ranks_reach(text):
    """With names that say nothing of ranks, so that only what the script does with them counts."""
    assert guarded(text, by_name=False) == [True]


ALL = {
    "no test": "mark()",
    "in the test": "if mark() and hvd.rank() == 0:\n    pass",
    "in the first of two tests": "hvd.rank() == mark() and done",
    "another test": "if hvd.size() > 1:\n    mark()",
    "a share of the data": "mine = images[hvd.rank() :: hvd.size()]\nif len(mine):\n    mark()",
    "an object that knows its rank": "b = Batches(rank=hvd.rank())\nif b:\n    mark()",
    "before the return": "def f():\n    mark()\n    if hvd.rank() != 0:\n        return\nf()",
    "both": "def f():\n    mark()\nif hvd.rank() == 0:\n    f()\nelse:\n    pass\nf()",
    "another function's argument": "def f(i):\n    return i\nf(hvd.rank())\n"
    "for i in range(9):\n    if i == 3:\n        mark()",
    "started by mpirun": "import os, sys\nif os.environ.get('OMPI_COMM_WORLD_RANK') is None:\n"
    "    sys.exit('use mpirun')\nmark()",
    "started by something": "import os, sys\nif not os.getenv('RANK') and 'PMI_RANK' not in os.environ:\n"
    "    sys.exit('use mpirun')\nmark()",
    "a device": "device = f'cuda:{hvd.local_rank()}' if torch.cuda.is_available() else 'cpu'\n"
    "if device != 'cpu':\n    mark()",
    "a kind of device": "device = torch.device(f'cuda:{hvd.local_rank()}')\n"
    "if device.type == 'cuda':\n    mark()",
    "the start of a device's name": "device = f'cuda:{hvd.local_rank()}'\n"
    "if device.startswith('cuda'):\n    mark()",
    "a name that counts again": "i = hvd.rank()\nfor i, x in enumerate(loader):\n    if i % 9 == 0:\n"
    "        mark()",
    "agreed on": "stop = False\nif hvd.rank() == 0:\n    stop = True\n"
    "stop = hvd.broadcast_object(stop)\nif stop:\n    mark()",
    "a constant of all": "is_main = True\nif is_main:\n    mark()",
    "another rank": "def f(lora_rank):\n    if lora_rank:\n        mark()\nf(8)",
    "the first batch": "def f(is_first_batch):\n    if is_first_batch:\n        mark()",
    "two functions of a name": "class A:\n    def f(self, r):\n        if r:\n            mark()\n"
    "class B:\n    def f(self, r):\n        pass\nB().f(hvd.rank())",
}  # fmt: skip


@pytest.mark.parametrize("text", ALL.values(), ids=ALL)
def test_what_all_ranks_reach(text):
    assert guarded(text) == [False]


def test_a_function_that_each_rank_calls_in_its_own_branch_is_called_by_all():
    text = "def f():\n    mark()\nif hvd.rank() == 0:\n    print(f())\nelse:\n    f()"
    assert guarded(text, sites=any) == [False]
    assert guarded(text.replace("else", "if hvd.local_rank() == 0"), sites=any) == [True]
    cases = "match hvd.rank():\n    case 0:\n        f()\n    case _:\n        f()"
    assert guarded(f"def f():\n    mark()\n{cases}", sites=any) == [False]
    for other in ("if hvd.rank() != 0", "if not hvd.rank() == 0"):
        assert guarded(text.replace("else", other), sites=any) == [False]


def test_any_or_all_calls_of_a_function():
    text = "def f():\n    mark()\nf()\nif hvd.rank() == 0:\n    f()"
    assert guarded(text, sites=any) == [True] and guarded(text, sites=all) == [False]


@pytest.mark.parametrize(
    "text",
    [
        "def main(rank):\n    if rank == 0:\n        mark()",
        "from mine import is_main_process\nif is_main_process():\n    mark()",
        "from mine import rank_zero_only\n@rank_zero_only\ndef f():\n    mark()\nf()",
    ],
)
def test_a_name_tells_a_rank_where_that_is_asked_for(text):
    assert guarded(text) == [True] and guarded(text, by_name=False) == [False]


def test_the_work_grows_with_the_length_of_a_script(monkeypatch):
    """Functions that call each other ten times, and many of one name."""
    looked, one = [], Script.is_one
    monkeypatch.setattr(Script, "is_one", lambda *args: looked.append(1) or one(*args))

    def work(functions):
        looked.clear()
        text = "".join(f"def f{i}(a):\n" + f"    f{i + 1}(a)\n" * 10 for i in range(functions))
        text += f"def f{functions}(a):\n    mark()\n" * functions
        guarded(text + "rank = hvd.rank()\nif rank:\n    f0(rank)")
        return len(looked)

    assert work(80) < 9 * work(10)
