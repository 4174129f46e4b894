"""Answers that are no wrong numbers, but another kind of thing, get a message of their own."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
pytest.importorskip("litgpt", reason="needs LitGPT: run `make setup`")

from torch import nn  # noqa: E402

from hvdlab.exercises import (  # noqa: E402
    NotYet,
    lab07_large_batch_remedies,
    lab07_schedule_and_statistics,
    lab15_fine_tuning,
    lab15_generation,
    lab18_past_one_machine,
)

LARS = lab07_large_batch_remedies.check_lars_update
NOVOGRAD = lab07_schedule_and_statistics.check_novograd_update
EXAMPLE = lab15_fine_tuning.check_example
LOSS = lab15_fine_tuning.check_language_loss
COLLATE = lab15_fine_tuning.check_collate
LINEAR = lab15_fine_tuning.check_lora_linear
TEXT = lab15_generation.check_continue_text
LIMIT = lab18_past_one_machine.check_limit


def grows_the_answer(prompt, answer, end):
    found = EXAMPLE.right(prompt, answer, end)
    answer.append(end)
    return found


def pads_in_place(examples, end):
    width = max(len(ids) for ids, _ in examples)
    for ids, labels in examples:
        ids += [end] * (width - len(ids))
        labels += [-100] * (width - len(labels))
    return COLLATE.right(examples, end)


def as_floats(examples, end):
    return {name: value.float() for name, value in COLLATE.right(examples, end).items()}


@pytest.mark.parametrize(
    ("check", "wrong", "says"),
    [
        (LARS, lambda *a: (None, None), "w of <lambda> returned None: is `return` missing"),
        (NOVOGRAD, lambda *a: NOVOGRAD.right(*a)[:2], r"must return \(w, m, v\)"),
        (EXAMPLE, lambda p, a, e: p + a + [e], "must return two lists, ids and labels"),
        (EXAMPLE, grows_the_answer, "changes what it is given"),
        (LOSS, lambda logits, labels: 1.0, "a tensor of no dimension. Received: 1.0"),
        (COLLATE, pads_in_place, "changes what it is given"),
        (COLLATE, lambda examples, end: examples, "a dict of input_ids and labels"),
        (COLLATE, as_floats, "int64 tensor of shape"),
        (LINEAR, LINEAR.function(("return self.linear(x) +", "self.linear(x) +")),
         r"must return \(2, 4\) outputs. Received: None"),
        (LINEAR, LINEAR.function(("return self.linear.weight +", "self.linear.weight +")),
         r"one weight of shape \(4, 5\). Received: None"),
        (lab15_fine_tuning.check_lora_from, lambda *a: nn.Linear(1, 1), "must return a litgpt.lora.GPT"),
        (lab15_fine_tuning.check_bytes_held, lambda *a: "520", "one number of bytes"),
        (TEXT, TEXT.function(("len(new) < limit", "True", "best == end", "False")), "does not end: stop at"),
        (LIMIT, lambda step, without: step - min(without.values()), "must return one of the names"),
        (LIMIT, lambda step, without: np.zeros(3), "must return one of the names"),
    ],
)  # fmt: skip
def test_another_kind_of_answer_is_named(check, wrong, says):
    with pytest.raises(NotYet, match=says):
        check(wrong)
