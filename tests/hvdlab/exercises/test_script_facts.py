"""What lab 5 reads in a learner's script: right in many ways, and not talked into what is wrong."""

import pytest

from hvdlab.exercises.harness import script_facts
from hvdlab.script_analysis.script import Script

MAIN = """\
import horovod.torch as hvd
from hvdlab.data import Batches
{helper}

def main(rank=0, size=1):
    hvd.init()
    batches = Batches(images, labels, 32, rank=hvd.rank(), size=hvd.size())
    optimizer = hvd.DistributedOptimizer(SGD(args.lr * hvd.size()))
    if hvd.rank() == 0:
        print(f"{{hvd.rank()}} of {{hvd.size()}}")
    {body}
"""
WHERE = "def where():\n    hvd.init()\n    return hvd.rank(), hvd.size()\n"
ENV = (
    "class Env:\n    def __init__(self, rank, size):\n        self.rank, self.size = rank, size\n\n"
    "    def part(self, images):\n        return {}\n"
)
DATACLASS = "@dataclass\nclass Env:\n    mine: int\n    of: int\n"
SAMPLER = "class Sampler(DistributedSampler):\n    drop_last = True\n"
HANDED = "def evaluate(model, parts, mine):\n    return accuracy(model, parts[mine])\n"
DEAL = (
    "def deal(images):\n    return Batches(images, labels, 32, rank=hvd.rank(), size=hvd.size())\n"
)


def script(body, helper=""):
    return Script(MAIN.format(body=body, helper=helper).encode())


@pytest.mark.parametrize(
    ("body", "helper"),
    [
        ("mine = heldout[hvd.rank() :: hvd.size()]", ""),
        ("parts = np.array_split(heldout, hvd.size()); mine = parts[hvd.rank()]", ""),
        ("each = math.ceil(n / hvd.size()); mine = heldout[hvd.rank() * each :][:each]", ""),
        ("mine = heldout[np.arange(n) % hvd.size() == hvd.rank()]", ""),
        ("mine = [x for i, x in enumerate(np.split(heldout, hvd.size())) if i == hvd.rank()]", ""),
        ("mine = DistributedSampler(heldout, num_replicas=hvd.size(), rank=hvd.rank())", ""),
        ("mine = Batches(heldout, labels, 32, rank=hvd.rank(), size=hvd.size())", ""),
        ("begin = 0; begin += math.ceil(n / hvd.size()) * hvd.rank(); mine = heldout[begin:]", ""),
        ("rank, size = where(); mine = heldout[rank::size]", WHERE),
        ("env = Env(hvd.rank(), hvd.size()); mine = heldout[env.rank :: env.size]", ENV),
        ("Env(hvd.rank(), hvd.size())", ENV.format("images[self.rank :: self.size]")),
        ("env = Env(hvd.rank(), of=hvd.size()); mine = heldout[env.mine :: env.of]", DATACLASS),
        ("evaluate(model, np.array_split(heldout, hvd.size()), hvd.rank())", HANDED),
        ("super().__init__(heldout, num_replicas=hvd.size(), rank=hvd.rank())", ENV),
        ("deal(heldout, rank=hvd.rank(), num=hvd.size())", "def deal(*x, **y):\n    f(*x, **y)\n"),
        ("Sampler(heldout, rank=hvd.rank(), num=hvd.size())", SAMPLER),
        ("Env(hvd.rank(), hvd.size())", f"{ENV}\n{ENV}"),
    ],
)
def test_many_ways_divide_the_heldout_images(body, helper):
    assert script_facts.divides_beside_batches(script(body, helper))


def test_batches_that_a_function_makes_twice_are_also_of_the_heldout_images():
    made = "batches = Batches(images, labels, 32, rank=hvd.rank(), size=hvd.size())"
    text = MAIN.format(body="mine = deal(heldout)", helper=DEAL)
    once = text.replace(f"    {made}\n", "")
    twice = text.replace(made, "batches = deal(images)")
    assert script_facts.divides_beside_batches(Script(twice.encode()))
    assert not script_facts.divides_beside_batches(Script(once.encode()))


