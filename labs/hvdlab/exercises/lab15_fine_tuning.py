"""Checks of lab 15: labels, the loss, padding, LoRA by hand and from a checkpoint, bytes held."""

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import torch
from litgpt import GPT, lora
from litgpt.data import SFTDataset
from torch import nn
from torch.nn import functional as F

from hvdlab.exercises import NotYet, call, call_unchanged, compare, exercise, number, right
from hvdlab.torch.language_model import IGNORED, LanguageModel, small

RECORD = {"instruction": "Count the letters.", "input": "e-b-k", "output": "3"}


@exercise
def check_example(example: Callable, tokenizer: object) -> None:
    """Demand ids of prompt, answer and end, labels of the last two; then LitGPT's, token by token.

    Args:
        example: The learner's `example(prompt, answer, end)`, which returns (ids, labels).
        tokenizer: A LitGPT tokenizer.
    """
    case = "example([5, 6, 7], [8, 9], 1)"
    ids, labels = _two_lists(call_unchanged(example, [5, 6, 7], [8, 9], 1), case)
    missing_end = {
        "The end, 1, is missing. A model that never saw an answer end writes until it is stopped.":
            np.array([5, 6, 7, 8, 9])
    }  # fmt: skip
    ids_expected = np.array([5, 6, 7, 8, 9, 1])
    otherwise = "The ids are those of prompt, answer, end."
    compare(f"the list of ids of {case}", np.array(ids), ids_expected, missing_end, otherwise)
    if len(labels) != len(ids):
        raise NotYet(f"{case} has 6 ids and {len(labels)} labels: each token has one label.")
    mistakes = {
        "The prompt counts too: the model learns to write questions. Its labels are -100.": ids,
        "The end does not count, so it is never learnt.": [-100, -100, -100, 8, 9, -100],
        "They are shifted already: leave that to the loss.": [-100, -100, 8, 9, 1, -100],
        "The last token of the prompt counts too.": [-100, -100, 7, 8, 9, 1],
        "The first token of the answer does not count.": [-100, -100, -100, -100, 9, 1],
        "0 is a token like others. The label that does not count is -100.": [0, 0, 0, 8, 9, 1],
        "PyTorch's cross entropy leaves out -100, not -1.": [-1, -1, -1, 8, 9, 1],
    }
    mistakes = {mistake: np.array(wrong) for mistake, wrong in mistakes.items()}
    expected = np.array([-100, -100, -100, 8, 9, 1])
    compare(f"the list of labels of {case}", np.array(labels), expected, mistakes)

    theirs = SFTDataset([RECORD], tokenizer, "alpaca", mask_prompt=True)[0]
    wanted = theirs["input_ids"].tolist(), theirs["labels"].tolist()
    start = wanted[1].count(IGNORED)
    prompt, answer = wanted[0][:start], wanted[0][start:-1]
    found = _two_lists(call(example, prompt, answer, wanted[0][-1]), "example of a record")
    if found != wanted:
        raise NotYet(
            f"the example by hand is right, but of a record ids and labels are {found}, expected LitGPT's "
            f"{wanted}."
        )
    right(
        f"your labels equal those of LitGPT. In the record of the check, {start} tokens of the prompt do not "
        f"count in the loss, and {len(wanted[0]) - start} tokens of the answer and its end do."
    )


