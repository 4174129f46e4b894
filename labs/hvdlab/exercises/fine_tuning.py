"""Checks of lab 11: labels, the loss, padding, LoRA by hand and from a checkpoint, bytes held."""

import torch
from litgpt import GPT, lora
from litgpt.data import SFTDataset
from torch import nn
from torch.nn import functional as F

from hvdlab.exercises import NotYet, call, right
from hvdlab.torch.language_model import IGNORED, LanguageModel, small

RECORD = {"instruction": "Count the letters.", "input": "e-b-k", "output": "3"}


def check_example(example, tokenizer) -> None:
    """Demand ids of prompt, answer and end, labels of the last two; then LitGPT's, token by token."""
    case = "example([5, 6, 7], [8, 9], 1)"
    ids, labels = _two_lists(call(example, [5, 6, 7], [8, 9], 1), case)
    if ids == [5, 6, 7, 8, 9]:
        raise NotYet(
            f"the ids of {case} are {ids}: the end, 1, is missing. A model that never saw an answer end "
            "writes on until it is stopped."
        )
    if ids != [5, 6, 7, 8, 9, 1]:
        raise NotYet(
            f"the ids of {case} are {ids}, expected prompt, answer, end: [5, 6, 7, 8, 9, 1]."
        )
    if len(labels) != len(ids):
        raise NotYet(
            f"{case} has {len(ids)} ids and {len(labels)} labels: each token has one label."
        )
    for wrong, says in (
        (ids, "the prompt counts too: the model learns to write questions. Its labels are -100."),
        ([-100, -100, -100, 8, 9, -100], "the end does not count, so it is never learnt."),
        (
            [-100, -100, 8, 9, 1, -100],
            "they are shifted already. The loss shifts them: leave them in place.",
        ),
        ([-100, -100, 7, 8, 9, 1], "the last token of the prompt counts too."),
        ([-100, -100, -100, -100, 9, 1], "the first token of the answer does not count."),
        ([0, 0, 0, 8, 9, 1], "0 is a token like others. The label that does not count is -100."),
        ([-1, -1, -1, 8, 9, 1], "PyTorch's cross entropy leaves out -100, not -1."),
    ):
        if labels == wrong:
            raise NotYet(f"the labels of {case} are {labels}: {says}")
    if labels != [-100, -100, -100, 8, 9, 1]:
        raise NotYet(f"the labels of {case} are {labels}, expected [-100, -100, -100, 8, 9, 1].")
    given = [5, 6, 7]
    call(example, given, [8], 1)
    if given != [5, 6, 7]:
        raise NotYet(f"example changed the prompt that it was given to {given}: make a new list.")

    theirs = SFTDataset([RECORD], tokenizer, "alpaca", mask_prompt=True)[0]
    wanted = theirs["input_ids"].tolist(), theirs["labels"].tolist()
    start = wanted[1].count(IGNORED)
    prompt, answer = wanted[0][:start], wanted[0][start:-1]
    found = _two_lists(call(example, prompt, answer, wanted[0][-1]), "example of a record")
    pairs = (list(zip(*one, strict=True)) for one in (found, wanted))
    for number, (mine, litgpt) in enumerate(zip(*pairs, strict=True)):
        if mine != litgpt:
            token = tokenizer.decode(torch.tensor([litgpt[0]]))
            raise NotYet(
                f"token {number} of a record, {token!r}: (id, label) are {mine}, LitGPT has {litgpt}."
            )
    right(
        f"six tokens by hand, and a record of {len(wanted[0])} tokens as LitGPT's SFTDataset has it: "
        f"{start} of the prompt do not count, {len(wanted[0]) - start} do."
    )


def check_language_loss(language_loss) -> None:
    """Demand the mean cross entropy of position t and label t + 1, over labels other than -100."""
    labels = torch.tensor([[-100, -100, 2, 0], [-100, 1, 0, -100]])
    logits = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(1))
    logits[0, 1, 2] += 3.0
    wanted = _mean([(0, 1, 2), (0, 2, 0), (1, 0, 1), (1, 1, 0)], logits)
    found = call(language_loss, logits.clone().requires_grad_(), labels.clone())
    if not (isinstance(found, torch.Tensor) and found.ndim == 0):
        raise NotYet(
            f"language_loss shall return one number, a tensor of no dimension. Received: {found!r}"
        )
    value = float(found.detach())
    shifted = F.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="none"
    )
    filled = labels.clamp(min=0)
    wrongs = (
        (
            _mean([(0, 2, 2), (0, 3, 0), (1, 1, 1), (1, 2, 0)], logits),
            "position t is compared with label t, which the model has just read: it learns to repeat it.",
        ),
        (
            _mean([(0, 0, 2), (0, 1, 0), (1, 0, 0)], logits),
            "position t is compared with label t + 2: that is shifted twice.",
        ),
        (
            _mean([(0, 3, 2), (1, 2, 1), (1, 3, 0)], logits),
            "position t is compared with label t - 1: that is shifted the wrong way.",
        ),
        (
            float(shifted.mean()),
            "the sum is divided by all 6 positions, also those that do not count.",
        ),
        (float(shifted.sum()), "that is the sum, not the mean over the labels that count."),
        (
            float(F.cross_entropy(logits[:, :-1].flatten(0, 1), filled[:, 1:].flatten())),
            "labels of -100 are counted as if they were token 0.",
        ),
    )
    for wrong, says in wrongs:
        if abs(value - wrong) < 1e-5:
            raise NotYet(
                f"language_loss of two examples is {value:.4f}, by hand {wanted:.4f}: {says}"
            )
    if abs(value - wanted) > 1e-5:
        raise NotYet(f"language_loss of two examples is {value:.4f}, by hand {wanted:.4f}.")
    if not found.requires_grad:
        raise NotYet("language_loss has no gradient: return the tensor, not a number made of it.")
    right(f"{wanted:.4f} by hand: 4 of 8 labels count, each against the position before it.")


