"""What is read from the source of a script and of its modules."""

from pathlib import Path

import pytest

from hvdlab.check import places, static


def read(text, **modules):
    Path("script.py").write_text(text, encoding="utf-8")
    for name, source in modules.items():
        path = Path(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return static.read(Path("script.py"))


def test_the_modules_in_its_folder_belong_to_the_script():
    facts = read(
        "import horovod.torch as hvd\nfrom mine import train\nimport other.part, json\n",
        mine="import torch\nif torch.cuda.is_available():\n    torch.cuda.set_device(0)\n",
        other__part="import further\n",
        further="import horovod.torch as hvd\nif hvd.rank == 0:\n    pass\n",
        unused="import horovod.torch as hvd\nhvd.allreduce(x)\nprint(x)\n",
    )
    assert facts.horovod == 1 and facts.discarded is None
    assert facts.gpu == places.block("mine.py") + 3
    assert facts.uncalled == places.block("further.py") + 2


def test_a_module_that_python_cannot_read_is_left_to_the_run():
    assert read("import mine\n", mine="def (:\n").horovod is None


@pytest.mark.parametrize("module", ["mine.py", "other/part.py"])
def test_a_line_of_a_module_is_a_number_that_names_its_file(module):
    block = places.block(module)
    where = places.Places({block: module})
    assert (where.file(block + 12), where.number(block + 12)) == (module, 12)
    assert (where.file(12), where.number(12), where.number(None)) == (None, 12, None)
    assert where.text(f"See line {block + 3} and line 4.") == f"See line 3 of {module} and line 4."
