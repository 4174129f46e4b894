"""The power of the number of ranks in a learning rate, read from a script's source."""

import pytest

from hvdlab.script_analysis.rate_scaling import rates
from hvdlab.script_analysis.script import Script

STEPS = "steps = 3 * (len(x) // (16 * hvd.size()))\n"  # fewer, the more ranks
RAMP = "def ramp(t): return 0.1 * hvd.size() * min(1, (t + 1) / steps)\n"


@pytest.mark.parametrize(
    "rate, more, power",
    [
        ("0.1 * hvd.size()", "", 1),
        ("0.1", "", 0),
        ("rate", "rate = 0.1 * size\nsize = hvd.size()", 1),
        ("args.lr * math.sqrt(hvd.size())", "", 0.5),
        ("args.lr", "args.lr *= hvd.size()", 1),
        (
            "0.1 * hvd.size()",
            "def ramp(n):\n def scale(t): return 1 / n * (t * (n - 1) / 5 + 1)\n return scale\n"
            "LambdaLR(o, ramp(hvd.size()))",
            1,
        ),
        ("c", "cfg.base_lr = cfg.optimizer.lr\ncfg.optimizer.lr *= hvd.size()", 1),
        (
            "0.1 * hvd.size()",
            "def train(scale): LambdaLR(o, scale)\nscale = new(8)\ntrain(scale)",
            1,
        ),
        ("args.lr", "args.lr = args.lr * hvd.size()", 1),
        ("lr", "lr = 0.1 * hvd.size()\nlr = min(lr, 0.2 * hvd.size())", 1),
        ("args.lr", "args.lr = args.lr * hvd.size()\nargs.lr = args.lr * hvd.size()", 2),
        (
            "0.1 * hvd.size()",
            "scale = schedule(hvd.size())\nLambdaLR(o, scale)",
            1,
        ),  # of another file
        ("0.1 * hvd.size() if big else 0.1", "", 1),
        # The rate that the optimizer has is scaled again.
        ("0.1 * hvd.size()", "g['lr'] = g['initial_lr'] * hvd.size()", 2),
        ("0.1 * hvd.size()", "base = o.param_groups[0]['lr']\ng['lr'] = base * hvd.size()", 2),
        ("0.1 * hvd.size()", "def up(t): return t * hvd.size()\nLambdaLR(o, lr_lambda=up)", 2),
        ("0.1", "base = o.param_groups[0]['lr']\ng['lr'] = base * hvd.size()", 1),
        ("0.1 * hvd.size()", "g['lr'] = args.lr * hvd.size() * 0.1", 1),
        ("0.1 * hvd.size()", "for group in optimizer.param_groups: group['lr'] *= hvd.size()", 2),
        ("0.1 * hvd.size()", "LambdaLR(o, lambda t: min(1, t / 100) / hvd.size())", 1),
        ("0.1 * hvd.size()", "LambdaLR(o, lambda t: hvd.size() * t)", 2),
        ("0.1 * hvd.size()", "OneCycleLR(o, max_lr=0.1)", 0),  # it replaces the rate
        ("0.1 * hvd.size()", "OneCycleLR(o, max_lr=args.max_lr)", 0),
        ("0.1 * hvd.size()", "OneCycleLR(o, 0.1 * hvd.size())", 1),
        ("0.1 * hvd.size()", "CyclicLR(o, 0.01, 0.1)", 0),
        ("0.1 * hvd.size()", "if args.cycle: OneCycleLR(o, max_lr=0.1)", 1),
        ("0.1", "BroadcastGlobalVariablesCallback(hvd.size())", 0),  # its argument is no rate
        ("0.1", "LearningRateWarmupCallback(0.1 * hvd.size())", 1),
        ("0.1 * hvd.size()", "LearningRateWarmupCallback(initial_lr=0.1)", 0),
        ("0.1 * hvd.size()", "LearningRateWarmupCallback(initial_lr=float(o.learning_rate))", 1),
        ("rate()", "def rate(): return 0.1 * hvd.size()", 1),
        ("0.1 * hvd.size() / 8", "", 1),
        ("0.1 * size", "rank, size = hvd.rank(), hvd.size()", 1),
        ("0.1 / hvd.size()", "", -1),
        ("Cosine(lr, len(b))", "lr = 0.1 * hvd.size()\nb = Batches(x, size=hvd.size())", 1),
        ("Cosine(0.1, len(b))", "b = Batches(x, size=hvd.size())", 0),
        ("Cosine(peak_lr=0.1, ranks=hvd.size())", "", 0),
        ("0.1 * hvd.size()", f"{STEPS}LambdaLR(o, lambda t: min(1, (t + 1) / steps))", 1),
        ("0.1", f"{STEPS}LambdaLR(o, lambda t: min(1, (t + 1) / steps))", 0),
        ("0.1 * hvd.size()", f"{STEPS}LambdaLR(o, lambda t: 0.5 + 0.5 * cos(pi * t / steps))", 1),
        ("0.1", f"{STEPS}{RAMP}group['lr'] = ramp(3)", 1),
        ("0.1 * n", "n: int = hvd.size()", 1),
        ("0.1 * (n := hvd.size())", "", 1),
        ("0.1 * size()", "from horovod.torch import size", 1),
        ("0.1 * ranks.size()", "import horovod.torch as ranks", 1),
        ("0.1 * comm.Get_size()", "", 1),
        ("0.1 * MPI.COMM_WORLD.size", "", 1),
        ("0.1 * x.size()", "", 0),  # elements of a tensor
        ("0.1 * x.size(0)", "", 0),
        ("0.1 * len(x) * x.size", "", 0),
        ("rate", "def main(rate): ...\nmain(0.1 * hvd.size())", 1),
        ("0.1 * ranks", "def main(ranks): ...\nmain(ranks=hvd.size())", 1),
        ("self.rate", "class A:\n def __init__(self, r): self.rate = r\nA(hvd.size())", 1),
        ("0.1", "groups = [{'params': ps, 'lr': 0.1 * hvd.size()}]", 1),
        ("0.1", "optimizer.learning_rate.assign(0.1 * hvd.size())", 1),
        ("0.1", "learning_rate.assign_add((0.1 * hvd.size() - 0.1) / 5)", 1),
        ("Steps([9], lrs)", "lrs = [rate * hvd.size() for rate in rates]", 1),
        ("0.1", "LearningRateScheduler(lambda epoch: 0.1 * hvd.size())", 1),
        ("0.1", "torch.optim.lr_scheduler.LambdaLR(o, lambda t: 1 + t * hvd.size())", 1),
        (
            "0.1 * hvd.size()",
            "for g in a.param_groups: g['lr'] *= hvd.size()\n"
            "for g in b.param_groups: g['lr'] *= hvd.size()",
            2,
        ),
        (
            "0.1",
            "for g in a.param_groups: g['lr'] *= hvd.size()\n"
            "for g in b.param_groups: g['lr'] *= hvd.size()",
            1,
        ),
        ("Steps([100], values=[peak / 4, peak])", "peak = 0.1 * hvd.size()", 1),
        (
            "Decay(initial_learning_rate=0.0, decay_steps=9, end_learning_rate=0.1 * hvd.size())",
            "",
            1,
        ),
        ("0.1 * n", "def start(): return hvd.rank(), hvd.size()\nme, n = start()", 1),
        ("0.1 * int(os.environ['OMPI_COMM_WORLD_SIZE'])", "", 1),
        ("0.1 * int(os.environ.get('WORLD_SIZE', 1))", "", 1),
    ],
)
def test_the_power_of_the_number_of_ranks_in_the_rate(rate, more, power):
    found = rates(Script(f"{more}\noptimizer = torch.optim.SGD(ps, lr={rate})".encode()))
    assert found.power == power