def check_collate(collate) -> None:
    """Demand padded ids, labels with -100 for padding only, and the end of each answer among them."""
    examples = [([5, 6, 8, 1], [-100, -100, 8, 1]), ([5, 9, 1], [-100, 9, 1])]
    case = "collate of ids [5, 6, 8, 1] and [5, 9, 1], where 1 is the end"
    batch = call(collate, examples, 1)
    if not (isinstance(batch, dict) and {"input_ids", "labels"} <= batch.keys()):
        raise NotYet(f"{case} shall return a dict of input_ids and labels. Received: {batch!r}")
    for name, value in batch.items():
        if not (torch.is_tensor(value) and value.shape == (2, 4) and value.dtype == torch.int64):
            raise NotYet(f"{name} shall be an int64 tensor of shape (2, 4). Received: {value!r}")
    ids, labels = batch["input_ids"].tolist(), batch["labels"].tolist()
    if [ids[0], ids[1][:3]] != [[5, 6, 8, 1], [5, 9, 1]]:
        raise NotYet(
            f"input_ids of {case} are {ids}: pad on the right, and leave the tokens alone."
        )
    kept = sum(row.count(1) for row in labels)
    if kept == 0:
        raise NotYet(
            f"labels of {case} are {labels}: no end is left, so no answer ever learns to stop. Only "
            "padding shall not count, not every token that looks like it."
        )
    if labels[1][3] != -100:
        raise NotYet(
            f"labels of {case} are {labels}: the padding of the second counts. Make it -100."
        )
    if labels != [[-100, -100, 8, 1], [-100, 9, 1, -100]]:
        raise NotYet(
            f"labels of {case} are {labels}, expected [[-100, -100, 8, 1], [-100, 9, 1, -100]]: those of "
            "the examples, with -100 where they are padded."
        )
    right("both ends count, the padding does not.")


def check_lora_linear(LoRALinear) -> None:
    """Demand W x + alpha/r B A x with B = 0 at first, only A and B trained, and the same when merged."""
    torch.manual_seed(1)
    linear = nn.Linear(5, 4, bias=False)
    weight, x = linear.weight.detach().clone(), torch.randn(3, 5)
    base = F.linear(x, weight)
    layer = call(LoRALinear, linear, 2, 6.0)
    for name, shape in (("A", (2, 5)), ("B", (4, 2))):
        value = getattr(layer, name, None)
        if not isinstance(value, nn.Parameter):
            raise NotYet(f"layer.{name} shall be an nn.Parameter, so that an optimizer finds it.")
        if tuple(value.shape) != shape:
            raise NotYet(
                f"for 5 inputs, 4 outputs and rank 2 layer.{name} has the shape {tuple(value.shape)}, "
                f"expected {shape}."
            )
    if layer.A.detach().abs().sum() == 0:
        raise NotYet(
            "A and B are both zero. The gradient of each has the other as a factor, so both stay zero: "
            "make A random."
        )
    output = call(layer, x, name="LoRALinear.forward")
    if layer.B.detach().abs().sum() != 0 or not torch.allclose(output, base, atol=1e-6):
        raise NotYet(
            f"at the start the layer differs from its base by up to {(output - base).abs().max():.3g}: "
            "with B = 0 it is the base, and training starts from what the model knows."
        )
    trained = {name for name, value in layer.named_parameters() if value.requires_grad}
    if trained != {"A", "B"}:
        raise NotYet(
            f"trained are {', '.join(sorted(trained))}: freeze the base, only A and B learn."
        )

    with torch.no_grad():
        layer.A.copy_(torch.randn(2, 5))
        layer.B.copy_(torch.randn(4, 2))
    output, change = call(layer, x, name="LoRALinear.forward"), x @ layer.A.T @ layer.B.T
    for factor, says in (
        (1.0, "the scale alpha / rank, here 3, is missing."),
        (6.0, "the change is scaled by alpha; divide it by the rank, 2."),
        (12.0, "the change is scaled by alpha x rank: divide by the rank."),
    ):
        if torch.allclose(output, base + factor * change, atol=1e-4):
            raise NotYet(f"rank 2, alpha 6: {says}")
    if torch.allclose(output, 3 * change, atol=1e-4):
        raise NotYet("the output is the change alone: add that of the frozen layer.")
    theirs = lora.LoRALinear(5, 4, r=2, lora_alpha=6, bias=False)
    with torch.no_grad():
        theirs.linear.weight.copy_(weight)
        theirs.lora_A.copy_(layer.A)
        theirs.lora_B.copy_(layer.B)
    difference = (output - theirs(x)).abs().max()
    if not difference < 1e-4:
        raise NotYet(
            f"with random A and B it differs from LitGPT's LoRALinear by {difference:.3g}."
        )

    whole = call(layer.merged, name="LoRALinear.merged")
    if not (torch.is_tensor(whole) and whole.shape == weight.shape):
        raise NotYet(f"merged() shall return one weight of shape (4, 5). Received: {whole!r}")
    difference = (F.linear(x, whole) - output).abs().max()
    if not difference < 1e-4:
        raise NotYet(
            f"the merged weight gives outputs that differ by {difference:.3g}: it is W + alpha/r B A."
        )
    if not torch.equal(layer.linear.weight, weight):
        raise NotYet("merged() changed the layer: return a new weight, and leave W as it is.")
    right(
        "the base at the start, LitGPT's LoRALinear with random A and B, and the same when merged."
    )


