"""The checks of lab 15: the right answer passes, and each typical mistake is called by its name."""

from dataclasses import asdict
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
lora = pytest.importorskip("litgpt.lora", reason="needs LitGPT: run `make setup`")

from changed import changed  # noqa: E402
from litgpt.prompts import Alpaca  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from hvdlab.data.instructions import synthetic_records  # noqa: E402
from hvdlab.exercises import NotYet  # noqa: E402
from hvdlab.exercises import lab15_fine_tuning as exercises  # noqa: E402
from hvdlab.torch import language_model as lm  # noqa: E402


def example(prompt, answer, end):
    return prompt + answer + [end], [-100] * len(prompt) + answer + [end]


def language_loss(logits, labels, here=slice(None, -1), there=slice(1, None), **options):
    return F.cross_entropy(logits[:, here].flatten(0, 1), labels[:, there].flatten(), **options)


def collate(examples, end, keep=True, fill=-100):
    width = max(len(ids) for ids, _ in examples)
    ids = [ids + [end] * (width - len(ids)) for ids, _ in examples]
    labels = torch.tensor([labels + [fill] * (width - len(labels)) for _, labels in examples])
    return {
        "input_ids": torch.tensor(ids),
        "labels": labels if keep else labels.masked_fill(labels == end, -100),
    }


class LoRALinear(nn.Module):
    def __init__(self, linear, rank, alpha):
        super().__init__()
        self.linear, self.scale = linear.requires_grad_(False), alpha / rank
        self.A = nn.Parameter(torch.randn(rank, linear.in_features))
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x):
        return self.linear(x) + self.scale * (x @ self.A.T @ self.B.T)

    def merged(self):
        return self.linear.weight + self.scale * self.B @ self.A


class OtherNames(LoRALinear):
    """As right: nobody says what the frozen layer is called, or which of the two is zero."""

    def __init__(self, linear, rank, alpha):
        nn.Module.__init__(self)
        self.base, self.scale = linear.requires_grad_(False), alpha / rank
        self.A = nn.Parameter(torch.zeros(rank, linear.in_features))
        self.B = nn.Parameter(torch.randn(linear.out_features, rank))

    def forward(self, x):
        return F.linear(x, self.merged())

    def merged(self):
        return self.base.weight + self.scale * self.B @ self.A


FORWARD = "self.linear(x) + self.scale * (x @ self.A.T @ self.B.T)"
# The right output, and a gradient of B without the scale.
SCALED_AFTERWARDS = "self.linear(x) + h @ self.B.T + (self.scale - 1) * (h @ self.B.T.detach())"


def layer(*texts):
    return changed(LoRALinear, *texts)