def test_the_work_grows_with_the_length_of_a_script():
    """Each name is made of the next one twice: 2^60 ways, and one answer."""
    names = "".join(f"a{i} = a{i + 1} * 1 + a{i + 1}\n" for i in range(60))
    source = f"{names}a60 = hvd.size()\ntorch.optim.SGD(ps, lr=a0)"
    assert rates(Script(source.encode())).power == 1


@pytest.mark.parametrize("of", ["torch.optim", "keras.optimizers", "tensorflow.keras.optimizers"])
def test_an_optimizer_may_be_known_by_its_own_name(of):
    found = rates(Script(f"from {of} import Adam\nAdam(0.001 * hvd.size())".encode()))
    assert (found.power, found.line) == (1, 2)


def test_each_optimizer_has_the_line_of_its_rate():
    found = rates(Script(b"a = optimizers.Adam()\nb = optimizers.SGD(\n    0.1)\nCallback(0)"))
    assert (found.power, found.line, found.lines) == (0, 1, {1: 1, 2: 3})
    assert rates(Script(b"o = optim.SGD(w, 1)\nOneCycleLR(o, max_lr=1)")).lines == {}


def test_no_rate_is_read_where_a_function_of_another_file_may_scale_it():
    assert rates(Script(b"from mine import build\nbuild(model, lr=0.1)")).line is None