def check_lora_from(lora_from) -> None:
    """Demand a LoRA model that computes what the base does, trains A and B only, and misses nothing."""
    torch.manual_seed(1)
    base = GPT(small(vocabulary=64, layers=2, width=32))
    ids = torch.arange(12).reshape(1, 12)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    state = LanguageModel(base, learning_rate=0.0).state_dict()
    model = call(lora_from, dict(state), base.config, 4, 8.0)
    if not isinstance(model, lora.GPT):
        raise NotYet(f"lora_from shall return a litgpt.lora.GPT. Received: {type(model).__name__}")
    difference = float((model(ids) - base(ids)).detach().abs().max())
    if difference > 1e-5:
        same = sum(torch.equal(v, before[n]) for n, v in model.state_dict().items() if n in before)
        raise NotYet(
            f"at the start its logits differ from the base's by up to {difference:.3g}: not all weights "
            f"were loaded ({same} of {len(before)} names are in both and equal). `strict=False` passes "
            "over every name that it does not know: look at what load_state_dict returns."
        )
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    strangers = [name for name in trained if "lora_" not in name]
    if strangers:
        raise NotYet(
            f"{len(strangers)} tensors beside LoRA's are trained, such as {strangers[0]}: freeze the base."
        )
    if not trained:
        raise NotYet("nothing is trained: LoRA's A and B must stay trainable.")
    model(ids).sum().backward()
    if not any(
        value.grad is not None and value.grad.abs().sum() > 0 for value in model.parameters()
    ):
        raise NotYet("no gradient arrives at A or B, so nothing would be learnt.")
    state.pop("gpt.lm_head.weight")
    try:
        lora_from(state, base.config, 4, 8.0)
    except ValueError:
        right(
            f"the base at the start, {len(trained)} tensors to train, and a lost weight is an error."
        )
    else:
        raise NotYet(
            "a state without the weights of the last layer is loaded, and nothing is said: raise a "
            "ValueError when a name without `lora_` is missing."
        )


def check_bytes_held(bytes_held) -> None:
    """Demand 4 bytes for each parameter and 12 more for each that is trained."""
    case = "bytes_held(parameters=100, trained=10)"
    found = _number(call(bytes_held, 100, 10), case)
    for wrong, says in (
        (1600, "that is 16 for all: a frozen parameter has no gradient and no optimizer state."),
        (160, "that is without the 90 that are frozen; they are held too, 4 bytes each."),
        (480, "Adam keeps two numbers for each trained parameter, a mean and a mean square."),
        (440, "that is weights and gradients; Adam's two numbers are missing."),
        (520 - 40, "Adam keeps two numbers for each trained parameter."),
        (130, "that counts numbers; each has 4 bytes."),
    ):
        if found == wrong:
            raise NotYet(f"{case} is {found:g}: {says}")
    if found != 520:
        raise NotYet(f"{case} is {found:g}; by hand: 100 x 4 + 10 x (4 + 8) = 520 bytes.")
    if (full := _number(call(bytes_held, 100, 100), "bytes_held(100, 100)")) != 1600:
        raise NotYet(f"bytes_held(100, 100) is {full:g}; by hand 100 x 16 = 1600 bytes.")
    right("520 bytes by hand with 10 of 100 trained, 1600 with all.")


def _mean(places, logits):
    """The mean of -log p(token) over (example, position, token)."""
    chances = logits.log_softmax(-1)
    return float(-sum(chances[place] for place in places) / len(places))


def _two_lists(got, case):
    try:
        ids, labels = got
        return [int(value) for value in ids], [int(value) for value in labels]
    except (TypeError, ValueError):
        raise NotYet(f"{case} shall return two lists, ids and labels. Received: {got!r}") from None


def _number(got, case):
    if isinstance(got, bool) or not isinstance(got, int | float):
        raise NotYet(f"{case} shall return one number of bytes. Received: {got!r}")
    return got