def lora_from(
    state, config, rank, alpha, *, prefix="gpt.", freeze=True, silent=False, error=ValueError
):
    on = {f"lora_{place}": True for place in ("query", "key", "value", "projection", "mlp")}
    model = lora.GPT(lora.Config(**asdict(config), lora_r=rank, lora_alpha=alpha, **on))
    state = {name.removeprefix(prefix): value for name, value in state.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    if not silent and (unexpected or any("lora_" not in name for name in missing)):
        raise error("not loaded")
    if freeze:
        lora.mark_only_lora_as_trainable(model)
    return model


def nothing_trained(*arguments):
    return lora_from(*arguments).requires_grad_(False)


def loss_by_hand(logits, labels):
    chances = logits.log_softmax(-1)
    return -torch.stack(
        [
            chances[row, at - 1, label]
            for row, line in enumerate(labels.tolist())
            for at, label in enumerate(line)
            if label != -100 and at > 0
        ]
    ).mean()


def mean_of_means(logits, labels):
    losses = [language_loss(one[None], two[None]) for one, two in zip(logits, labels, strict=True)]
    return torch.stack(losses).mean()


def collate_of_torch(examples, end):
    """As right, and with one thing more."""
    ids, labels = ([torch.tensor(row) for row in rows] for rows in zip(*examples, strict=True))
    pad = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    ids, labels = pad(ids, padding_value=end), pad(labels, padding_value=-100)
    return {"input_ids": ids, "labels": labels, "attention_mask": labels != -100}


def as_wide_as_the_first(examples, end):
    width = len(examples[0][0])
    cut = [(ids[:width], labels[:width]) for ids, labels in examples]
    return collate(cut, end)


def collate_in_place(examples, end):
    width = max(len(ids) for ids, _ in examples)
    for ids, labels in examples:
        ids += [end] * (width - len(ids))
        labels += [-100] * (width - len(labels))
    return collate(examples, end)


def bytes_held(parameters, trained):
    return 4 * parameters + 12 * trained


def stub(*arguments):
    raise NotImplementedError("Lab 15, exercise 1: write it")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    prompts = [Alpaca().apply(r["instruction"], input=r["input"]) for r in synthetic_records(50)]
    return lm.train_tokenizer(prompts, tmp_path_factory.mktemp("tokenizer"), 300)


@pytest.fixture
def check_example(tokenizer):
    return partial(exercises.check_example, tokenizer=tokenizer)


RIGHT = {
    exercises.check_language_loss: language_loss,
    exercises.check_collate: collate,
    exercises.check_lora_linear: LoRALinear,
    exercises.check_lora_from: lora_from,
    exercises.check_bytes_held: bytes_held,
}


@pytest.mark.parametrize("check", [None, *RIGHT], ids=lambda c: c.__name__ if c else "example")
def test_the_right_answer_is_right(check, check_example, capsys):
    right = example if check is None else RIGHT[check]
    check = check or check_example
    check(right)
    assert capsys.readouterr().out.startswith("Right: ")
    if (
        check is check_example
    ):  # which needs a tokenizer: the others are in test_unwritten_answers.py
        with pytest.raises(NotImplementedError):
            check(stub)


def test_an_example_that_is_not_written_or_fails(check_example):
    """Its check needs a tokenizer, so that it is not in test_unwritten_answers.py."""
    with pytest.raises(NotImplementedError):
        check_example(stub)
    with pytest.raises(NotYet, match="raises ZeroDivisionError: division by zero, in"):
        check_example(lambda *arguments: 1 / 0)


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (exercises.check_language_loss, loss_by_hand),
        (exercises.check_collate, collate_of_torch),
        (exercises.check_lora_linear, OtherNames),
    ],
)
def test_an_answer_of_another_kind_is_as_right(check, answer, capsys):
    check(answer)
    assert capsys.readouterr().out.startswith("Right: ")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda p, a, e: (p + a, [-100] * len(p) + a), "The end, 1, is missing"),
        (lambda p, a, e: (p + a + [e], p + a + [e]), "learns to write questions"),
        (lambda p, a, e: (p + a + [e], [-100] * len(p) + a + [-100]), "The end does not count"),
        (lambda p, a, e: (p + a + [e], [-100] * (len(p) - 1) + a + [e, -100]), "shifted already"),
        (lambda p, a, e: (p + a + [e], [-100] * (len(p) - 1) + p[-1:] + a + [e]), "last token of"),
        (lambda p, a, e: (p + a + [e], [0] * len(p) + a + [e]), "0 is a token like others"),
        (lambda p, a, e: (p + a + [e], [-1] * len(p) + a + [e]), "leaves out -100, not -1"),
        (lambda p, a, e: (p + a + [e], a + [e]), "6 ids and 3 labels"),
        (lambda p, a, e: ([e] + p + a, [-100] * len(p) + a + [e]), "those of prompt, answer, end"),
        (lambda p, a, e: p + a + [e], "two lists, ids and labels"),
        (lambda p, a, e: example(p[-9:], a, e), "right, but of a record ids and labels are"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_labels_is_named(wrong, says, check_example):
    with pytest.raises(NotYet, match=says):
        check_example(wrong)


@pytest.mark.parametrize("which", [0, 1])
def test_a_list_that_is_changed_is_noticed(which, check_example):
    def grows(prompt, answer, end):
        ids, labels = example(prompt, answer, end)
        (prompt, answer)[which].append(end)
        return ids, labels

    with pytest.raises(NotYet, match="changes what it is given"):
        check_example(grows)


@pytest.mark.parametrize(
    ("check", "wrong", "says"),
    [
        (exercises.check_language_loss, partial(language_loss, here=slice(None), there=slice(None)),
         "learns to repeat it"),
        (exercises.check_language_loss, partial(language_loss, here=slice(None, -2), there=slice(2, None)),
         "shifted twice"),
        (exercises.check_language_loss, partial(language_loss, here=slice(1, None), there=slice(None, -1)),
         "the wrong way"),
        (exercises.check_language_loss,
         lambda logits, labels: F.cross_entropy(logits.flatten(0, 1), labels.roll(-1, 1).flatten()),
         "compared with its first label"),
        (exercises.check_language_loss,
         lambda logits, labels: F.cross_entropy(logits.flatten(0, 1)[:-1], labels.flatten()[1:]),
         "the first label of the next"),
        (exercises.check_language_loss,
         lambda logits, labels: language_loss(logits, labels, reduction="sum") / 6, "divided by all 6"),
        (exercises.check_language_loss, partial(language_loss, reduction="sum"), "the sum, not the mean"),
        (exercises.check_language_loss, lambda logits, labels: language_loss(logits, labels.clamp(min=0)),
         "counted as if they were token 0"),
        (exercises.check_language_loss, mean_of_means, "a mean of the examples' means"),
        (exercises.check_language_loss, lambda x, y: language_loss(x, y) / 0 * 0, "is nan, expected"),
        (exercises.check_language_loss, lambda x, y: 1.0, "a tensor of no dimension"),
        (exercises.check_language_loss, lambda x, y: language_loss(x, y).detach(), "no gradient"),
        (exercises.check_language_loss, lambda x, y: 2 * language_loss(x, y), "expected"),
        (exercises.check_collate, partial(collate, keep=False), "the model never learns to stop"),
        (exercises.check_collate, partial(collate, fill=1), "and -100 for the padding"),
        (exercises.check_collate, lambda x, end: collate(x, -100), "on the right, with the end"),
        (exercises.check_collate, collate_in_place, "make new lists"),
        (exercises.check_collate, as_wide_as_the_first, "the longest of all decides"),
        (exercises.check_collate, lambda examples, end: examples, "a dict of input_ids and labels"),
        (exercises.check_collate, lambda x, end: {k: v.float() for k, v in collate(x, end).items()},
         "int64 tensor of shape"),
        (exercises.check_collate, lambda x, end: {k: v.flip(1) for k, v in collate(x, end).items()},
         "pad on the right"),
        (exercises.check_lora_linear, layer("return self.linear(x) +", "self.linear(x) +"),
         "must return .3, 4. outputs. Received: None"),
        (exercises.check_lora_linear, layer("def merged", "def other"), "has no method merged"),
        (exercises.check_lora_linear, layer("torch.zeros", "torch.randn"), "it is the base"),
        (exercises.check_lora_linear, layer("torch.randn", "torch.zeros"), "both zero"),
        (exercises.check_lora_linear, layer("requires_grad_(False)", "requires_grad_(True)"),
         "only A and B learn"),
        (exercises.check_lora_linear, layer("alpha / rank", "1.0"), "alpha / rank, here 3, is missing"),
        (exercises.check_lora_linear, layer("alpha / rank", "alpha"), "divide it by the rank"),
        (exercises.check_lora_linear, layer("self.linear(x)", "(0 if self.B.any() else self.linear(x))"),
         "the change alone"),
        (exercises.check_lora_linear, layer("self.linear(x)", "self.linear(x).detach()"),
         "does not go through the frozen layer"),
        (exercises.check_lora_linear, layer("(x @", "(x.detach() @"), "not the gradient of x"),
        (exercises.check_lora_linear, layer("    def forward", "    @torch.no_grad()\n    def forward"),
         "its output has no gradient at all"),
        (exercises.check_lora_linear, layer(FORWARD, "F.linear(x, self.merged().data)"),
         "A gets no gradient, and would never learn"),
        (exercises.check_lora_linear,
         layer("return " + FORWARD, "h = x @ self.A.T\n        return " + SCALED_AFTERWARDS),
         "not B's gradient"),
        (exercises.check_lora_linear, layer("self.scale * self.B", "self.B"), "the merged weight gives"),
        (exercises.check_lora_linear,
         layer("weight + self.scale * self.B @ self.A",
               "weight.data.add_(self.scale * self.B.data @ self.A)"),
         "leave W as it is"),
        (exercises.check_lora_linear, layer("rank, linear.in_features", "linear.in_features, rank"),
         r"has the shape \(5, 2\), expected \(2, 5\)"),
        (exercises.check_lora_linear, layer("self.B = nn.Parameter(", "self.b = ("),
         "layer.B must be an nn.Parameter"),
        (exercises.check_lora_from, partial(lora_from, prefix="", silent=True), "skips every name"),
        (exercises.check_lora_from, partial(lora_from, freeze=False), "freeze the base"),
        (exercises.check_lora_from, partial(lora_from, silent=True), "loaded without an error"),
        (exercises.check_lora_from, partial(lora_from, error=KeyError), "raises KeyError, expected a V"),
        (exercises.check_lora_from, lambda s, c, r, a: lora_from(s, c, r, 1), "the given rank and"),
        (exercises.check_lora_from, nothing_trained, "A and B must stay trainable"),
        (exercises.check_lora_from, lambda *a: nn.Linear(1, 1), "must return a litgpt.lora.GPT"),
        (exercises.check_bytes_held, lambda p, t: 16 * p, "16 for all"),
        (exercises.check_bytes_held, lambda p, t: 16 * t, "without the 90 that are frozen"),
        (exercises.check_bytes_held, lambda p, t: 4 * p + 4 * t, "two numbers are missing"),
        (exercises.check_bytes_held, lambda p, t: 4 * p + 8 * t, "has a gradient and Adam's two numbers"),
        (exercises.check_bytes_held, lambda p, t: p + 3 * t, "each has 4 bytes"),
        (exercises.check_bytes_held, lambda p, t: "520", "one number of bytes"),
        (exercises.check_bytes_held, lambda p, t: 521, "By hand"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(check, wrong, says):
    with pytest.raises(NotYet, match=says):
        check(wrong)
