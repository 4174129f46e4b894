"""The checks of lab 9: the right answer passes, and each typical mistake is called by its name."""

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")

from changed import changed  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint, checkpoint_sequential  # noqa: E402

from hvdlab.exercises import NotYet, lab09_less_memory  # noqa: E402
from hvdlab.exercises import lab09_one_device as exercises  # noqa: E402


def activation_bytes(batch, layers, hidden, number_bytes=4):
    return 10 * batch * layers * hidden * number_bytes


def next_scale(scale, good, overflow, interval):
    if overflow:
        return scale / 2, 0
    return (scale * 2, 0) if good + 1 == interval else (scale, good + 1)


def scaled_step(loss, optimizer, scale):
    (loss * scale).backward()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for p in parameters:
        p.grad /= scale
    overflow = not all(torch.isfinite(p.grad).all() for p in parameters)
    if not overflow:
        optimizer.step()
    optimizer.zero_grad()
    return overflow


def clipped_step(model, images, labels, optimizer, scaler, max_norm):
    with torch.autocast(images.device.type, torch.bfloat16):
        loss = F.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.item()


def clipped_by_hand(model, images, labels, optimizer, scaler, max_norm, scaled=False):
    """The right steps, with no scaler or with one that only multiplies the loss."""
    with torch.autocast(images.device.type, torch.bfloat16):
        loss = F.cross_entropy(model(images), labels)
    (scaler.scale(loss) if scaled else loss).backward()
    for p in model.parameters():
        p.grad /= scaler.get_scale() if scaled else 1
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if norm.isfinite():
        optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def train_epoch(model, batches, optimizer):
    total, count = 0.0, 0
    for images, labels in batches:
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(labels)
        count += len(labels)
    return float(total) / count


UNSCALE = "    scaler.unscale_(optimizer)\n"
CLIP = "    nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n"
BY_HAND = "    for p in model.parameters():\n        p.grad /= scaler.get_scale()\n"
EMPTY = "    optimizer.zero_grad()\n"
# Without unscale_: max_norm in units of the scaled gradients.
clipped_scaled_up = changed(
    clipped_step, UNSCALE, "", "max_norm)\n ", "max_norm * scaler.get_scale())\n "
)


def reads_in_an_if(model, batches, optimizer):
    mean = train_epoch(model, batches, optimizer)
    return mean if torch.tensor(mean) > 0 else mean


def run_in_segments(blocks, x, segments, split=torch.tensor_split, under=checkpoint):
    for part in split(torch.arange(len(blocks)), segments):
        x = under(nn.Sequential(*(blocks[i] for i in part)), x, use_reentrant=False)
    return x


def with_a_lambda(blocks, x, segments):
    for part in torch.arange(len(blocks)).tensor_split(segments):
        run = lambda x: nn.Sequential(*(blocks[i] for i in part))(x)  # noqa: B023, E731
        x = checkpoint(run, x, use_reentrant=False)
    return x


def reentrant(blocks, x, segments):
    return run_in_segments(
        blocks, x, segments, under=lambda f, x, **_: checkpoint(f, x, use_reentrant=True)
    )


