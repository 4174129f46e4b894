"""What a script's source says: who runs a line, which GPU it takes, when a loop ends."""

import pytest

from hvdlab.check.static import read


def test_what_only_some_ranks_reach_is_guarded(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        """\
first = hvd.rank() == 0
if first:
    torch.save(a, "a.pt")
def save():
    torch.save(b, "b.pt")
if first and epoch == 3:
    save()
def log():
    if not first:
        return
    torch.save(c, "c.pt")
log()
torch.save(d, f"{hvd.rank()}.pt")
torch.save(e, "e.pt")
with FileLock("lock"):
    data = MNIST(".", download=True)
data = MNIST(".", download=True)
if first:
    handle = hvd.allreduce_async(a)
"""
    )
    found = read(path)
    assert found.saves == [14]
    assert found.downloads == [17]
    assert found.guarded[19] == 18


@pytest.mark.parametrize(
    "text",
    [
        "rank, size = hvd.rank(), hvd.size()\nif rank == 0:\n    {}",
        "def main(rank):\n    if rank == 0:\n        {}",
        "verbose = 1 if hvd.rank() == 0 else 0\nif verbose:\n    {}",
        "def is_first():\n    return hvd.rank() == 0\nif is_first():\n    {}",
        "from mine import is_main_process\nif is_main_process():\n    {}",
        "for epoch in range(9):\n    if hvd.rank() != 0:\n        continue\n    {}",
        "path = f'model-{{hvd.rank()}}.pt'\n{}",
        "path = Path('model-%d.pt' % hvd.rank())\n{}",
        "if hvd.local_rank() != 0:\n    hvd.barrier()\n{}\nif hvd.local_rank() == 0:\n    hvd.barrier()",
    ],
)
def test_a_line_for_one_rank_is_known_as_that(tmp_path, text):
    script = tmp_path / "script.py"
    script.write_text(text.format("torch.save(state, path); MNIST(path, download=True)"))
    found = read(script)
    assert (found.saves, found.downloads) == ([], [])


@pytest.mark.parametrize(
    "text, saves",
    [
        ("def test():\n    torch.save(a, p)\ndef test():\n    torch.save(b, p)\ntest()", [4]),
        ("def save():\n    torch.save(a, p)", []),  # no line calls it
        ("def save():\n    torch.save(a, p)\nrun(save)", [2]),
        ("def main():\n    def save():\n        torch.save(a, p)\n    save()\nmain()", [3]),
        ("class A:\n    def save(self):\n        torch.save(a, p)", [3]),  # a library calls it
        ("keep = ModelCheckpoint(p)\nif hvd.rank() == 0:\n    callbacks.append(keep)", []),
        ("keep = ModelCheckpoint(p)\nmodel.fit(x, callbacks=[keep])", [1]),
        ("keep = ModelCheckpoint(p)\nmodel.fit(x, callbacks=[])", []),
        ("keep = tf.train.Checkpoint(model=m)\nkeep.save(p)", [2]),
        ("keep = tf.train.CheckpointManager(c, p, 3)\nif hvd.rank() == 0:\n    keep.save()", []),
        ("figure = plt.figure()\nfigure.save(p)", []),
    ],
)
def test_a_save_counts_if_a_line_reaches_it(tmp_path, text, saves):
    (tmp_path / "script.py").write_text(text)
    assert read(tmp_path / "script.py").saves == saves


LOAD = "def load():\n    return MNIST(p, download=True)\n"


@pytest.mark.parametrize(
    "text, downloads",
    [
        ("import keras\nmnist = keras.datasets.mnist\nmnist.load_data()", [3]),
        ("import keras\nkeras.datasets.mnist.load_data()", [2]),
        ("mnist = mine.mnist\nmnist.load_data()", []),
        ("data = MNIST(p, download=True)\nif hvd.rank() == 0:\n    evaluate(data)", [1]),
        # One rank of each machine downloads first.
        (f"{LOAD}if hvd.local_rank() == 0:\n    load()\nhvd.barrier()\ndata = load()", []),
        (f"{LOAD}data = load()", [2]),
    ],
)
def test_a_download_is_known_by_the_module_of_its_function(tmp_path, text, downloads):
    (tmp_path / "script.py").write_text(text)
    assert read(tmp_path / "script.py").downloads == downloads


METHOD = "class Job:\n def {}(self):\n  torch.save(self, 'job.pt')\n{}"


@pytest.mark.parametrize(
    "name, use, saves",
    [
        ("keep", "Job()", []),
        ("keep", "Job().keep()", [3]),
        ("keep", "run(Job().keep)", [3]),
        ("on_epoch_end", "Job()", [3]),  # a framework calls it
        ("forward", "Job()", [3]),
    ],
)
def test_a_method_that_nobody_calls_saves_nothing(tmp_path, name, use, saves):
    (tmp_path / "script.py").write_text(METHOD.format(name, use))
    assert read(tmp_path / "script.py").saves == saves


@pytest.mark.parametrize(
    "text, pin",
    [
        ("torch.cuda.set_device(hvd.local_rank())", "local_rank"),
        ("torch.device('cuda', hvd.local_rank())", "local_rank"),
        ("torch.device('cuda:%d' % hvd.local_rank())", "local_rank"),
        ("mine = hvd.local_rank()\nmodel.cuda(mine)", "local_rank"),
        ("rank, mine = hvd.rank(), hvd.local_rank()\nmodel.to(mine)", "local_rank"),
        ("gpu = gpus[hvd.local_rank()]\ntf.config.set_visible_devices(gpu, 'GPU')", "local_rank"),
        (
            "os.environ['CUDA_VISIBLE_DEVICES'] = os.environ['OMPI_COMM_WORLD_LOCAL_RANK']",
            "local_rank",
        ),
        ("torch.cuda.set_device(hvd.rank() % torch.cuda.device_count())", "local_rank"),
        ("torch.cuda.set_device(hvd.rank())", "rank"),
        ("mine = hvd.rank()\nmodel.to(f'cuda:{mine}')", "rank"),
        ("model.cuda()\nif hvd.local_rank() == 0:\n    download()", ""),
        ("model.to('cuda')\nprint(hvd.rank())", ""),
    ],
)
def test_by_what_a_device_is_chosen(tmp_path, text, pin):
    (tmp_path / "script.py").write_text(text)
    assert read(tmp_path / "script.py").pin == pin


@pytest.mark.parametrize("which, line", [("[]", None), ("gpus[0]", 1)])
def test_a_script_that_switches_gpus_off_uses_none(tmp_path, which, line):
    (tmp_path / "script.py").write_text(f"tf.config.set_visible_devices({which}, 'GPU')")
    assert read(tmp_path / "script.py").gpu == line


@pytest.mark.parametrize(
    "test, counted", [("i == steps", {1}), ("i >= 8 or late", {1}), ("loss < best", set())]
)
def test_a_loop_that_counts_its_batches_is_known(tmp_path, test, counted):
    script = tmp_path / "script.py"
    script.write_text(
        f"for i, x in enumerate(loader):\n    if {test}:\n        break\n    train(x)\n"
    )
    assert read(script).counted == counted