@exercise
def check_language_loss(language_loss: Callable) -> None:
    """Demand the mean cross entropy of position t and label t + 1, over labels other than -100."""
    labels = torch.tensor([[-100, -100, 2, 0], [2, 1, -100, -100]])
    logits = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(1))
    logits[0, 1, 2] += 3.0
    first, second = [(0, 1, 2), (0, 2, 0)], [(1, 0, 1)]
    expected = _mean(first + second, logits)
    answer = call(language_loss, logits.clone().requires_grad_(), labels.clone())
    if not (torch.is_tensor(answer) and answer.ndim == 0):
        raise NotYet(
            f"language_loss must return one number, a tensor of no dimension. Received: {answer!r}"
        )
    filled = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].clamp(min=0).flatten())
    mistakes = {
        "Position t is compared with label t, which the model has just read: it learns to repeat it.":
            _mean([(0, 2, 2), (0, 3, 0), (1, 0, 2), (1, 1, 1)], logits),
        "Position t is compared with label t + 2: that is shifted twice.":
            _mean([(0, 0, 2), (0, 1, 0)], logits),
        "Position t is compared with label t - 1: shifted the wrong way.":
            _mean([(0, 3, 2), (1, 1, 2), (1, 2, 1)], logits),
        "An example's last position is compared with its first label: that one has none before it.":
            _mean([*first, *second, (1, 3, 2)], logits),
        "An example's last position is compared with the first label of the next: shift each by itself.":
            _mean([*first, (0, 3, 2), *second], logits),
        "That is a mean of the examples' means: a token of a short answer has a larger weight.":
            (_mean(first, logits) + _mean(second, logits)) / 2,
        "The sum is divided by all 6 positions, also those that do not count.": expected / 2,
        "That is the sum, not the mean over the labels that count.": expected * 3,
        "Labels of -100 are counted as if they were token 0.": float(filled),
    }  # fmt: skip
    compare("language_loss of two examples", float(answer.detach()), expected, mistakes, atol=1e-5)
    if not answer.requires_grad:
        raise NotYet("language_loss has no gradient: return the tensor, not a number made of it.")
    right(
        "each label is compared with the position before it, and labels of -100 are left out. The first "
        "label of an example has no position before it."
    )


@exercise
def check_collate(collate: Callable) -> None:
    """Demand padded ids, labels with -100 for padding only, and the end of each answer among them.

    Args:
        collate: The learner's `collate(examples, end)`, which returns a dict of tensors.
    """
    examples = [([5, 6, 8, 1], [-100, -100, 8, 1]), ([5, 9, 1], [-100, 9, 1])]
    case = "collate of ids [5, 6, 8, 1] and [5, 9, 1], where 1 is the end"
    given = deepcopy(examples)
    batch = call(collate, given, 1)
    if not (isinstance(batch, dict) and {"input_ids", "labels"} <= batch.keys()):
        raise NotYet(f"{case} must return a dict of input_ids and labels. Received: {batch!r}")
    for name in ("input_ids", "labels"):
        value = batch[name]
        if not (torch.is_tensor(value) and value.shape == (2, 4) and value.dtype == torch.int64):
            raise NotYet(f"{name} must be an int64 tensor of shape (2, 4). Received: {value!r}")
    ids, labels = batch["input_ids"].tolist(), batch["labels"].tolist()
    if ids != [[5, 6, 8, 1], [5, 9, 1, 1]]:
        raise NotYet(f"input_ids of {case} are {ids}: pad on the right, with the end.")
    if not any(1 in row for row in labels):
        raise NotYet(
            f"labels of {case} are {labels}: no end is left, so the model never learns to stop. Only "
            "padding must not count, not every token that equals it."
        )
    if labels != [[-100, -100, 8, 1], [-100, 9, 1, -100]]:
        raise NotYet(
            f"labels of {case} are {labels}: expected those of the examples, and -100 for the padding."
        )
    if given != examples:
        raise NotYet("collate changed the examples that it was given: make new lists.")
    swapped = call(collate, given[::-1], 1)
    if [swapped[name].tolist() for name in ("input_ids", "labels")] != [ids[::-1], labels[::-1]]:
        raise NotYet(
            f"with the shorter one first, {case} become {swapped}: the longest of all decides the width."
        )
    right("the end of each answer counts and the padding does not, so the model can learn to stop.")