def long_first(numbers, segments):
    return torch.split(numbers, -(-len(numbers) // segments))


def long_last(numbers, segments):
    sizes = [len(numbers) // segments] * (segments - 1)
    return torch.split(numbers, [*sizes, len(numbers) - sum(sizes)])


class Recompute(torch.autograd.Function):
    @classmethod
    def forward(cls, ctx, block, x):
        ctx.block, ctx.state = block, torch.get_rng_state()
        ctx.save_for_backward(x)
        return block(x)

    @classmethod
    def backward(cls, ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.state)
            y = ctx.block(x)
        y.backward(gradient)
        return None, x.grad


SEED = "torch.Generator().manual_seed(torch.initial_seed()).get_state()"


def recomputing(*texts):
    wrong = changed(Recompute, *texts)
    return lambda block, x: wrong.apply(block, x)


def recomputed(block, x):
    return Recompute.apply(block, x)


def accumulate(
    model, images, labels, micro, share=lambda m, n, k: m / n, between=False, whole=False, even=False
):  # fmt: skip
    total, losses = 0.0, []
    cut = (lambda a: a.tensor_split(-(-len(a) // micro))) if even else lambda a: a.split(micro)
    for x, y in zip(cut(images), cut(labels), strict=True):
        if between:
            model.zero_grad()
        losses.append(F.cross_entropy(model(x), y) * share(len(y), len(labels), 3))
        if not whole:
            losses[-1].backward()
        total += losses[-1].item()
    if whole:
        sum(losses).backward()
    return total


RIGHT = {
    exercises.check_activation_bytes: activation_bytes,
    exercises.check_next_scale: next_scale,
    exercises.check_scaled_step: scaled_step,
    exercises.check_clipped_step: clipped_step,
    exercises.check_train_epoch: train_epoch,
    lab09_less_memory.check_run_in_segments: run_in_segments,
    lab09_less_memory.check_recomputed: recomputed,
    lab09_less_memory.check_accumulate: accumulate,
}


@pytest.mark.parametrize("check", RIGHT, ids=lambda check: check.__name__)
def test_the_right_answer_is_right(check, capsys):
    check(RIGHT[check])
    assert capsys.readouterr().out.startswith("Right: ")


@pytest.mark.parametrize(
    ("check", "variant"),
    [
        (exercises.check_clipped_step, clipped_scaled_up),
        (lab09_less_memory.check_recomputed, lambda block, x: checkpoint(block, x, use_reentrant=False)),
        (lab09_less_memory.check_accumulate, lambda *a: accumulate(*a, even=True)),  # 4, 3 and 3
    ],
)  # fmt: skip
def test_another_right_answer_is_right(check, variant, capsys):
    check(variant)
    assert capsys.readouterr().out.startswith("Right: ")


def arrays(numbers):
    return lambda b, n, h, bytes=4: numbers * b * n * h * bytes


def but(function, **options):
    return lambda *arguments: function(*arguments, **options)


SEGMENTS = "check_run_in_segments"
MISTAKES = [
    ("check_activation_bytes", arrays(10 / 4), "how many numbers"),
    ("check_activation_bytes", lambda b, n, h, bytes=4: 10 * b * h * bytes, "One block"),
    ("check_activation_bytes", lambda b, n, h, bytes=4: 10 * n * h * bytes, "One example"),
    ("check_activation_bytes", arrays(6), "before and after the gelu"),
    ("check_activation_bytes", arrays(5), "gelu its own"),
    ("check_activation_bytes", arrays(9), "keep their own input"),
    ("check_activation_bytes", arrays(11), "output of `down`"),
    ("check_activation_bytes", arrays(14), "three arrays of 4 hidden"),
    ("check_activation_bytes", arrays(7), "By hand: 3 blocks"),
    ("check_activation_bytes", lambda b, n, h, bytes=4: 40 * b * n * h, "Use the argument"),
    ("check_activation_bytes", lambda *arguments: None, "is `return` missing"),
    ("check_next_scale", lambda s, g, o, i: s, r"must return \(scale, good_steps\)"),
    ("check_next_scale", lambda s, g, o, i: (None, 0), r"must return \(scale, good_steps\)"),
    ("check_next_scale", lambda s, g, o, i: (s / 2, g) if o else next_scale(s, g, o, i), "back to 0"),
    ("check_next_scale", lambda s, g, o, i: next_scale(s, min(g, i - 1), o, i)[:1] + (g + 1,), "back to 0"),
    ("check_next_scale", lambda s, g, o, i: next_scale(s, g, o, i + 1), "yours to 512"),
    ("check_next_scale", lambda s, g, o, i: (s, g + 1), "3 overflowed: from 1024 .* to 512, yours to 1024"),
    ("check_scaled_step", changed(scaled_step, "p.grad /= scale", "pass"),
     "divide the gradients of every group"),
    ("check_scaled_step", changed(scaled_step, "in parameters:", "in parameters[:1]:"),
     "divide the gradients of every group"),
    ("check_scaled_step", changed(scaled_step, "in parameters)", "in parameters[-1:])"),
     "of every p is true"),
    ("check_scaled_step", changed(scaled_step, "isfinite(p.grad)", "isfinite(loss * scale)"),
     "of every p is true"),
    ("check_scaled_step", lambda *a: (scaled_step(*a), None)[1], "True or False"),
    ("check_scaled_step", lambda *a: False, "do not move"),
    ("check_scaled_step", changed(scaled_step, EMPTY, ""), "gradients are still there"),
    ("check_scaled_step", changed(scaled_step, EMPTY, "    " + EMPTY), "leaves its inf in the gradients"),
    ("check_scaled_step", changed(scaled_step, "if not overflow", "if True"),
     "gradient of inf must change neither"),
    ("check_scaled_step", changed(scaled_step, "torch.isfinite(p.grad)", "(~torch.isinf(p.grad))"),
     "of nan must change neither"),
    ("check_scaled_step", changed(scaled_step, "return overflow", "return False"), "False, then True"),
    ("check_scaled_step", changed(scaled_step, "return overflow", "return True"), "False for both steps"),
    ("check_scaled_step", lambda loss, o, s: scaled_step(loss * 1.01, o, s), "changes no digit"),
    ("check_clipped_step", changed(clipped_step, UNSCALE, ""), "still multiplied by the scale"),
    ("check_clipped_step", changed(clipped_step, UNSCALE, BY_HAND), "divided by it yourself, and step"),
    ("check_clipped_step", changed(clipped_step, CLIP, ""),
     "are the gradients clipped"),
    ("check_clipped_step", changed(clipped_step, "    scaler.update()\n", ""),
     "RuntimeError: unscale_.* is being called after"),
    ("check_clipped_step", changed(clipped_step, EMPTY, ""), "and emptied after each step"),
    ("check_clipped_step", lambda *a: clipped_step(*a) and None, "return the loss"),
    ("check_clipped_step", changed(clipped_step, UNSCALE, BY_HAND), "times too little"),
    ("check_clipped_step", changed(clipped_step, "scaler.step(optimizer)", "optimizer.step()"),
     r"let scaler.step\(optimizer\) decide"),
    ("check_clipped_step", changed(clipped_step, "bfloat16)", "bfloat16, enabled=False)"),
     "forward pass belongs under torch.autocast"),
    ("check_clipped_step", clipped_by_hand, r"go backward from scaler.scale\(loss\)"),
    ("check_clipped_step", but(clipped_by_hand, scaled=True), r"let scaler.step\(optimizer\) make the step"),
    ("check_train_epoch", changed(train_epoch, "loss.detach()", "loss.item()"),
     "device 3 times, expected once"),
    ("check_train_epoch", reads_in_an_if, "device 2 times, expected once"),
    ("check_train_epoch", changed(train_epoch, "float(total)", "total"), "returns a tensor"),
    ("check_train_epoch", changed(train_epoch, " * len(labels)", "", "+= len(labels)", "+= 1"),
     "mean of three means"),
    ("check_train_epoch", changed(train_epoch, "    " + EMPTY, ""), "not those of a plain loop"),
    ("check_train_epoch", lambda *a: train_epoch(*a) and None, "return the mean loss"),
    ("check_train_epoch", lambda *a: 2 * train_epoch(*a), "the mean loss of the 10 examples is"),
    (SEGMENTS, lambda blocks, x, s: nn.Sequential(*blocks)(x), "no block ran again"),
    (SEGMENTS, lambda b, x, s: checkpoint_sequential(b, s, x, use_reentrant=False), "did not run again"),
    (SEGMENTS, with_a_lambda, r"backward pass fails .*a lambda sees the last part"),
    (SEGMENTS, reentrant, "backward pass fails .*use_reentrant=False"),
    (SEGMENTS, lambda b, x, s: torch.no_grad()(run_in_segments)(b, x, s), "no block under no_grad"),
    (SEGMENTS, lambda blocks, x, s: run_in_segments(blocks, x, len(blocks)), "8 segments were recomputed"),
    (SEGMENTS, but(run_in_segments, split=long_last), r"segments have"),
    (SEGMENTS, but(run_in_segments, split=long_first), "5 blocks in 4 .* 3 segments were recomputed"),
    (SEGMENTS, lambda b, x, s: run_in_segments(b, x, s, long_first if len(b) > 5 else torch.tensor_split),
     r"10 blocks in 4 .*: the segments have \[3, 3, 3, 1\] blocks"),
    (SEGMENTS, lambda blocks, x, s: run_in_segments(blocks[::-1], x, s), "in the order"),
    (SEGMENTS, lambda blocks, x, s: run_in_segments(blocks, x.detach(), s), "gradients are missing"),
    (SEGMENTS, lambda blocks, x, s: 2 * run_in_segments(blocks, x, s), "gradients differ"),
    (SEGMENTS, lambda blocks, x, s: None, "return the output of the last block"),
    ("check_recomputed", recomputing("torch.set_rng_state(ctx.state)", "pass"), "keep the generator's state"),
    ("check_recomputed", recomputing("(ctx.state)", f"({SEED})"), "keep the generator's state"),
    ("check_recomputed", recomputing("ctx.state = block", "cls.state = block", "(ctx.state)", "(cls.state)"),
     "state of each forward"),
    ("check_recomputed", recomputing("fork_rng(devices=[])", "fork_rng(devices=[], enabled=False)"),
     "fork_rng"),
    ("check_recomputed", lambda block, x: block(x), "two blocks ran 2 times"),
    ("check_recomputed", lambda block, x: block.eval()(x), "output differs|ran 2 times"),
    ("check_recomputed", lambda block, x: None, r"^recomputed\(block, x\) must return the block's output"),
    ("check_accumulate", but(accumulate, share=lambda m, n, k: 1), "sum of three means"),
    ("check_accumulate", but(accumulate, share=lambda m, n, k: 1 / k), "2 examples .* is 2/10, not 1/3"),
    ("check_accumulate", but(accumulate, share=lambda m, n, k: 1 / k, even=True), "3 examples .* 3/10, not"),
    ("check_accumulate", but(accumulate, share=lambda m, n, k: m), "sum over the examples"),
    ("check_accumulate", but(accumulate, between=True), "has only the last micro"),
    ("check_accumulate", but(accumulate, between=True, share=lambda m, n, k: 1), "has only the last micro"),
    ("check_accumulate", but(accumulate, whole=True), "before the next one goes forward"),
    ("check_accumulate", lambda m, x, y, k: accumulate(m, x, y, 10), r"the model saw \[10\]"),
    ("check_accumulate", lambda m, x, y, k: accumulate(m, x[:8], y[:8], k), r"the model saw \[4, 4\]"),
    ("check_accumulate", lambda *a: accumulate(*a) and None, "a number, here 1.* Received: None$"),
    ("check_accumulate", lambda *a: (accumulate(*a), 10), r"a number, .* Received: \(1\.\d+, 10\)$"),
    ("check_accumulate", lambda *a: [accumulate(*a)], r"a number, .* Received: \[1\.\d+\]$"),
    ("check_accumulate", lambda *a: accumulate(*a) * torch.ones(2), r"Received: tensor\(\["),
    ("check_accumulate", lambda *a: 2 * accumulate(*a), "return the mean loss"),
    ("check_accumulate", lambda m, x, y, k: [m(a) for a in x.split(k)], "no backward pass"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "wrong", "says"), MISTAKES)
def test_a_mistake_is_named(check, wrong, says):
    module = exercises if hasattr(exercises, check) else lab09_less_memory
    with pytest.raises(NotYet, match=says):
        getattr(module, check)(wrong)


def test_the_checks_leave_no_hooks_and_no_autocast_behind():
    lab09_less_memory.check_accumulate(accumulate)
    lab09_less_memory.check_run_in_segments(run_in_segments)
    exercises.check_clipped_step(clipped_step)
    assert not torch.is_autocast_enabled("cpu")
