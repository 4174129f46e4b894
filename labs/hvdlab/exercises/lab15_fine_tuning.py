"""Exercises of lab 15: labels, the loss, padding, and bytes held. Those on LoRA are in lab15_lora.py."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import torch
from litgpt.data import SFTDataset
from torch.nn import functional as F

from hvdlab.exercises import NotYet, call, call_unchanged, received
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise
from hvdlab.exercises.lab15_lora import check_lora_from, check_lora_linear  # noqa: F401
from hvdlab.torch.language_model import IGNORED


def example(prompt, answer, end):
    ids = prompt + answer + [end]
    labels = [-100] * len(prompt) + answer + [end]
    return ids, labels


def ids_and_labels(example: Callable, *arguments: object) -> dict[str, object]:
    """Return the two lists that a function returns, and their lengths."""
    answer = call_unchanged(example, *arguments, name="example")
    try:
        found = dict(
            zip(("ids", "labels"), ([int(one) for one in each] for each in answer), strict=True)
        )
    except (TypeError, ValueError):
        text = f"example must return two lists, ids and labels. Received: {received(answer)}"
        raise NotYet(text) from None
    return {
        "The list of ids of": np.array(found["ids"]),
        "The number of labels of": len(found["labels"]),
        "The list of labels of": np.array(found["labels"]),
    }


# fmt: off
def letters(text: str, eos: bool = False, **_: object) -> torch.Tensor:
    return torch.tensor([ord(letter) for letter in text] + [0] * eos)


# LitGPT's ids and labels of a record, where each letter is a token and 0 is the end.
THEIRS = SFTDataset([{"instruction": "Count the letters.", "input": "e-b-k", "output": "3"}],
                    SimpleNamespace(encode=letters), "alpaca", mask_prompt=True)[0]
IDS, LABELS = THEIRS["input_ids"].tolist(), THEIRS["labels"].tolist()
START = LABELS.count(IGNORED)
check_example = FunctionExercise(
    example,
    [
        Case(([5, 6, 7], [8, 9], 1), "The ids are those of prompt, answer, end. The labels "
             "of the prompt are -100.",
             expected={"The list of ids of": [5, 6, 7, 8, 9, 1],
                       "The list of labels of": [-100, -100, -100, 8, 9, 1]}),
        Case((IDS[:START], IDS[START:-1], IDS[-1]), "The example by hand is right, but of this record ids "
             "and labels differ from those of LitGPT.", f"example of a record with {len(IDS)} tokens",
             {"The list of ids of": IDS, "The list of labels of": LABELS}),
    ],
    {
        "The end is missing. A model that never saw an answer end writes until it is stopped.":
            ("+ answer + [end]", "+ answer"),
        "The end is missing in the ids: prompt, answer, end.": ("prompt + answer + [end]", "prompt + answer"),
        "Each token has one label: the labels of the prompt are -100.": ("[-100] * len(prompt) + ", ""),
        "The prompt counts too: the model learns to write questions. Its labels are -100.":
            ("[-100] * len(prompt)", "prompt"),
        "The end does not count, so it is never learnt.":
            ("len(prompt) + answer + [end]", "len(prompt) + answer + [-100]"),
        "They are shifted already: leave that to the loss.":
            ("len(prompt) + answer + [end]", "(len(prompt) - 1) + answer + [end, -100]"),
        "The last token of the prompt counts too.": ("len(prompt) +", "(len(prompt) - 1) + prompt[-1:] +"),
        "The first token of the answer does not count.":
            ("len(prompt) + answer", "(len(prompt) + 1) + answer[1:]"),
        "0 is a token like others. The label that does not count is -100.": ("[-100]", "[0]"),
        "PyTorch's cross entropy leaves out -100, not -1.": ("[-100]", "[-1]"),
    },
    passed=f"your labels equal those of LitGPT. In the record of the check, {START} tokens of the prompt do "
    f"not count in the loss, and {len(IDS) - START} tokens of the answer and its end do.",
    observe=ids_and_labels,
)
# fmt: on


def language_loss(logits, labels):
    guesses = logits[:, :-1].flatten(0, 1)
    wanted = labels[:, 1:].flatten()
    return F.cross_entropy(guesses, wanted, ignore_index=-100)


def mean_of_means(logits, labels):
    losses = [language_loss(one[None], two[None]) for one, two in zip(logits, labels, strict=True)]
    return torch.stack(losses).mean()


def loss_and_gradient(
    language_loss: Callable, logits: torch.Tensor, labels: torch.Tensor
) -> dict[str, object]:
    """Return the loss, and whether it has a gradient."""
    answer = call(language_loss, logits.requires_grad_(), labels, name="language_loss")
    if not (torch.is_tensor(answer) and answer.ndim == 0):
        text = "language_loss must return one number, a tensor of no dimension."
        raise NotYet(f"{text} Received: {received(answer)}")
    return {"": float(answer.detach()), "requires_grad of": answer.requires_grad}


# fmt: off
LOGITS = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(1))
COUNTING = (0, 1, 2), (0, 2, 0), (1, 0, 1)  # example, position, token
check_language_loss = FunctionExercise(
    language_loss,
    [
        Case((LOGITS, torch.tensor([[-100, -100, 2, 0], [2, 1, -100, -100]])), "Three labels count: position "
             "1 of the first example predicts a 2, its position 2 a 0, and position 0 of the second "
             "example a 1.",
             "language_loss of two examples with the labels [-100, -100, 2, 0] and [2, 1, -100, -100]",
             {"": -np.mean([float(LOGITS.log_softmax(-1)[place]) for place in COUNTING])}),
    ],
    {
        "Position t is compared with label t, which the model has just read: it learns to repeat it.":
            ("[:, :-1]", "", "[:, 1:]", ""),
        "Position t is compared with label t + 2: that is shifted twice.": (":-1]", ":-2]", "1:]", "2:]"),
        "Position t is compared with label t - 1: shifted the wrong way.": (":-1]", "1:]", "labels[:, 1:]",
                                                                            "labels[:, :-1]"),
        "An example's last position is compared with its first label: that one has none before it.":
            ("[:, :-1]", "", "labels[:, 1:]", "labels.roll(-1, 1)"),
        "An example's last position is compared with the first label of the next: shift each by itself.":
            ("logits[:, :-1].flatten(0, 1)", "logits.flatten(0, 1)[:-1]",
             "labels[:, 1:].flatten()", "labels.flatten()[1:]"),
        "That is a mean of the examples' means: a token of a short answer has a larger weight.":
            mean_of_means,
        "The sum is divided by all 6 positions, also those that do not count.":
            ("-100)", "-100, reduction='sum') / wanted.numel()"),
        "That is the sum, not the mean over the labels that count.": ("-100)", "-100, reduction='sum')"),
        "Labels of -100 are counted as if they were token 0.": ("labels[:", "labels.clamp(min=0)[:"),
        "language_loss has no gradient: return the tensor, not a number made of it.":
            ("-100)", "-100).detach()"),
    },
    passed="each label is compared with the position before it, and labels of -100 are left out. The first "
    "label of an example has no position before it.",
    observe=loss_and_gradient, atol=1e-5,
)
# fmt: on


def collate(examples, end):
    width = max(len(ids) for ids, _ in examples)
    ids = [ids + [end] * (width - len(ids)) for ids, _ in examples]
    labels = [labels + [-100] * (width - len(labels)) for _, labels in examples]
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}


def batch(
    collate: Callable, examples: list[tuple[list[int], list[int]]], end: int
) -> dict[str, object]:
    """Return ids and labels of a batch."""
    found = call_unchanged(collate, examples, end, name="collate")
    if not (isinstance(found, dict) and {"input_ids", "labels"} <= found.keys()):
        text = f"collate must return a dict of input_ids and labels. Received: {received(found)}"
        raise NotYet(text)
    rows = {}
    for name in ("input_ids", "labels"):
        value = found[name]
        if not (torch.is_tensor(value) and value.ndim == 2 and value.dtype == torch.int64):
            text = f"{name} must be an int64 tensor of shape (examples, longest)."
            raise NotYet(f"{text} Received: {received(value)}")
        rows[f"{name} of"] = value.numpy()
    return rows


# fmt: off
SHORT, LONG = ([5, 9, 1], [-100, 9, 1]), ([5, 6, 8, 1], [-100, -100, 8, 1])
check_collate = FunctionExercise(
    collate,
    [
        Case(([LONG, SHORT], 1), "Pad the ids on the right, with the end. Keep the labels of the examples, "
             "and give the padding -100.", "collate of ids [5, 6, 8, 1] and [5, 9, 1], where 1 is the end,",
             {"input_ids of": [[5, 6, 8, 1], [5, 9, 1, 1]],
              "labels of": [[-100, -100, 8, 1], [-100, 9, 1, -100]]}),
        Case(([SHORT, LONG], 1), "The longest of all decides the width, also if it comes later.",
             "collate of ids [5, 9, 1] and [5, 6, 8, 1], where 1 is the end,"),
    ],
    {
        "No end is left, so the model never learns to stop. Only padding must not count, not every token "
        "that equals it.":
            ("torch.tensor(labels)", "torch.tensor(labels).masked_fill(torch.tensor(ids) == end, -100)"),
        "The labels of the padding must be -100, so that it does not count.": ("[-100]", "[end]"),
        "Pad the ids with the end: -100 is a label, and no token.": ("[end]", "[-100]"),
        "Pad the ids with the end: 0 is a token like others.": ("[end]", "[0]"),
        "The width is that of the first example, but the longest of all decides it.":
            ("width = max(len(ids) for ids, _ in examples)", "width = len(examples[0][0])\n    "
             "examples = [(ids[:width], labels[:width]) for ids, labels in examples]"),
        "Pad on the right: yours is on the left.":
            ("ids + [end] * (width - len(ids))", "[end] * (width - len(ids)) + ids",
             "labels + [-100] * (width - len(labels))", "[-100] * (width - len(labels)) + labels"),
    },
    passed="the end of each answer counts and the padding does not, so the model can learn to stop.",
    observe=batch,
)
# fmt: on


def bytes_held(parameters, trained):
    weights, gradients, averages = 4 * parameters, 4 * trained, 8 * trained
    return weights + gradients + averages


# fmt: off
check_bytes_held = FunctionExercise(
    bytes_held,
    [
        Case((100, 10), "By hand it is 100 x 4 + 10 x (4 + 8) bytes.", expected=520),
        Case((100, 100), "By hand it is 100 x 4 + 100 x (4 + 8) bytes.", expected=1600),
    ],
    {
        "That is 16 for all: a frozen one has no gradient and no optimizer state.":
            ("4 * trained, 8 * trained", "4 * parameters, 8 * parameters"),
        "The frozen parameters are missing: they are held too, 4 bytes each.":
            ("4 * parameters", "4 * trained"),
        "A trained one has a gradient and Adam's two numbers, a mean and a mean square.":
            [("4 * trained", "0"), ("8 * trained", "4 * trained")],
        "That is weights and gradients; Adam's two numbers are missing.": ("8 * trained", "0"),
        "That counts numbers; each has 4 bytes.": ("= 4", "= 1", "4 * trained", "trained", "8 *", "2 *"),
        "A frozen parameter has no gradient.": ("4 * trained", "4 * parameters"),
    },
    passed="a frozen parameter takes 4 bytes and a trained one takes 16, so LoRA needs little more than the "
    "weights.",
    meaning="of bytes", rtol=0,
)
# fmt: on