@exercise
def check_lora_linear(LoRALinear: type[nn.Module]) -> None:
    """Demand W x + alpha/r B A x, at first W x, only A and B trained, and the same when merged.

    Args:
        LoRALinear: The learner's class, made by `LoRALinear(linear, rank, alpha)`.
    """
    torch.manual_seed(1)
    linear = nn.Linear(5, 4, bias=False)
    weight, x = linear.weight.detach().clone(), torch.randn(3, 5)
    base = F.linear(x, weight)
    layer = call(LoRALinear, linear, 2, 6.0)
    _check_parameters(layer)
    if not (layer.A.any() or layer.B.any()):
        raise NotYet(
            "A and B are both zero. The gradient of each has the other as a factor, so both stay zero: "
            "make A random."
        )
    if not (difference := (_output(layer, x) - base).abs().max()) < 1e-6:
        raise NotYet(
            f"at the start the layer differs from its base by up to {difference:.3g}: with B = 0 it is the "
            "base, and training starts from what the model knows."
        )
    trained = {name for name, value in layer.named_parameters() if value.requires_grad}
    if trained != {"A", "B"}:
        raise NotYet(
            f"trained are {', '.join(sorted(trained))}: freeze the base, only A and B learn."
        )

    with torch.no_grad():
        layer.A.copy_(torch.randn(2, 5))
        layer.B.copy_(torch.randn(4, 2))
    output, change = _output(layer, x), x @ layer.A.T @ layer.B.T
    mistakes = {
        "The scale alpha / rank, here 3, is missing.": base + change,
        "The change is scaled by alpha; divide it by the rank, 2.": base + 6 * change,
        "The change is scaled by alpha x rank: divide by the rank.": base + 12 * change,
        "The output is the change alone: add that of the frozen layer.": 3 * change,
    }
    compare(
        "the output W x + 3 B A x for rank 2, alpha 6, and random A and B",
        *(value.detach().numpy() for value in (output, base + 3 * change)),
        {mistake: wrong.detach().numpy() for mistake, wrong in mistakes.items()},
        rtol=1e-5,
        atol=1e-4,
    )
    _check_gradients(layer, weight, x)
    _check_merged(layer, linear, weight, output, x)
    right(
        "your layer starts as its base, learns only A and B, and computes the same after merging."
    )


def _check_parameters(layer: nn.Module) -> None:
    """Demand parameters A and B of the shapes for 5 inputs, 4 outputs and rank 2."""
    for name, shape in (("A", (2, 5)), ("B", (4, 2))):
        value = getattr(layer, name, None)
        if not isinstance(value, nn.Parameter):
            raise NotYet(f"layer.{name} must be an nn.Parameter, so that an optimizer finds it.")
        if value.shape != shape:
            raise NotYet(
                f"for 5 inputs, 4 outputs and rank 2 layer.{name} has the shape {tuple(value.shape)}, "
                f"expected {shape}."
            )


def _check_merged(
    layer: nn.Module, linear: nn.Linear, weight: torch.Tensor, output: torch.Tensor, x: torch.Tensor
) -> None:
    """Demand a merged weight that gives the same outputs, and a frozen layer that keeps its own weight."""
    if not hasattr(layer, "merged"):
        raise NotYet("LoRALinear has no method merged().")
    whole = call(layer.merged, name="LoRALinear.merged")
    if not (torch.is_tensor(whole) and whole.shape == weight.shape):
        raise NotYet(f"merged() must return one weight of shape (4, 5). Received: {whole!r}")
    if not _same(F.linear(x, whole), output):
        raise NotYet("the merged weight gives other outputs: it is W + alpha/r B A.")
    if not torch.equal(linear.weight, weight):
        raise NotYet("merged() changed the layer: return a new weight, and leave W as it is.")


def _check_gradients(layer: nn.Module, weight: torch.Tensor, x: torch.Tensor) -> None:
    """Demand the gradients of W x + 3 B A x: of A and B, and of x, for the layers before."""
    x, back = x.clone().requires_grad_(), torch.randn(3, 4)  # back: the gradient of the output
    A, B = layer.A, layer.B
    output = _output(layer, x)
    if not output.requires_grad:
        raise NotYet(
            "its output has no gradient at all: `no_grad` and `detach` stop A and B too. Freezing is "
            "`requires_grad_(False)` of the frozen layer, and does not change the forward pass."
        )
    of_x, *of_both = torch.autograd.grad((output * back).sum(), [x, A, B], allow_unused=True)
    with torch.no_grad():
        wanted = 3 * B.T @ back.T @ x, 3 * back.T @ x @ A.T
        change = 3 * back @ B @ A
    for name, found, by_hand in zip("AB", of_both, wanted, strict=True):
        if found is None or not found.any():
            raise NotYet(
                f"{name} gets no gradient, and would never learn: compute with the parameter itself, not "
                "with its `data` or a `detach` of it."
            )
        if not _same(found, by_hand):
            raise NotYet(f"the output is right, but not {name}'s gradient, that of W x + 3 B A x.")
    if of_x is None or _same(of_x, change):
        raise NotYet(
            "the gradient of x does not go through the frozen layer, so all layers before it learn the "
            "wrong thing: W itself is frozen, but no `no_grad` or `detach` belongs around it."
        )
    if not _same(of_x, back @ weight + change):
        raise NotYet("the output is right, but not the gradient of x, that of W x + 3 B A x.")