@pytest.mark.parametrize(
    "text",
    [
        "Loader(batch_size=64 // hvd.size())",
        "DataLoader(data, 64 // hvd.size())",
        "data.batch(64 // hvd.size())",
        "model.fit(x, y, 64 // hvd.size())",
        "batch_size = 64\nbatch_size //= hvd.size()",
        "args.batch_size //= hvd.size()\nDataLoader(data, args.batch_size)",
        "Batches(x, y, int(128 / hvd.size()))",
        "Batches(x, y, max(1, 128 // hvd.size()))",
        "n = torch.cuda.device_count()\nLoader(batch_size=int(args.batch / n))",
    ],
)
def test_the_batch_of_a_rank_is_its_part_of_a_batch(text):
    assert rates(Script(text.encode())).batch_power == -1


@pytest.mark.parametrize(
    "source, divided",
    [
        ("images = seen / hvd.size()", False),
        ("loss = nll(model(x), y)", False),
        ("loss = nll(model(x), y) / hvd.size()", True),
        ("(loss / hvd.size()).backward()", True),
        ("loss /= hvd.size()", True),
    ],
)
def test_a_loss_that_is_divided_by_the_number_of_ranks(source, divided):
    assert rates(Script(source.encode())).loss_divided is divided


SET = "\nfor group in o.param_groups:\n    group['lr'] = {}"


@pytest.mark.parametrize(
    "text, line",
    [
        (SET.format("args.lr * 0.1 ** (epoch // 30)"), 3),
        ("\nlr = 0.1\nlr = lr * 0.5" + SET.format("lr"), 5),
        (SET.format("args.lr * hvd.size() * 0.1"), None),
        (SET.format("group['lr'] * 0.1"), None),
        (SET.format("0.1 * 0.5 ** epoch"), 3),
        ("\nif g['lr'] != args.lr:\n    g['lr'] = args.lr", 3),
        ("\nlr = 0.1 * 0.5 ** epoch\no.learning_rate.assign(lr)", 3),
        ("\no.learning_rate.assign(schedule(epoch))", None),
        (SET.format("group['initial_lr'] * 0.1"), None),
        (SET.format("schedule(epoch) * 0.1"), None),
        (SET.format("lr"), None),  # from elsewhere
        ("\nargs.lr *= hvd.size()" + SET.format("args.lr * 0.1"), None),
        ("\ndef unused():\n    group['lr'] = 0.1", None),
        ("\nif args.constant:\n    group['lr'] = 0.1", None),
        ("\ndef plan(epoch):\n    return 0.1 * 0.5 ** epoch\nLearningRateScheduler(plan)", 4),
        ("\ndef plan(epoch, lr):\n    return lr * 0.5\nLearningRateScheduler(plan)", None),
        ("\nLearningRateScheduler(lambda epoch: 0.1 * hvd.size())", None),
        ("\nLearningRateScheduler(plan)", None),
    ],
)
def test_a_rate_that_is_set_later_replaces_the_scaled_one(text, line):
    found = rates(Script(f"o = optim.SGD(ps, lr=args.lr * hvd.size()){text}".encode()))
    assert (found.power == 0) == bool(line) and (not line or found.line == line)