@pytest.mark.parametrize(
    ("body", "helper"),
    [
        ("pass", ""),
        ('logging.info("%d of %d", hvd.rank(), hvd.size())', ""),
        ('logging.getLogger().warning("%d of %d", hvd.rank(), hvd.size())', ""),
        ('print("{} of {}".format(hvd.rank(), hvd.size()))', ""),
        ("world = dict(rank=hvd.rank(), size=hvd.size())", ""),
        ("main(hvd.rank(), hvd.size())", ""),
        ("sys.exit(main(hvd.rank(), hvd.size()))", ""),
        ("accuracy = round(main(hvd.rank(), hvd.size()), 3)", ""),
        ("rank, size = where(); rate = scaled(args.lr * size)", WHERE),
        ("env = Env(hvd.rank(), hvd.size()); rate = scaled(args.lr * env.size)", ENV),
        ("env = Env(hvd.rank(), hvd.size()); rate = scaled(args.lr * env.of)", DATACLASS),
        ("env = Env(hvd.rank(), hvd.size()); env.part(heldout)", ENV),
        ("score(batches)", ""),
    ],
)
def test_what_merely_takes_rank_and_size_divides_nothing(body, helper):
    assert not script_facts.divides_beside_batches(script(body, helper))


@pytest.mark.parametrize(
    ("body", "helper"),
    [
        ("torch.cuda.set_device(hvd.local_rank())", ""),
        (
            'tf.config.set_visible_devices(my_gpu(gpus), "GPU")',
            "def my_gpu(gpus):\n    return gpus[hvd.local_rank() % len(gpus)]\n",
        ),
        ("torch.cuda.set_device(env.local)", ENV + "        self.local = hvd.local_rank()\n"),
        ("choose(hvd.local_rank())", "def choose(gpu):\n    torch.cuda.set_device(gpu)\n"),
        (
            "for i, gpu in enumerate(gpus):\n        if i == hvd.local_rank():\n"
            '            tf.config.set_visible_devices(gpu, "GPU")',
            "",
        ),
        (
            "for i, gpu in enumerate(gpus):\n        if i != hvd.local_rank():\n"
            '            continue\n        tf.config.set_visible_devices(gpu, "GPU")',
            "",
        ),
        ('os.environ["CUDA_VISIBLE_DEVICES"] = str(hvd.local_rank())', ""),
        ("os.environ.update(CUDA_VISIBLE_DEVICES=str(hvd.local_rank()))", ""),
        ('os.environ.update({"CUDA_VISIBLE_DEVICES": str(hvd.local_rank())})', ""),
        ('os.environ.setdefault("CUDA_VISIBLE_DEVICES", str(hvd.local_rank()))', ""),
    ],
)
def test_many_ways_choose_a_device(body, helper):
    assert script_facts.chooses_device_by_local_rank(script(body, helper))


@pytest.mark.parametrize(
    ("body", "helper"),
    [
        ("local = hvd.local_rank(); torch.cuda.set_device(0)", ""),
        ("if hvd.local_rank() == 0:\n        print(1)\n    torch.cuda.set_device(0)", ""),
        ("torch.cuda.set_device(first(hvd.local_rank()))", "def first(local):\n    return 0\n"),
        (
            "for x in heldout:\n        x.to(device)\n        if hvd.local_rank() == 0:\n"
            "            print(x)",
            "",
        ),
        ('os.environ.update(OMP_NUM_THREADS="1", PLACE=str(hvd.local_rank()))', ""),
        ('os.environ.setdefault("PLACE", str(hvd.local_rank()))', ""),
    ],
)
def test_a_local_rank_beside_the_device_chooses_none(body, helper):
    assert not script_facts.chooses_device_by_local_rank(script(body, helper))