@exercise
def check_lora_from(lora_from: Callable) -> None:
    """Demand a LoRA model that equals its base, trains A and B only, and has loaded every weight.

    Args:
        lora_from: The learner's `lora_from(state, config, rank, alpha)`.
    """
    torch.manual_seed(1)
    base = GPT(small(vocabulary=64, layers=2, width=32))
    ids = torch.arange(12).reshape(1, 12)
    state = LanguageModel(base, learning_rate=0.0).state_dict()
    model = call(lora_from, dict(state), base.config, 4, 8.0)
    if not isinstance(model, lora.GPT):
        raise NotYet(f"lora_from must return a litgpt.lora.GPT. Received: {type(model).__name__}")
    if (settings := (model.config.lora_r, model.config.lora_alpha)) != (4, 8.0):
        raise NotYet(
            f"lora_r and lora_alpha are {settings}, expected the given rank and alpha: 4, 8.0."
        )
    difference = float((model(ids) - base(ids)).detach().abs().max())
    if not difference < 1e-5:
        raise NotYet(
            f"at the start its logits differ from the base's by up to {difference:.3g}: not all weights "
            "were loaded. `strict=False` skips every name that it does not know: look at what "
            "load_state_dict returns."
        )
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    others = [name for name in trained if "lora_" not in name]
    if others:
        raise NotYet(
            f"{len(others)} tensors other than LoRA's are trained, such as {others[0]}: freeze the base."
        )
    if not trained:
        raise NotYet("nothing is trained: LoRA's A and B must stay trainable.")
    state.pop("gpt.lm_head.weight")
    try:
        lora_from(state, base.config, 4, 8.0)
    except ValueError:
        right(
            f"the model starts as its base, {len(trained)} tensors train, and a lost weight is an error."
        )
    except Exception as error:
        raise NotYet(
            f"a state without the weights of the last layer raises {type(error).__name__}, expected a "
            f"ValueError that names what is missing: {error}."
        ) from error
    else:
        raise NotYet(
            "a state without the weights of the last layer is loaded without an error: raise a "
            "ValueError when a name without `lora_` is missing."
        )


@exercise
def check_bytes_held(bytes_held: Callable) -> None:
    """Demand 4 bytes for each parameter and 12 more for each that is trained."""
    for parameters, trained in ((100, 10), (100, 100)):
        case = f"bytes_held(parameters={parameters}, trained={trained})"
        answer = call(bytes_held, parameters, trained)
        if isinstance(answer, bool | str):
            raise NotYet(f"{case} must return one number of bytes. Received: {answer!r}")
        mistakes = {
            "That is 16 for all: a frozen one has no gradient and no optimizer state.": 1600,
            "That is without the 90 that are frozen; they are held too, 4 bytes each.": 160,
            "A trained one has a gradient and Adam's two numbers, a mean and a mean square.": 480,
            "That is weights and gradients; Adam's two numbers are missing.": 440,
            "That counts numbers; each has 4 bytes.": 130,
        }
        by_hand = f"By hand it is {parameters} x 4 + {trained} x (4 + 8) bytes."
        answer = number(answer, case, "of bytes")
        compare(case, answer, 4 * parameters + 12 * trained, mistakes, by_hand, rtol=0)
    right(
        "a frozen parameter takes 4 bytes and a trained one takes 16, so LoRA needs little "
        "more than the weights."
    )


def _mean(places: list[tuple[int, int, int]], logits: torch.Tensor) -> float:
    """Return the mean of -log p(token) over (example, position, token)."""
    log_probabilities = logits.log_softmax(-1)
    return float(-sum(log_probabilities[place] for place in places) / len(places))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, atol=1e-4)


def _output(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    output = call(layer, x, name="LoRALinear.forward")
    if not (torch.is_tensor(output) and output.shape == (3, 4)):
        raise NotYet(f"forward of (3, 5) inputs must return (3, 4) outputs. Received: {output!r}")
    return output


def _two_lists(answer: object, case: str) -> tuple[list[int], list[int]]:
    try:
        ids, labels = answer
        return [int(value) for value in ids], [int(value) for value in labels]
    except (TypeError, ValueError):
        raise NotYet(
            f"{case} must return two lists, ids and labels. Received: {answer!r}"
        ) from None
