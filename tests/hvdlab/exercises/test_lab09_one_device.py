"""The checks of lab 9: what is not in the tests of every exercise."""

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")

from hvdlab.exercises import NotYet, lab09_less_memory  # noqa: E402
from hvdlab.exercises import lab09_one_device as exercises  # noqa: E402


def test_the_scales_are_those_of_torch():
    optimizer = torch.optim.SGD([weight := torch.nn.Parameter(torch.ones(1))], 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    scale, good_steps = 1024.0, 0
    for overflow in (0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1):
        scaler.scale((weight * (float("inf") if overflow else 1.0)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scale, good_steps = exercises.next_scale(scale, good_steps, bool(overflow), 3)
        assert scale == scaler.get_scale()


def scaled(exercise, factor):
    return lambda *arguments: factor * exercise.right(*arguments)


@pytest.mark.parametrize(
    ("check", "wrong", "says"),
    [
        (exercises.check_scaled_step, lambda loss, o, s: exercises.scaled_step(loss * 1.01, o, s),
         "changes no digit"),
        (exercises.check_scaled_step, lambda *a: None, "True or False. Received: None"),
        (exercises.check_clipped_step, lambda *a: exercises.clipped_step(*a) and None, "returned None"),
        (exercises.check_train_epoch, lambda *a: torch.tensor(exercises.train_epoch(*a)), "returns a tensor"),
        (exercises.check_train_epoch, scaled(exercises.check_train_epoch, 2), "return the mean loss"),
        (lab09_less_memory.check_run_in_segments, lambda *a: None, "return the output of the last block"),
        (lab09_less_memory.check_run_in_segments, scaled(lab09_less_memory.check_run_in_segments, 2),
         "equal to those of the plain chain in 8 .* must be True"),
        (lab09_less_memory.check_recomputed, lambda block, x: block.eval()(x), "Each block runs twice"),
        (lab09_less_memory.check_accumulate, lambda *a: (lab09_less_memory.accumulate(*a), 10),
         r"one number .* Received: \(1\.\d+, 10\)"),
    ],
)  # fmt: skip
def test_another_wrong_answer_gets_a_reason(check, wrong, says):
    with pytest.raises(NotYet, match=says):
        check(wrong)
